"""Requests: messages whose settings are resolved."""

from __future__ import annotations

from dataclasses import replace

from clew.context.projection import find_projector
from clew.contract import READ_RESULT, MessageInput
from clew.errors import InvalidInput, UnknownTool
from clew_workflows.core.profiles import is_known
from clew_workflows.core.run import Input, Request
from clew_workflows.core.state import State

TOOL_CHOICES = ("auto", "none", "required")
"""The values of `tool_choice` that name no tool."""
DEFAULT_OUTPUT_TOKENS = 4096
"""Most tokens of a reply under a policy that reserves none: some providers require a number."""


def make_request(
    state: State, message: MessageInput, request_id: str, failed_models: tuple[str, ...] = ()
) -> Request:
    """Resolve a message's settings over the session's. Its model is the first one that has not failed.

    Another model than the session's gets the policy that a worker has chosen for that model, unless the session's
    configuration has a policy. Until a worker has described the model, before the run's first call, the session's
    policy is used unchecked.

    Raises:
        InvalidInput: The policy names an unknown projector, its fields contradict each other, or `tool_choice` names
            no tool of the session.
        InvalidTokenBudget: The policy leaves no budget.
        UnknownTool: `tools` names a tool that the session does not have.
    """
    config, policy = state.config, message.context_policy
    fallbacks = config.fallbacks if message.fallbacks is None else message.fallbacks
    first = message.model or state.model
    remaining = [model for model in dict.fromkeys((first, *fallbacks)) if model not in failed_models]
    model, *remaining = remaining or [first]
    own = state.profiles.get(model)
    if own and model != state.model and config.context_policy is None:
        policy = own.policy.overlay(policy)
    in_force = state.policy.overlay(policy)
    if is_known(state, model) or config.context_policy is not None:
        in_force.ensure_usable()
    find_projector(in_force.projector)
    options = config.model_options.overlay(message.model_options)
    tools = _select_tools(state, message.tools)
    _check_tool_choice(state, options.tool_choice, tools)
    if options.max_output_tokens is None:
        reserved = in_force.reserve_output_tokens or DEFAULT_OUTPUT_TOKENS
        options = options.model_copy(update={"max_output_tokens": reserved})
    return Request(
        request_id,
        message.content,
        state.context_ref,
        model,
        options,
        policy,
        message.max_iterations or config.max_iterations,
        _find_timeout(state, message, request_id),
        message.metadata,
        message.output_schema,
        message,
        fallbacks=tuple(remaining),
        tools=tools,
    )


def _select_tools(state: State, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Select a request's tools, in the order of the session's; None: all of them.

    Until a worker has said which tools the session has, the names are taken unchecked.

    Raises:
        UnknownTool: The session has no tool of a name.
    """
    if names is None or state.tools is None:
        return names
    known = [tool.spec["name"] for tool in state.tools]
    if unknown := [name for name in names if name not in known]:
        raise UnknownTool(
            f"tools: {', '.join(map(repr, unknown))[:1000]} are no tools of the session: its tools are "
            f"{', '.join(known)[:1000] or 'none'}"
        )
    return tuple(name for name in known if name in names or (names and name == READ_RESULT))


def _check_tool_choice(state: State, choice: str | None, tools: tuple[str, ...] | None) -> None:
    """Refuse a choice of a tool that the request does not have, once a worker has said which tools there are."""
    if choice in (None, *TOOL_CHOICES) or state.tools is None:
        return
    names = [tool.spec["name"] for tool in state.tools] if tools is None else tools
    if choice not in names:
        raise InvalidInput(
            f"model_options.tool_choice: {choice!r} is no tool of the request: one of "
            f"{', '.join((*TOOL_CHOICES, *names))[:1000]}"
        )


def _find_timeout(state: State, message: MessageInput, request_id: str) -> int:
    """Find the time of a request. That of a subagent's task is at most what its parent has left."""
    seconds = message.timeout_seconds or state.config.request_timeout_seconds
    task = state.assignment.task if state.assignment else None
    return min(seconds, task.timeout_seconds) if task and task.request_id == request_id else seconds


def make_follow_up(
    state: State, request_id: str, inputs: tuple[Input, ...], failed_models: tuple[str, ...] = ()
) -> Request:
    """Make the request of a run that answers inputs which an earlier run has not read."""
    made = make_request(state, MessageInput(content=""), request_id, failed_models)
    return replace(made, message=None, inputs=inputs)


def renew_request(state: State, request: Request, failed_models: tuple[str, ...] = ()) -> Request:
    """Resolve a request's settings again, under the lane and the configuration in force now.

    Raises:
        InvalidInput: Its policy contradicts the session's present one.
        InvalidTokenBudget: Its policy and the session's present one leave no budget.
    """
    if request.message is None:
        return make_follow_up(state, request.request_id, request.inputs, failed_models)
    return replace(make_request(state, request.message, request.request_id, failed_models), tokens=request.tokens)
