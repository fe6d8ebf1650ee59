"""The activities `prepare` and `describe_model`: resolve a configuration with the tools and models of this worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from temporalio import activity

from clew.contract.policy import ContextPolicy
from clew.model.canonical import canonicalize
from clew.tools import ExternalTool, RemoteTool, ToolDefinition
from clew_activities.archive import Archive
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.mcp.errors import McpUnavailable, UnknownMcpTool
from clew_activities.mcp.tools import McpTool, McpTools
from clew_activities.model_table import choose_encoding, choose_policy, find_family
from clew_activities.prices import find_prices
from clew_activities.providers import Providers
from clew_activities.providers.errors import ProviderError
from clew_activities.stored_results import read_result
from clew_activities.tools import Tools
from clew_workflows.protocol import (
    ArchiveRef,
    DescribeModel,
    ExternalRoute,
    Failure,
    FunctionRoute,
    McpRoute,
    ModelProfile,
    Prepare,
    Prepared,
    RemoteRoute,
    ResolvedTool,
    RolloverThresholds,
    Route,
)

log = logging.getLogger("clew.worker")

MAX_SCHEMA_BYTES = 262_144
"""Largest size of the schemas of a session's tools together, in bytes, so that each page of a context holds them."""
MAX_WARNINGS = 1000
"""Most unknown models that a worker logs. The names come from callers, so their number must be bounded."""


class PrepareActivities:
    """Resolves configurations with the worker's providers, tools and archive."""

    def __init__(
        self,
        providers: Providers,
        tools: Tools,
        archive: Archive,
        thresholds: RolloverThresholds,
        mcp_tools: McpTools | None = None,
    ) -> None:
        self._providers = providers
        self._tools = tools
        self._mcp_tools = mcp_tools or McpTools()
        self._archive = archive
        self._thresholds = thresholds
        self._unknown: set[str] = set()

    @activity.defn(name="prepare")
    async def prepare(self, request: Prepare) -> Prepared:
        """Resolve the tools and the model's profile, or report the first problem; on request, look for an archive."""
        async with send_heartbeats():
            prepared = await self._resolve(request)
            prepared = prepared.model_copy(update={"profile": make_profile(request.model)})
            if prepared.problem is None:
                self._warn_of_unknown_model(request.model)
            return prepared if request.execution is None else await self._add_archive(prepared, request.execution)

    @activity.defn(name="describe_model")
    async def describe_model(self, request: DescribeModel) -> ModelProfile:
        """Make the profile of a model."""
        async with send_heartbeats():
            if self._find_problem(request.model, ()) is None:
                self._warn_of_unknown_model(request.model)
            return make_profile(request.model)

    async def _add_archive(self, prepared: Prepared, execution: str) -> Prepared:
        """Add what the archive holds: nothing, a state to continue from, or a mismatch."""
        session_id = activity.info().workflow_id or ""
        async with translate_archive_errors():
            head = await self._archive.read_head(session_id)
        if head is None:
            archive_ref = ArchiveRef(execution=execution, family=session_id, thresholds=self._thresholds)
            return prepared.model_copy(update={"archive": archive_ref})
        if head.status == "live" and head.run_id != execution:
            mismatch = (
                f"session {session_id!r} was interrupted: entries after {head.last_seq} are in its event history "
                f"alone. Run `clew recover {session_id}`"
            )
            return prepared.model_copy(update={"mismatch": mismatch})
        archive_ref = ArchiveRef(
            execution=execution,
            family=head.family,
            root=head.root,
            upto=head.last_seq,
            thresholds=self._thresholds,
        )
        return prepared.model_copy(update={"archive": archive_ref, "state": head.state})

    async def _resolve(self, request: Prepare) -> Prepared:
        try:
            remote = await self._mcp_tools.select_all(request.tools)
        except McpUnavailable as error:
            return Prepared(problem=Failure(type="mcp_unavailable", message=str(error), retryable=True))
        except UnknownMcpTool as error:
            return Prepared(problem=Failure(type="unknown_tool", message=str(error)))
        tools = dict(self._tools)
        names = list(request.tools)
        readable = names and (request.archived or request.execution is not None)
        # If the worker has a tool of that name itself, the worker's is used.
        if (readable or request.clears) and read_result.name not in tools:
            tools[read_result.name] = read_result
            names = list(dict.fromkeys((*names, read_result.name)))
        selected = [tool for name in names for tool in remote.get(name) or ([tools[name]] if name in tools else [])]
        known = list({tool.name: tool for tool in selected}.values())
        resolved = tuple(
            ResolvedTool(
                spec=tool.spec,
                route=make_route(tool),
                timeout_seconds=tool.timeout_seconds,
                max_attempts=tool.retries + 1,
                idempotent=tool.idempotent,
                requires_approval=tool.requires_approval,
            )
            for tool in known
        )
        size = sum(len(canonicalize(tool.spec)) for tool in known)
        if size > MAX_SCHEMA_BYTES:
            message = f"the tools' schemas have {size} bytes together, at most {MAX_SCHEMA_BYTES} are allowed"
            return Prepared(problem=Failure(type="too_large", message=message))
        unknown = [name for name in names if name not in tools and name not in remote]
        return Prepared(tools=resolved, problem=self._find_problem(request.model, unknown))

    def _warn_of_unknown_model(self, model: str) -> None:
        """Log once for each model that the table does not have."""
        if find_family(model) or model in self._unknown or len(self._unknown) >= MAX_WARNINGS:
            return
        self._unknown.add(model)
        log.warning(
            "model %r is not in the table of models: contexts are limited to %d tokens. To change that, set "
            "max_input_tokens in the session's context_policy, or add the model to "
            "activities/clew_activities/model_table.py",
            model,
            ContextPolicy().max_input_tokens,
        )

    def _find_problem(self, model: str, unknown: Sequence[str]) -> Failure | None:
        if unknown:
            names = ", ".join(repr(name) for name in unknown[:10])
            message = f"the worker has no tool {names}: point CLEW_TOOLS or --tools at the module that defines it"
            return Failure(type="unknown_tool", message=message)
        try:
            self._providers.get(model.partition(":")[0])
        except ProviderError as error:
            return Failure(type=error.type, message=str(error))
        return None


def make_route(tool: ToolDefinition) -> Route:
    """Make the route of a tool's calls."""
    match tool:
        case RemoteTool():
            return RemoteRoute(type="remote", task_queue=tool.task_queue, activity=tool.activity)
        case ExternalTool():
            return ExternalRoute(type="external")
        case McpTool():
            return McpRoute(type="mcp")
        case _:
            return FunctionRoute(type="function")


def make_profile(model: str) -> ModelProfile:
    """Make the profile of a model from this worker's tables and prices."""
    return ModelProfile(
        model=model, policy=choose_policy(model), encoding=choose_encoding(model), prices=find_prices(model)
    )
