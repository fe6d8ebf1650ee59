"""Byte-exact comparison: of the entries of one thread from several sources, and of model calls with their recipes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from clew_activities.model.summary_calls import (
    INSTRUCTIONS_VERSION,
    EarlierCall,
    decode_earlier_calls,
    read_conversation,
    rebuild_calls,
)
from clew_activities.providers.encoders import compare_request, list_needed_blobs, make_cache_key
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.provider_errors import ProviderError
from clew_activities.providers.refused_parts import leave_out
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.errors import Archived, ClewError, NewerVersion
from clew_workflows.contract.payloads import Recipe, SentRequest, SummaryRecipe
from clew_workflows.thread.context.contexts import find_own_settings, rebuild_context
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

Origin = Literal["history", "live", "archive", "call", "file"]
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference that an audit has found.

    Attributes:
        where: The source that differs.
        problem: What differs.
        name: The object, workflow run, lane or call in that source.
        seq: Seq of the entry.
        field: Path of the field in the entry.
    """

    where: Origin
    problem: str
    name: str | None = None
    seq: int | None = None
    field: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        parts = [self.where, self.name, None if self.seq is None else f"entry {self.seq}", self.field]
        return f"{', '.join(part for part in parts if part)}: {self.problem}"


class JoinedThread:
    """A thread joined from several sources, which must agree on every entry.

    Attributes:
        entries: The entries by seq, as the first source has them.
        only: Number of entries by the source that had them first.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.only: dict[Origin, int] = {}
        self._first: dict[int, tuple[Origin, str | None]] = {}

    def __contains__(self, seq: int) -> bool:
        return seq in self.entries

    def add(self, entry: Entry, origin: Origin, name: str | None = None) -> Iterator[Difference]:
        """Add an entry of a source. Yields the differences from the entry that an earlier source had."""
        known = self.entries.get(entry.seq)
        if known is None:
            self.entries[entry.seq] = entry
            self._first[entry.seq] = origin, name
            self.only[origin] = self.only.get(origin, 0) + 1
            return
        first_origin = " ".join(filter(None, self._first[entry.seq]))
        for path, ours, theirs in find_differences(known.as_dict(), entry.as_dict()):
            yield Difference(
                origin, f"{_shorten(theirs)}, but {_shorten(ours)} in {first_origin}", name, entry.seq, path
            )

    @property
    def last_seq(self) -> int:
        """Seq of the newest entry; -1: there is none."""
        return max(self.entries, default=-1)

    def find_gaps(self) -> Iterator[tuple[int, int]]:
        """Find the ranges of seqs that are missing before the newest entry, each as its first and last seq."""
        for before, after in pairwise((-1, *sorted(self.entries))):
            if after > before + 1:
                yield before + 1, after - 1


_MISSING = object()


def find_differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Find the paths at which two JSON values differ. Yields each path with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys((*ours, *theirs)):
            yield from find_differences(
                ours.get(key, _MISSING), theirs.get(key, _MISSING), f"{path}.{key}" if path else key
            )
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from find_differences(one, other, f"{path}[{number}]")
    elif _encode(ours) != _encode(theirs):
        yield path, ours, theirs


def _encode(value: Any) -> str:
    # As JSON text, because in Python 1, 1.0 and True are equal.
    return "nothing" if value is _MISSING else json.dumps(value, sort_keys=True)


def _shorten(value: Any) -> str:
    text = _encode(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(slots=True)
class Calls:
    """The model calls of an audit.

    Attributes:
        verified: Number of calls whose contexts were built again; of a summary, all of its calls.
        unverified: Ids of the calls, and of the summaries, whose entries are not all at hand.
        sent: Number of calls whose request, encoded again, is what the provider received, to the byte.
        other_encoders: Number of calls whose request could not be compared, by the reason: another version of the
            encoder or of a summary's instructions has written it, or an encoder that is not Clew's own; the bytes of
            a blob, or what the earlier calls of a summary have written, are missing.
    """

    verified: int = 0
    unverified: list[str] = field(default_factory=list)
    sent: int = 0
    other_encoders: Counter[str] = field(default_factory=Counter)


ReadStored = Callable[[str], Awaitable[bytes | None]]
"""Reads an object of the archive by its digest; None: it is missing or damaged."""


async def read_nothing(_digest: str) -> None:
    """Read nothing: the requests that need it cannot be compared."""


async def verify_calls(
    thread: Thread, calls: Calls, read_blob: ReadStored = read_nothing, read_result: ReadStored = read_nothing
) -> AsyncIterator[Difference]:
    """Build the context of every model call again, encode its request again, and compare both with the recipe.

    The requests of summaries are made again too. `read_result` reads the earlier calls of a summary that has several.
    """
    verifier = _Verifier(thread, calls, read_blob, read_result)
    for entry in thread:
        if recipe := entry.recipe:
            call_id, count, verifying = str(entry.refs.get("call_id")), 1, verifier.verify_call(entry, recipe)
        elif made := entry.summary_recipe:
            call_id, count = str(entry.refs.get("summary_id")), made.calls
            verifying = verifier.verify_summary(entry, made)
        else:
            continue
        try:
            differences = [replace(found, name=call_id, seq=entry.seq) for found in await verifying]
        except Archived:
            calls.unverified.append(call_id)
            continue
        except (ClewError, KeyError, IndexError, TypeError, ValueError) as error:
            differences = [Difference("call", f"its context cannot be built: {error!r}", call_id, entry.seq)]
        calls.verified += count
        for difference in differences:
            yield difference


@dataclass(frozen=True, slots=True)
class _Verifier:
    """Makes the calls of a thread again, and compares them with what is recorded."""

    thread: Thread
    calls: Calls
    read_blob: ReadStored
    read_result: ReadStored

    async def verify_call(self, entry: Entry, recipe: Recipe) -> list[Difference]:
        """Compare the context and the request of a run's call."""
        projection = rebuild_context(self.thread, recipe, find_own_settings(self.thread, recipe))
        rows: tuple[tuple[str, str | int, str | int], ...] = (
            ("digest", recipe.digest, projection.meta.digest),
            ("policy_hash", recipe.policy_hash, projection.meta.policy_hash),
            ("input_tokens", recipe.input_tokens, projection.meta.estimated_tokens),
        )
        differences = [
            _report(f"payload.recipe.{name}", recorded, value) for name, recorded, value in rows if recorded != value
        ]
        if recipe.request is None:
            return differences
        provider, _, model = recipe.model.partition(":")
        request = ModelRequest(
            model=model,
            messages=projection.messages,
            tools=projection.tool_spec,
            options=ModelOptions.model_validate(recipe.model_options, strict=False),
            provider_tools=recipe.provider_tools,
            output_schema=projection.output_schema,
            cache_key=make_cache_key(entry.refs.get("session_id", ""), recipe.context_ref),
            takes=frozenset(recipe.request.takes),
        )
        request = leave_out(request, recipe.request.refused).request
        blobs: dict[str, bytes] = {}
        for digest in list_needed_blobs(request, provider, recipe.request):
            if (data := await self.read_blob(digest)) is None:
                self.calls.other_encoders[f"the blob {digest[:12]} is missing or damaged"] += 1
                return differences
            blobs[digest] = data
        request = replace(request, blobs=blobs)
        return differences + self._compare(request, provider, recipe.request, "payload.recipe.request.digest")

    async def verify_summary(self, entry: Entry, recipe: SummaryRecipe) -> list[Difference]:
        """Compare what a summary was made of, and the request of each of its calls."""
        summary = entry.summary
        assert summary, "an entry with the recipe of a summary has one"
        is_compaction = entry.kind != summary.entry_kind
        at = "payload.operation" if is_compaction else "payload"
        conversation, _ = read_conversation(self.thread, summary, recipe)
        differences = []
        if summary.source_digest != conversation.digest:
            path = f"{at}.meta.source_digest" if is_compaction else f"{at}.source_digest"
            differences.append(_report(path, summary.source_digest, conversation.digest))
        if recipe.instructions != INSTRUCTIONS_VERSION:
            reason = f"its instructions are {recipe.instructions}; this release has {INSTRUCTIONS_VERSION}"
            self.calls.other_encoders[reason] += recipe.calls
            return differences
        try:
            earlier = await self._read_earlier_calls(recipe)
        except NewerVersion as error:
            self.calls.other_encoders[str(error)] += recipe.calls
            return differences
        if earlier is None:
            self.calls.other_encoders["the earlier calls of a summary are missing or damaged"] += recipe.calls
            return differences
        provider = summary.model.partition(":")[0]
        for request, sent in rebuild_calls(self.thread, summary, recipe, earlier):
            differences += self._compare(request, provider, sent, f"{at}.recipe.request.digest")
        return differences

    async def _read_earlier_calls(self, recipe: SummaryRecipe) -> list[EarlierCall] | None:
        """Read the calls of a summary before the last one; None: they are missing or damaged.

        Raises:
            NewerVersion: A newer version of Clew has written them.
            ValueError: They are not calls of a summary.
        """
        if recipe.earlier_calls is None:
            return [] if recipe.calls == 1 else None
        data = await self.read_result(recipe.earlier_calls)
        return None if data is None else decode_earlier_calls(data)

    def _compare(self, request: ModelRequest, provider: str, sent: SentRequest, path: str) -> list[Difference]:
        """Encode a request again, and compare it with the digest of what the provider received."""
        try:
            comparison = compare_request(request, provider, sent)
        except ProviderError as error:
            return [Difference("call", f"its request cannot be encoded: {error}")]
        if comparison.status == "same":
            self.calls.sent += 1
        elif comparison.status == "other_encoder":
            self.calls.other_encoders[str(comparison.problem)] += 1
        else:
            return [Difference("call", str(comparison.problem), field=path)]
        return []


def _report(path: str, recorded: object, value: object) -> Difference:
    return Difference("call", f"{recorded!r} is recorded, but the entries give {value!r}", field=path)
