"""Requests: a message with the session's settings filled in."""

from __future__ import annotations

from dataclasses import replace

from clew.contract import MessageInput
from clew.policy import resolve
from clew.projection import projector_named
from workflows.defaults import suiting
from workflows.state import Request, State

DEFAULT_OUTPUT_TOKENS = 4096
"""For a reply under a policy that reserves nothing; some providers want a number."""


def request_of(state: State, message: MessageInput, request_id: str) -> Request:
    """The request that a message makes of the session's settings and its own.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
    """
    config, policy = state.config, message.context_policy
    if message.model and message.model != config.model and config.context_policy is None:
        policy = resolve(request=policy, agent=suiting(state, message.model))
    in_force = state.policy.overlaid(policy).checked()
    projector_named(in_force.projector)
    options = config.model_options.overlaid(message.model_options)
    if options.max_output_tokens is None:
        reserved = in_force.reserve_output_tokens or DEFAULT_OUTPUT_TOKENS
        options = options.model_copy(update={"max_output_tokens": reserved})
    return Request(
        request_id,
        message.content,
        state.context_ref,
        message.model or config.model,
        options,
        policy,
        message.max_iterations or config.max_iterations,
        message.timeout_seconds or config.request_timeout_seconds,
        message.metadata,
        message.output_schema,
        given=message,
    )


def renewed(state: State, request: Request) -> Request:
    """The request as the session would take it now: while it waited, lane and configuration may have changed.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy and the session's can no longer be used together.
    """
    if request.given is None:
        return replace(request, context_ref=state.context_ref)
    return request_of(state, request.given, request.request_id)
