"""Requests: a message with the session's settings filled in."""

from __future__ import annotations

from dataclasses import replace

from clew.context.projection import find_projector
from clew.contract import MessageInput
from clew_workflows.core.profiles import is_known
from clew_workflows.core.state import Input, Request, State

DEFAULT_OUTPUT_TOKENS = 4096
"""For a reply under a policy that reserves nothing; some providers want a number."""


def make_request(state: State, message: MessageInput, request_id: str) -> Request:
    """The request that a message makes of the session's settings and its own.

    A model of its own brings the policy that a worker has chosen for it, unless the agent has chosen one. Until a
    worker has told of that model, which is before the run's first call, the session's policy stands in unchecked.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
    """
    config, policy = state.config, message.context_policy
    model = message.model or config.model
    own = state.profiles.get(model)
    if own and model != config.model and config.context_policy is None:
        policy = own.policy.overlay(policy)
    in_force = state.policy.overlay(policy)
    if is_known(state, model) or config.context_policy is not None:
        in_force.ensure_usable()
    find_projector(in_force.projector)
    options = config.model_options.overlay(message.model_options)
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
        message.timeout_seconds or config.request_timeout_seconds,
        message.metadata,
        message.output_schema,
        message,
    )


def make_follow_up(state: State, request_id: str, inputs: tuple[Input, ...]) -> Request:
    """The request of a run that answers what an earlier one has not read, under the session's configuration."""
    return replace(make_request(state, MessageInput(content=""), request_id), message=None, inputs=inputs)


def renew_request(state: State, request: Request) -> Request:
    """The request under the lane and the configuration that are in force now; they may have changed meanwhile.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy and the session's can no longer be used together.
    """
    if request.message is None:
        return make_follow_up(state, request.request_id, request.inputs)
    return make_request(state, request.message, request.request_id)
