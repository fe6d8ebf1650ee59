"""The activities `prepare` and `describe_model`: resolve a configuration with what this worker has registered."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from temporalio import activity

from clew.tools import ToolDefinition
from clew_activities.archive import Archive
from clew_activities.archive.archive_errors import translate_archive_errors
from clew_activities.archive.archived_sessions import SearchAttributes
from clew_activities.archive.ended_runs import (
    check_head,
    describe_run,
    find_archived_upto,
    find_ended_run,
    wait_for_head,
    was_interrupted,
)
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
from clew_activities.providers.provider_errors import ProviderError
from clew_activities.tools.mcp.mcp_settings import McpUnavailable
from clew_activities.tools.mcp.mcp_tools import McpTools, UnknownMcpTool
from clew_activities.tools.registry import Deployment, Registry, resolve_tool
from clew_activities.tools.stored_results import read_result, view_blob
from clew_activities.webhook_sending import NO_WEBHOOKS, WebhookSettings
from clew_workflows.contract import SessionConfig
from clew_workflows.contract.config import measure_specs
from clew_workflows.contract.limits import MAX_TOOLS_BYTES
from clew_workflows.contract.lists import AgentsList, AgentSummary, ListAgentsInput
from clew_workflows.contract.names import EncodingName
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
    """Resolves configurations with the worker's providers, tools, agents and archive.

    `worker` is what each answer says of this worker, whatever the configuration.
    """

    def __init__(
        self,
        providers: Providers,
        registry: Registry,
        archive: Archive,
        thresholds: RolloverThresholds,
        mcp_tools: McpTools | None = None,
        *,
        worker: Prepared | None = None,
        search_attributes: SearchAttributes | None = None,
        own_models: OwnModels = NO_OWN_MODELS,
        webhooks: WebhookSettings = NO_WEBHOOKS,
    ) -> None:
        self._providers = providers
        self._registry = registry
        self._archive = archive
        self._thresholds = thresholds
        self._mcp_tools = mcp_tools or McpTools()
        self._deployment = Deployment(registry.deployment, self._mcp_tools)
        self._worker = worker or Prepared()
        self._search_attributes = search_attributes
        self._own_models = own_models
        self._webhooks = webhooks
        self._unknown: set[str] = set()

    @activity.defn(name="prepare")
    async def prepare(self, request: Prepare) -> Prepared:
        """Resolve the agent, the tools and the model's profile, or report the first problem.

        On request, look for an archive.
        """
        async with send_heartbeats():
            fields = await self._resolve(request)
            if self._search_attributes:
                fields["search_attributes"] = await self._search_attributes.list()
            if request.execution is not None:
                fields |= await self._find_archive(request.execution, request.after)
            return self._worker.model_copy(update=fields)

    @activity.defn(name="describe_model")
    async def describe_model(self, request: DescribeModel) -> ModelProfile:
        """Make the profile of a model."""
        async with send_heartbeats():
            if self._find_unknown_model([request.model], "--model") is None:
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

    async def _resolve(self, request: Prepare) -> dict[str, Any]:
        """Resolve a configuration: the fields of `Prepared` that this worker knows, up to the first problem."""
        fields: dict[str, Any] = {"deployment": self._deployment.describe({})}
        agent = self._registry.agents.get(request.agent or "")
        if request.agent is not None and agent is None:
            return {**fields, "problem": self._describe_unknown_agent(request.agent)}
        config = _make_config(request, agent)
        profile = make_profile(config.model or "", self._own_models)
        fields |= {"agent": agent, "profile": profile}

        own = {tool.name: tool for tool in _list_own(request, config) if tool.name not in self._registry.tools}
        known = {name: (tool,) for name, tool in {**self._registry.tools, **own}.items()}
        names = list(dict.fromkeys((*config.tools, *own)))
        try:
            remote = await self._mcp_tools.select_all(names)
        except McpUnavailable as error:
            return {**fields, "problem": Failure(type="mcp_unavailable", message=str(error), retryable=True)}
        except UnknownMcpTool as error:
            kept = [name for name in config.tools if name in self._registry.tools]
            message = f"{error}. To name other tools: {_describe_tools_repair(kept)}"
            return {**fields, "problem": Failure(type="unknown_tool", message=message)}
        fields["deployment"] = self._deployment.describe(remote.versions)

        found: Mapping[str, Sequence[ToolDefinition]] = {**known, **remote.tools}
        selected = {tool.name: resolve_tool(tool) for name in names for tool in found.get(name, ())}
        size = measure_specs(tool.spec for tool in selected.values())
        if size > MAX_TOOLS_BYTES:
            message = (
                f"the tools' schemas have {size} bytes together, at most {MAX_TOOLS_BYTES} are allowed. To name "
                f"fewer tools: {_describe_tools_repair(())}"
            )
            return {**fields, "problem": Failure(type="too_large", message=message)}
        encoding = request.encoding or profile.encoding
        fields["tools"] = await asyncio.to_thread(_count_schemas, selected.values(), encoding)

        problem = (
            self._find_unknown_tool(names, config.tools, found)
            or self._find_unknown_model([profile.model], "--model")
            or self._find_unknown_model(config.fallbacks, "--fallback")
            or self._webhooks.find_problem(config)
        )
        if problem is None:
            self._warn_of_unknown_model(profile.model)
        return {**fields, "problem": problem}

    async def _find_archive(self, execution: str, after: str | None) -> dict[str, Any]:
        """Find what the archive holds: nothing, a state to continue from, or why it cannot continue.

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
        ref = ArchiveRef(execution=execution, family=session_id, thresholds=self._thresholds)
        if head is None:
            return {"archive": ref}
        if head.status == "live" and head.run_id != execution and await was_interrupted(session_id, head.run_id):
            interrupted = (
                f"session {session_id!r} was interrupted: entries after {head.last_seq} are in its event history "
                f"alone. Run `clew recover {session_id}`"
            )
            return {"interrupted": interrupted}
        found = ref.model_copy(update={"family": head.family, "root": head.root, "upto": head.last_seq})
        return {"archive": found, "state": head.state}

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

    def _describe_unknown_agent(self, name: str) -> Failure:
        message = (
            f"the worker has no agent {name!r}, its agents are: {', '.join(self._registry.agents) or 'none'}. Point "
            f"CLEW_AGENTS or --agents at the module that defines it, or name another: "
            f"{_describe_repair('--agent', 'NAME')}"
        )
        return Failure(type="unknown_agent", message=message)

    def _find_unknown_tool(self, names: Iterable[str], own: Iterable[str], found: Container[str]) -> Failure | None:
        """Find the tools that the worker does not have. Of the configuration's `own` the repair keeps the others."""
        unknown = [repr(name) for name in names if name not in found]
        if not unknown:
            return None
        known = ", ".join(list(self._registry.tools)[:MAX_NAMES]) or "none"
        more = ", …" if len(self._registry.tools) > MAX_NAMES else ""
        repair = _describe_tools_repair([name for name in own if name in found])
        message = (
            f"the worker has no tool {', '.join(unknown[:MAX_NAMES])}, its tools are: {known}{more}. Point "
            f"CLEW_TOOLS or --tools at the module that defines it, or name other tools: {repair}"
        )
        return Failure(type="unknown_tool", message=message)

    def _find_unknown_model(self, models: Iterable[str], option: str) -> Failure | None:
        """Find the first model whose provider the worker does not have; `option` names another one."""
        for name in models:
            try:
                self._providers.get(name.partition(":")[0])
            except ProviderError as error:
                message = f"{error}; to name another model: {_describe_repair(option, 'PROVIDER:NAME')}"
                return Failure(type=error.type, message=message)
        return None


def _describe_repair(*options: str) -> str:
    """Describe the command that changes the session's configuration, which is at fault."""
    return f"`clew configure {activity.info().workflow_id} {shlex.join(options)}`"


def _describe_tools_repair(kept: Sequence[str]) -> str:
    """Describe the command that keeps the tools that are not at fault; `NAME` stands for unknown ones."""
    names = kept if 0 < len(kept) <= MAX_NAMES else ["NAME"]
    return _describe_repair(*(word for name in names for word in ("--tool", name)))


def _make_config(request: Prepare, agent: ResolvedAgent | None) -> SessionConfig:
    """Make the part of the configuration in force that a worker resolves, by the session's own rule."""
    fields = {name: getattr(request, name) for name in ("agent", "model", "fallbacks", "tools", "webhooks")}
    own = SessionConfig.model_validate({name: value for name, value in fields.items() if value is not None})
    return agent.config.overlay(own) if agent else own


def _list_own(request: Prepare, config: SessionConfig) -> Iterator[ToolDefinition]:
    """List the tools of Clew's own that the session has. A tool of the worker's by such a name takes its place."""
    policy, has_tools = config.context_policy or ContextPolicy(), bool(config.tools)
    clears = policy.clear_tool_results is not None if request.clears is None else request.clears
    if clears or (has_tools and (request.archived or request.execution is not None)):
        has_tools = True
        yield read_result
    if request.clears_media or policy.clear_media is not None or (has_tools and request.views):
        yield view_blob


def _count_schemas(tools: Iterable[ResolvedTool], encoding: EncodingName) -> tuple[ResolvedTool, ...]:
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
