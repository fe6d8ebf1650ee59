"""Asks the model calls of a recorded thread again, under another agent, and compares the replies.

Each call gets the context that it had, up to the same entry, but with the agent's system prompt, tools, policy and
model. The entries of the thread stay as recorded: a later call is asked as if the recorded replies and results had
come before it. No tool is called, and no session changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from clew.agents import Agent
from clew.tools import ToolDefinition
from clew_activities.model.call_model import prepare_call
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels, choose_policy, find_prices
from clew_activities.model.reply_in_progress import add_cost
from clew_activities.providers import (
    ModelRequest,
    ProviderError,
    Providers,
    ProvidersUnusable,
    load_providers,
    make_http_client,
    stream,
)
from clew_activities.tools.registry import AgentsUnusable, Tools, ToolsUnusable, load_agents, load_tools
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.errors import ContextOverflow, InvalidInput, Refusal
from clew_workflows.contract.messages import ToolSpec
from clew_workflows.contract.names import BUILT_IN_TOOLS
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import AssistantMessage, ConfigPayload, Recipe
from clew_workflows.contract.policy import resolve
from clew_workflows.session.requests import DEFAULT_OUTPUT_TOKENS
from clew_workflows.thread.context.contexts import ModelSettings, find_own_settings, rebuild_context, reconfigure
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

# What an evaluation on the command line needs: an agent, the tools that it names, the model providers.


def load_evaluation_settings(
    environ: Mapping[str, str],
    agents: Iterable[str],
    tools: Iterable[str],
    name: str | None = None,
    model: str | None = None,
) -> tuple[Agent, Tools, Providers]:
    """Import the modules and read the variables of the model providers.

    Args:
        environ: The environment variables.
        agents: Modules that define agents.
        tools: Modules that define tools, and files that declare some.
        name: The agent; None: the modules define only one.
        model: The model that is asked; None: the agent's.

    Raises:
        InvalidInput: A module, a variable or the model cannot be used, or the modules do not define the agent.
    """
    try:
        chosen = _choose(load_agents(agents), name)
        return replace(chosen, model=model) if model else chosen, load_tools(tools), load_providers(environ)
    except (AgentsUnusable, ToolsUnusable, ProvidersUnusable, TypeError) as error:
        raise InvalidInput(str(error)) from error


def _choose(agents: Iterable[Agent], name: str | None) -> Agent:
    by_name = {agent.name: agent for agent in agents}
    if name is None and len(by_name) == 1:
        return next(iter(by_name.values()))
    if name is None or name not in by_name:
        problem = "name an agent" if name is None else f"no agent {name!r}"
        raise InvalidInput(f"{problem}: the modules define {', '.join(by_name)}")
    return by_name[name]


CALLS_AT_ONCE = 4
"""Model calls that run at the same time by default."""
ATTEMPTS = 4
"""Most attempts of a model call whose provider asks for a retry."""
FIRST_PAUSE_SECONDS = 1.0
"""Seconds before the first retry, where the provider sets no time; each pause is twice as long as the one before."""
LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause before a retry."""


@dataclass(frozen=True, slots=True)
class TurnReply:
    """A model's reply to one context.

    Attributes:
        text: The text.
        tool_calls: The tool calls: the name and the arguments of each.
        usage: Tokens, and the cost where the prices are known.
    """

    text: str
    tool_calls: tuple[tuple[str, Mapping[str, Any]], ...]
    usage: Usage

    def as_dict(self) -> dict[str, Any]:
        """The reply as plain JSON."""
        calls = [{"name": name, "arguments": dict(arguments)} for name, arguments in self.tool_calls]
        return {"text": self.text, "tool_calls": calls, "usage": self.usage.model_dump(mode="json")}


@dataclass(frozen=True, slots=True)
class Turn:
    """A recorded model call, and the reply to it under the other agent.

    Attributes:
        seq: The seq of the recorded reply.
        call_id: The id of the recorded call.
        recorded: The recorded reply.
        reply: The reply under the other agent; None: there is none.
        problem: Why there is none.
    """

    seq: int
    call_id: str
    recorded: TurnReply
    reply: TurnReply | None = None
    problem: str | None = None

    @property
    def same_text(self) -> bool:
        """Whether both replies have the same text, except for white space around it."""
        return self.reply is not None and self.reply.text.strip() == self.recorded.text.strip()

    @property
    def same_calls(self) -> bool:
        """Whether both replies call the same tools with the same arguments, in the same order."""
        return self.reply is not None and self.reply.tool_calls == self.recorded.tool_calls

    def as_dict(self) -> dict[str, Any]:
        """The turn as plain JSON."""
        value: dict[str, Any] = {"seq": self.seq, "call_id": self.call_id, "recorded": self.recorded.as_dict()}
        if self.reply is None:
            return value | {"problem": self.problem}
        return value | {
            "reply": self.reply.as_dict(),
            "same_text": self.same_text,
            "same_calls": self.same_calls,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model calls of a thread, asked again under another agent.

    Attributes:
        agent: The agent's name.
        model: The model that was asked.
        turns: Each model call, in order.
    """

    agent: str
    model: str
    turns: tuple[Turn, ...]

    @property
    def recorded_usage(self) -> Usage:
        """The usage of the recorded calls that were answered again."""
        return _sum_usage(turn.recorded for turn in self.turns if turn.reply)

    @property
    def usage(self) -> Usage:
        """The usage under the other agent."""
        return _sum_usage(turn.reply for turn in self.turns if turn.reply)

    def as_dict(self) -> dict[str, Any]:
        """The evaluation as plain JSON."""
        return {
            "agent": self.agent,
            "model": self.model,
            "turns": [turn.as_dict() for turn in self.turns],
            "same_text": sum(turn.same_text for turn in self.turns),
            "same_calls": sum(turn.same_calls for turn in self.turns),
            "problems": sum(turn.reply is None for turn in self.turns),
            "recorded_usage": self.recorded_usage.model_dump(mode="json"),
            "usage": self.usage.model_dump(mode="json"),
        }


async def evaluate_thread(
    entries: Iterable[Entry],
    agent: Agent,
    providers: Providers,
    *,
    tools: Mapping[str, ToolDefinition] | None = None,
    calls_at_once: int = CALLS_AT_ONCE,
    own_models: OwnModels = NO_OWN_MODELS,
) -> Evaluation:
    """Ask every model call of a complete thread again under an agent.

    Args:
        entries: All entries of the thread, in order.
        agent: The agent. What callers have set over a recorded agent's configuration is not kept.
        providers: The model providers; the agent's model names one of them.
        tools: The tools that the agent names by a string. Absent ones are those that the thread recorded.
        calls_at_once: Model calls that run at the same time.
        own_models: The sizes and the prices of models of one's own.

    Raises:
        InvalidInput: The agent names a tool that is neither in `tools` nor in the thread, or there is no provider of
            its model.
        InvalidTokenBudget: The agent's policy leaves no budget.
    """
    thread = Thread(entries)
    replies = [(entry, recipe) for entry in thread if (recipe := entry.recipe)]
    settings = _make_settings(thread, agent, tools or {}, own_models)
    try:
        providers.get(settings.model.partition(":")[0])
    except ProviderError as error:
        raise InvalidInput(f"model {settings.model!r}: {error}") from error
    changed = reconfigure(thread, settings)
    limit = asyncio.Semaphore(calls_at_once)
    async with make_http_client() as http:
        caller = _Caller(http, providers, own_models, settings.model, _choose_options(agent, settings))

        async def evaluate_turn(entry: Entry, recipe: Recipe) -> Turn:
            turn = Turn(entry.seq, entry.refs.get("call_id", ""), _read_reply(entry, recipe))
            async with limit:
                try:
                    context = rebuild_context(
                        changed, replace(recipe, model=settings.model), find_own_settings(thread, recipe)
                    )
                    return replace(turn, reply=await caller.call(context))
                except (ProviderError, ContextOverflow, Refusal) as error:
                    return replace(turn, problem=f"{error.type}: {error}")

        turns = await asyncio.gather(*(evaluate_turn(entry, recipe) for entry, recipe in replies))
    return Evaluation(agent.name, settings.model, tuple(turns))


@dataclass(frozen=True, slots=True)
class _Caller:
    """Calls one model."""

    http: httpx.AsyncClient
    providers: Providers
    own_models: OwnModels
    model: str
    options: ModelOptions

    async def call(self, context: Projection) -> TurnReply:
        """Call the model with a context; repeat the call where the provider's error allows it.

        Raises:
            ProviderError: The last attempt failed.
        """
        pause = FIRST_PAUSE_SECONDS
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._call_once(context)
            except ProviderError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(min(error.retry_after or pause, LONGEST_PAUSE_SECONDS))
                pause *= 2
        return await self._call_once(context)

    async def _call_once(self, context: Projection) -> TurnReply:
        provider_name, _, name = self.model.partition(":")
        provider = self.providers.get(provider_name)
        request = ModelRequest(
            model=name,
            messages=context.messages,
            tools=context.tool_spec,
            options=self.options,
            output_schema=context.output_schema,
        )
        request, decoder = prepare_call(provider, request, self.providers.redaction)
        reply = await stream(self.http, provider, request, decoder)
        usage = add_cost(find_prices(self.model, self.own_models), reply.usage)
        calls = tuple((call.name, call.arguments) for call in reply.tool_calls)
        return TurnReply(reply.text, calls, usage.model_copy(update={"model_calls": 1}))


def _make_settings(
    thread: Thread, agent: Agent, tools: Mapping[str, ToolDefinition], own_models: OwnModels
) -> ModelSettings:
    config = agent.config
    recorded = _collect_recorded_tools(thread)
    known = recorded | {tool.name: tool.spec for tool in (*tools.values(), *agent.own_tools)}
    names = list(config.tools)
    names += [name for name in BUILT_IN_TOOLS if name in recorded and names and name not in names]
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(f"agent {agent.name!r} has a tool {unknown[0]!r}, which is not defined here")
    return ModelSettings(
        model=agent.model,
        system_prompt=config.system_prompt,
        tools=[known[name] for name in names],
        policy=resolve(agent=config.context_policy or choose_policy(agent.model, own_models)),
    )


def _collect_recorded_tools(thread: Thread) -> dict[str, ToolSpec]:
    """Collect the newest schema of every tool that the thread records, by the tool's name."""
    return {tool["name"]: tool for entry in thread.configs for tool in entry.read(ConfigPayload).tools}


def _choose_options(agent: Agent, settings: ModelSettings) -> ModelOptions:
    options = agent.config.model_options
    if options.max_output_tokens is not None:
        return options
    reserved = settings.policy.reserve_output_tokens or DEFAULT_OUTPUT_TOKENS
    return options.model_copy(update={"max_output_tokens": reserved})


def _read_reply(entry: Entry, recipe: Recipe) -> TurnReply:
    message = entry.read(AssistantMessage)
    calls = tuple((call["name"], call["arguments"]) for call in message.tool_calls or ())
    return TurnReply(message.text, calls, recipe.call_usage)


def _sum_usage(replies: Iterable[TurnReply]) -> Usage:
    total = Usage()
    for reply in replies:
        total = total.plus(reply.usage)
    return total
