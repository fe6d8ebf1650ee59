"""Byte-exact comparison: of the entries of one thread from several sources, and of model calls with their recipes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from clew_activities.providers.encoders import compare_request, list_needed_blobs, make_cache_key
from clew_activities.providers.errors import ProviderError
from clew_activities.providers.interface import ModelRequest
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.errors import Archived, ClewError
from clew_workflows.contract.payloads import Recipe
from clew_workflows.thread.context.contexts import find_output_schema, rebuild_context
from clew_workflows.thread.context.projection import Projection
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
        verified: Number of calls whose contexts were built again.
        unverified: Ids of the calls whose entries are not all at hand.
        sent: Number of calls whose request, encoded again, is what the provider received, to the byte.
        other_encoders: Number of calls whose request could not be compared, by the reason: another version of the
            encoder has written it, or one that is not Clew's own, or the bytes of a blob are missing.
    """

    verified: int = 0
    unverified: list[str] = field(default_factory=list)
    sent: int = 0
    other_encoders: Counter[str] = field(default_factory=Counter)


ReadBlob = Callable[[str], Awaitable[bytes | None]]
"""Reads the bytes of a blob by its digest; None: they are missing or damaged."""


async def read_no_blob(_digest: str) -> None:
    """Read no blob: the requests that have some cannot be compared."""


async def verify_calls(thread: Thread, calls: Calls, read_blob: ReadBlob = read_no_blob) -> AsyncIterator[Difference]:
    """Build the context of every model call again, encode its request again, and compare both with the recipe."""
    for entry in thread:
        recipe = entry.recipe
        if recipe is None:
            continue
        call_id = str(entry.refs.get("call_id"))
        try:
            projection = rebuild_context(thread, recipe, find_output_schema(thread, recipe))
            differences = [
                *_compare_call(entry, recipe, call_id, projection),
                *await _compare_request(entry, recipe, call_id, projection, calls, read_blob=read_blob),
            ]
        except Archived:
            calls.unverified.append(call_id)
            continue
        except (ClewError, KeyError, IndexError, TypeError, ValueError) as error:
            differences = [Difference("call", f"its context cannot be built: {error!r}", call_id, entry.seq)]
        calls.verified += 1
        for difference in differences:
            yield difference


def _compare_call(entry: Entry, recipe: Recipe, call_id: str, projection: Projection) -> Iterator[Difference]:
    rows: tuple[tuple[str, str | int, str | int], ...] = (
        ("digest", recipe.digest, projection.meta.digest),
        ("policy_hash", recipe.policy_hash, projection.meta.policy_hash),
        ("input_tokens", recipe.input_tokens, projection.meta.estimated_tokens),
    )
    for name, recorded, value in rows:
        if recorded != value:
            problem = f"{recorded!r} is recorded, but the entries give {value!r}"
            yield Difference("call", problem, call_id, entry.seq, f"payload.recipe.{name}")


async def _compare_request(
    entry: Entry, recipe: Recipe, call_id: str, projection: Projection, calls: Calls, *, read_blob: ReadBlob
) -> list[Difference]:
    """Encode a call's request again, and compare it with the digest of what the provider received."""
    if recipe.request is None:
        return []
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
    blobs: dict[str, bytes] = {}
    for digest in list_needed_blobs(request, provider, recipe.request):
        if (data := await read_blob(digest)) is None:
            calls.other_encoders[f"the blob {digest[:12]} is missing or damaged"] += 1
            return []
        blobs[digest] = data
    request = replace(request, blobs=blobs)
    try:
        comparison = compare_request(request, provider, recipe.request)
    except ProviderError as error:
        return [Difference("call", f"its request cannot be encoded: {error}", call_id, entry.seq)]
    if comparison.status == "same":
        calls.sent += 1
    elif comparison.status == "other_encoder":
        calls.other_encoders[str(comparison.problem)] += 1
    else:
        problem = str(comparison.problem)
        return [Difference("call", problem, call_id, entry.seq, "payload.recipe.request.digest")]
    return []
