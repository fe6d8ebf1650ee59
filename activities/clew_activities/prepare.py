"""The preparing activity: a configuration against what this worker has."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from temporalio import activity

from clew.contract.policy import ContextPolicy
from clew.model.canonical import canonicalize
from clew_activities.archive import Archive
from clew_activities.archive_activities import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.model_table import choose_encoding, choose_policy, find_family
from clew_activities.prices import find_prices
from clew_activities.providers import Providers
from clew_activities.providers.errors import ProviderError
from clew_activities.stored_results import READ_RESULT
from clew_activities.tools import Tools
from clew_workflows.protocol import (
    ArchiveRef,
    DescribeModel,
    Failure,
    ModelProfile,
    Prepare,
    Prepared,
    ResolvedTool,
    Thresholds,
)

log = logging.getLogger("clew.worker")

MAX_SCHEMA_BYTES = 262_144
"""Of all tools of a session together, so that every page of a context has room for them."""
MAX_WARNINGS = 1000
"""Names come from callers: after so many unknown ones no more is said."""


class PrepareActivities:
    """What a worker knows: its providers, its tools, and its archive of sessions."""

    def __init__(self, providers: Providers, tools: Tools, archive: Archive, thresholds: Thresholds) -> None:
        self._providers = providers
        self._tools = tools
        self._archive = archive
        self._thresholds = thresholds
        self._unknown: set[str] = set()

    @activity.defn(name="prepare")
    async def prepare(self, asked: Prepare) -> Prepared:
        """The schemas of the tools, and the first thing that this worker does not know, if there is one.

        With them comes the profile of the model.
        """
        async with send_heartbeats():
            prepared = self._resolved(asked).model_copy(update={"profile": make_profile(asked.model)})
            if prepared.problem is None:
                self._warn_of(asked.model)
            return prepared if asked.execution is None else await self._looked(prepared, asked.execution)

    @activity.defn(name="describe_model")
    async def describe_model(self, asked: DescribeModel) -> ModelProfile:
        """The profile of a model."""
        async with send_heartbeats():
            if self._problem(asked.model, ()) is None:
                self._warn_of(asked.model)
            return make_profile(asked.model)

    async def _looked(self, prepared: Prepared, execution: str) -> Prepared:
        """What is known of the session's archive: none, one that it goes on from, or another execution's."""
        session_id = activity.info().workflow_id or ""
        async with translate_archive_errors():
            head = await self._archive.read_head(session_id)
        if head is None:
            place = ArchiveRef(execution=execution, family=session_id, thresholds=self._thresholds)
            return prepared.model_copy(update={"archive": place})
        if head.status == "live" and head.run_id != execution:
            mismatch = (
                f"session {session_id!r} was cut off: entries after {head.last_seq} are in its event history alone. "
                "`clew recover` puts it together again"
            )
            return prepared.model_copy(update={"mismatch": mismatch})
        place = ArchiveRef(
            execution=execution,
            family=head.family,
            root=head.root,
            upto=head.last_seq,
            thresholds=self._thresholds,
        )
        return prepared.model_copy(update={"archive": place, "state": head.state})

    def _resolved(self, asked: Prepare) -> Prepared:
        tools = dict(self._tools)
        names = list(asked.tools)
        readable = names and (asked.archived or asked.execution is not None)
        # A tool of the worker's own that has this name wins.
        if (readable or asked.clears) and READ_RESULT.name not in tools:
            tools[READ_RESULT.name] = READ_RESULT
            names = list(dict.fromkeys((*names, READ_RESULT.name)))
        known = [tools[name] for name in names if name in tools]
        resolved = tuple(
            ResolvedTool(
                spec=tool.spec,
                timeout_seconds=tool.timeout_seconds,
                max_attempts=tool.retries + 1,
                idempotent=tool.idempotent,
                requires_approval=tool.requires_approval,
            )
            for tool in known
        )
        size = sum(len(canonicalize(tool.spec)) for tool in known)
        if size > MAX_SCHEMA_BYTES:
            message = f"the tool schemas have {size} bytes together, at most {MAX_SCHEMA_BYTES} are taken"
            return Prepared(problem=Failure(type="too_large", message=message))
        unknown = [name for name in names if name not in tools]
        return Prepared(tools=resolved, problem=self._problem(asked.model, unknown))

    def _warn_of(self, model: str) -> None:
        """Say once of a model that the table does not know it."""
        if find_family(model) or model in self._unknown or len(self._unknown) >= MAX_WARNINGS:
            return
        self._unknown.add(model)
        log.warning(
            "the table of models does not know %r: its window is taken for one of %d tokens where a session's "
            "context_policy names none. activities/clew_activities/model_table.py says how to add it",
            model,
            ContextPolicy().max_input_tokens,
        )

    def _problem(self, model: str, unknown: Sequence[str]) -> Failure | None:
        if unknown:
            names = ", ".join(repr(name) for name in unknown[:10])
            message = f"the worker has no tool {names}: point CLEW_TOOLS or --tools at the module that defines it"
            return Failure(type="unknown_tool", message=message)
        try:
            self._providers.get(model.partition(":")[0])
        except ProviderError as error:
            return Failure(type=error.type, message=str(error))
        return None


def make_profile(model: str) -> ModelProfile:
    """What this worker knows of a model at this moment."""
    return ModelProfile(
        model=model, policy=choose_policy(model), encoding=choose_encoding(model), prices=find_prices(model)
    )
