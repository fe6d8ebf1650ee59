"""The activities `prepare` and `describe_model`: resolve a configuration with what this worker has registered."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Iterable, Sequence

from temporalio import activity

from clew_activities.archive import Archive
from clew_activities.archive.ended_runs import (
    check_head,
    describe_run,
    find_archived_upto,
    find_ended_run,
    wait_for_head,
    was_interrupted,
)
from clew_activities.archive.errors import translate_archive_errors
from clew_activities.archive.listing import SearchAttributes
from clew_activities.heartbeats import send_heartbeats
from clew_activities.model.model_table import (
    NO_OWN_MODELS,
    OwnModels,
    choose_encoding,
    choose_policy,
    find_family,
    find_prices,
)
from clew_activities.providers import Providers
from clew_activities.providers.errors import ProviderError
from clew_activities.tools.mcp.settings import McpUnavailable
from clew_activities.tools.mcp.tools import McpTools, UnknownMcpTool
from clew_activities.tools.registry import Deployment, Registry, resolve_tool
from clew_activities.tools.stored_results import read_result, view_blob
from clew_activities.webhooks import NO_WEBHOOKS, WebhookSettings
from clew_workflows.contract import SessionConfig
from clew_workflows.contract.config import measure_specs
from clew_workflows.contract.lists import AgentsList, AgentSummary, ListAgentsInput
from clew_workflows.contract.names import MAX_TOOLS_BYTES, EncodingName
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import (
    ArchiveRef,
    DescribeModel,
    Failure,
    ModelProfile,
    Prepare,
    Prepared,
    ResolvedAgent,
    ResolvedTool,
    RolloverThresholds,
)

log = logging.getLogger("clew.worker")

MAX_NAMES = 10
"""Most names of tools that a message lists."""
MAX_WARNINGS = 1000
"""Most unknown models that a worker logs. The names come from callers, so their number must be bounded."""


class PrepareActivities:
    """Resolves configurations with the worker's providers, tools, agents and archive."""

    def __init__(
        self,
        providers: Providers,
        registry: Registry,
        archive: Archive,
        thresholds: RolloverThresholds,
        mcp_tools: McpTools | None = None,
        *,
        search_attributes: SearchAttributes | None = None,
        shows_texts: bool = True,
        limited: tuple[str, ...] = (),
        calls_models: bool = False,
        own_models: OwnModels = NO_OWN_MODELS,
        webhooks: WebhookSettings = NO_WEBHOOKS,
    ) -> None:
        self._own_models = own_models
        self._webhooks = webhooks
        self._providers = providers
        self._registry = registry
        self._mcp_tools = mcp_tools or McpTools()
        self._deployment = Deployment(registry.deployment, self._mcp_tools)
        self._archive = archive
        self._thresholds = thresholds
        self._search_attributes = search_attributes
        self._shows_texts = shows_texts
        self._limited = limited
        self._calls_models = calls_models
        self._unknown: set[str] = set()

    @activity.defn(name="prepare")
    async def prepare(self, request: Prepare) -> Prepared:
        """Resolve the agent, the tools and the model's profile, or report the first problem.

        On request, look for an archive.
        """
        async with send_heartbeats():
            prepared = await self._resolve(request)
            prepared = prepared.model_copy(
                update={
                    "shows_texts": self._shows_texts,
                    "hooks": tuple(self._registry.hooks),
                    "limited": self._limited,
                    "calls_models": self._calls_models,
                    "webhooks": self._webhooks.webhooks,
                }
            )
            encoding = request.encoding or (prepared.profile.encoding if prepared.profile else None)
            if encoding and prepared.tools:
                tools = await asyncio.to_thread(_count_schemas, prepared.tools, encoding)
                prepared = prepared.model_copy(update={"tools": tools})
            if prepared.problem is None and prepared.profile:
                self._warn_of_unknown_model(prepared.profile.model)
            if self._search_attributes:
                attributes = await self._search_attributes.list()
                prepared = prepared.model_copy(update={"search_attributes": attributes})
            if request.execution is None:
                return prepared
            return await self._add_archive(prepared, request.execution, request.after)

    @activity.defn(name="describe_model")
    async def describe_model(self, request: DescribeModel) -> ModelProfile:
        """Make the profile of a model."""
        async with send_heartbeats():
            if self._find_unknown_model(request.model) is None:
                self._warn_of_unknown_model(request.model)
            return make_profile(request.model, self._own_models)

    @activity.defn(name="list_agents")
    async def list_agents(self, _query: ListAgentsInput) -> AgentsList:
        """List the agents of this worker."""
        agents = sorted(self._registry.agents.values(), key=lambda agent: agent.name)
        return AgentsList(
            agents=tuple(
                AgentSummary(name=agent.name, version=agent.version, label=agent.label, model=agent.config.model)
                for agent in agents
            ),
            providers=self._providers.names,
        )

    async def _add_archive(self, prepared: Prepared, execution: str, after: str | None) -> Prepared:
        """Add what the archive holds: nothing, a state to continue from, or why it cannot continue.

        Raises:
            ApplicationError: The store has lost the session's head (`archive_damaged`), or is older than the session
                (`thread_mismatch`). Opening it again after a repair continues it.
        """
        session_id = activity.info().workflow_id or ""
        run_id = await find_ended_run(session_id, execution) if after is None else after
        upto = await find_archived_upto(session_id, await describe_run(session_id, run_id)) if run_id else -1
        async with translate_archive_errors():
            head = await wait_for_head(lambda: self._archive.read_head(session_id), upto)
        async with translate_archive_errors(damage_is_final=True):
            check_head(head, session_id, upto)
        if head is None:
            archive_ref = ArchiveRef(execution=execution, family=session_id, thresholds=self._thresholds)
            return prepared.model_copy(update={"archive": archive_ref})
        if head.status == "live" and head.run_id != execution and await was_interrupted(session_id, head.run_id):
            interrupted = (
                f"session {session_id!r} was interrupted: entries after {head.last_seq} are in its event history "
                f"alone. Run `clew recover {session_id}`"
            )
            return prepared.model_copy(update={"interrupted": interrupted})
        archive_ref = ArchiveRef(
            execution=execution,
            family=head.family,
            root=head.root,
            upto=head.last_seq,
            thresholds=self._thresholds,
        )
        return prepared.model_copy(update={"archive": archive_ref, "state": head.state})

    async def _resolve(self, request: Prepare) -> Prepared:
        agent, deployment = self._registry.agents.get(request.agent or ""), self._deployment.describe({})
        if request.agent is not None and agent is None:
            known = ", ".join(self._registry.agents) or "none"
            message = (
                f"the worker has no agent {request.agent!r}, its agents are: {known}. Point CLEW_AGENTS or --agents "
                f"at the module that defines it, or name another: {_describe_repair(['--agent', 'NAME'])}"
            )
            return Prepared(problem=Failure(type="unknown_agent", message=message), deployment=deployment)
        config = _make_config(request, agent)
        model, names, tools = config.model or "", list(config.tools), dict(self._registry.tools)
        readable = names and (request.archived or request.execution is not None)
        # If the worker has a tool of that name itself, the worker's is used.
        if (readable or _clears(request, config)) and read_result.name not in tools:
            tools[read_result.name] = read_result
            names = list(dict.fromkeys((*names, read_result.name)))
        clears_media = request.clears_media or _clears_media(config)
        if ((names and request.views) or clears_media) and view_blob.name not in tools:
            tools[view_blob.name] = view_blob
            names = list(dict.fromkeys((*names, view_blob.name)))
        prepared = Prepared(agent=agent, deployment=deployment, profile=make_profile(model, self._own_models))
        try:
            remote = await self._mcp_tools.select_all(names)
        except McpUnavailable as error:
            failure = Failure(type="mcp_unavailable", message=str(error), retryable=True)
            return prepared.model_copy(update={"problem": failure})
        except UnknownMcpTool as error:
            kept = [name for name in config.tools if name in self._registry.tools]
            message = f"{error}. To name other tools: {_describe_repair(_list_tool_options(kept))}"
            failure = Failure(type="unknown_tool", message=message)
            return prepared.model_copy(update={"problem": failure})
        prepared = prepared.model_copy(update={"deployment": self._deployment.describe(remote.versions)})
        local = {name: (tools[name],) for name in names if name in tools}
        selected = [tool for name in names for tool in remote.tools.get(name, local.get(name, ()))]
        resolved = tuple({tool.name: resolve_tool(tool) for tool in selected}.values())
        size = measure_specs(tool.spec for tool in resolved)
        if size > MAX_TOOLS_BYTES:
            message = (
                f"the tools' schemas have {size} bytes together, at most {MAX_TOOLS_BYTES} are allowed. To name "
                f"fewer tools: {_describe_repair(_list_tool_options(()))}"
            )
            return prepared.model_copy(update={"problem": Failure(type="too_large", message=message)})
        kept = [name for name in config.tools if name in tools or name in remote.tools]
        unknown = [name for name in names if name not in tools and name not in remote.tools]
        problem = (
            self._find_unknown_tool(unknown, kept)
            or self._find_unknown_model(model, config.fallbacks)
            or self._webhooks.find_problem(config)
        )
        return prepared.model_copy(update={"tools": resolved, "problem": problem})

    def _warn_of_unknown_model(self, model: str) -> None:
        """Log once for each model that the table does not have."""
        if find_family(model, self._own_models) or model in self._unknown or len(self._unknown) >= MAX_WARNINGS:
            return
        self._unknown.add(model)
        log.warning(
            "model %r is not in the table of models: contexts are limited to %d tokens. To change that, set "
            "max_input_tokens in the session's context_policy, or add the model to the JSON file that CLEW_MODELS "
            'names, as in {"vllm:qwen3": {"window": 32768}}',
            model,
            ContextPolicy().max_input_tokens,
        )

    def _find_unknown_tool(self, unknown: Sequence[str], kept: Sequence[str]) -> Failure | None:
        if not unknown:
            return None
        names = ", ".join(repr(name) for name in unknown[:MAX_NAMES])
        known = ", ".join(list(self._registry.tools)[:MAX_NAMES]) or "none"
        more = ", …" if len(self._registry.tools) > MAX_NAMES else ""
        message = (
            f"the worker has no tool {names}, its tools are: {known}{more}. Point CLEW_TOOLS or --tools at the "
            f"module that defines it, or name other tools: {_describe_repair(_list_tool_options(kept))}"
        )
        return Failure(type="unknown_tool", message=message)

    def _find_unknown_model(self, model: str, fallbacks: Iterable[str] = ()) -> Failure | None:
        options = {"--model": (model,), "--fallback": fallbacks}
        for option, models in options.items():
            for name in models:
                try:
                    self._providers.get(name.partition(":")[0])
                except ProviderError as error:
                    message = f"{error}; to name another model: {_describe_repair([option, 'PROVIDER:NAME'])}"
                    return Failure(type=error.type, message=message)
        return None


def _describe_repair(options: Sequence[str]) -> str:
    """Describe the command that changes the session's configuration, which is at fault."""
    return f"`clew configure {activity.info().workflow_id} {shlex.join(options)}`"


def _list_tool_options(kept: Sequence[str]) -> Sequence[str]:
    """List the options that name the tools that are not at fault; `NAME` stands for unknown ones."""
    if not 0 < len(kept) <= MAX_NAMES:
        return ("--tool", "NAME")
    return [word for name in kept for word in ("--tool", name)]


def _make_config(request: Prepare, agent: ResolvedAgent | None) -> SessionConfig:
    """Make the part of the configuration in force that a worker resolves, by the session's own rule."""
    fields = {name: getattr(request, name) for name in ("agent", "model", "fallbacks", "tools", "webhooks")}
    own = SessionConfig.model_validate({name: value for name, value in fields.items() if value is not None})
    return agent.config.overlay(own) if agent else own


def _clears(request: Prepare, config: SessionConfig) -> bool:
    """Whether the policy in force clears tool results."""
    policy = config.context_policy
    return request.clears if request.clears is not None else bool(policy and policy.clear_tool_results)


def _clears_media(config: SessionConfig) -> bool:
    """Whether the policy of the configuration clears media."""
    return bool(config.context_policy and config.context_policy.clear_media)


def _count_schemas(tools: Sequence[ResolvedTool], encoding: EncodingName) -> tuple[ResolvedTool, ...]:
    """Count the tokens of each tool's schema."""
    count = load_encoding(encoding).count_tools
    return tuple(tool.model_copy(update={"tokens": count([tool.spec])}) for tool in tools)


def make_profile(model: str, own: OwnModels = NO_OWN_MODELS) -> ModelProfile:
    """Make the profile of a model from this worker's tables and prices."""
    return ModelProfile(
        model=model,
        policy=choose_policy(model, own),
        encoding=choose_encoding(model, own),
        prices=find_prices(model, own),
    )
