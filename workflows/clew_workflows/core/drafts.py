"""Facts: what a decision commits, in the payloads and the refs that the thread's entries have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from clew.contract import SessionConfig
from clew.thread.entries import Draft, Entry
from clew_workflows.core.state import AskedCall, Input, Request, Run, State
from clew_workflows.protocol import Failure, ModelAnswered, ResolvedTool, ToolAnswered

_ELSEWHERE = {"content", "request_id", "metadata", "output_schema"}
"""Fields of a message that its entry holds under a name of its own."""
EXCERPT = 200
"""Characters that an `input` entry keeps of what did not enter the thread."""


def user_message(state: State, run: Run, content: str, given: Input | None = None, **payload: Any) -> Draft:
    """What a user asked, or what was steered in or injected meanwhile."""
    refs: dict[str, Any] = {}
    if given:
        payload |= {"input_id": given.input_id, "source": given.source}
        # The call that will be the first to include it.
        refs = {"source": given.source, "call_id": f"call-{state.calls + 1}"}
        if given.request_id:
            refs["request_id"] = given.request_id
        if given.metadata:
            payload["metadata"] = given.metadata
    return _message(state, run, {"role": "user", "content": content} | payload, refs)


def request_message(state: State, run: Run) -> Draft:
    """The message that opened a run, with the settings that it brought."""
    request, payload = run.request, dict[str, Any]()
    if request.metadata:
        payload["metadata"] = request.metadata
    if request.output_schema is not None:
        payload["output_schema"] = request.output_schema
    if request.given and (settings := request.given.model_dump(mode="json", exclude_unset=True, exclude=_ELSEWHERE)):
        payload["settings"] = settings
    return user_message(state, run, request.content, **payload)


def assistant_message(state: State, run: Run, answer: ModelAnswered, asked: tuple[AskedCall, ...]) -> Draft:
    """A model's reply, with the recipe of what it was shown for it."""
    reply = answer.reply
    payload: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if asked:
        payload["tool_calls"] = [
            {"id": call.tool_call_id, "name": call.name, "arguments": call.arguments} for call in asked
        ]
    if reply.thinking:
        payload["thinking"] = reply.thinking
    if reply.provider_data:
        payload["provider_data"] = reply.provider_data
    return _message(state, run, payload | {"recipe": _recipe(run, answer)}, call_refs(run))


def tool_message(state: State, run: Run, call: AskedCall, answer: ToolAnswered) -> Draft:
    """A tool's result. Where a person has changed the call, it says to what."""
    payload: dict[str, Any] = {"role": "tool", "tool_call_id": call.tool_call_id, "name": call.name}
    if call.edited:
        payload["edited_arguments"] = call.arguments
    payload |= result(answer)
    return _message(state, run, payload, call_refs(run) | {"tool_call_id": call.tool_call_id})


def result(answer: ToolAnswered) -> dict[str, Any]:
    """What a tool said, as the payload of its result has it."""
    said: dict[str, Any] = {"content": answer.content}
    if answer.result:
        said["result"] = answer.result.model_dump()
    if answer.is_error:
        said["is_error"] = True
    if answer.in_doubt:
        said["in_doubt"] = True
    return said


def without_result(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a tool's result without what the tool said."""
    said = ("content", "result", "is_error", "in_doubt")
    return {name: value for name, value in payload.items() if name not in said}


def config_entry(state: State) -> Draft:
    """All that shapes a model's input from here on, complete, so that no later default can change it."""
    payload = configuration(state) | {"tools": [tool.spec for tool in state.tools or ()]}
    return Draft("config", payload, {"session_id": state.session_id})


def configuration(state: State) -> dict[str, Any]:
    """The configuration in force as JSON: every field of `SessionConfig` with its value, the policy complete."""
    config = state.config
    return config.model_dump(mode="json") | {
        "model_options": config.model_options.model_dump(mode="json", exclude_none=True),
        "limits": config.limits.model_dump(mode="json", exclude_none=True),
        "context_policy": state.policy.model_dump(mode="json"),
    }


def configured(entry: Entry) -> SessionConfig:
    """The configuration that a `config` entry tells of, its policy aside."""
    told = {name: value for name, value in entry.payload.items() if name in SessionConfig.model_fields}
    told["tools"] = [tool["name"] for tool in entry.payload["tools"]]
    del told["context_policy"]
    return SessionConfig.model_validate_json(to_json(told))


def unresolved_tools(entry: Entry) -> tuple[ResolvedTool, ...]:
    """The tools of a `config` entry, which has their schemas alone; a worker resolves them before one is called."""
    return tuple(
        ResolvedTool(spec=spec, timeout_seconds=60, max_attempts=1, idempotent=False)
        for spec in entry.payload["tools"]
    )


def run_entry(state: State, run: Run, request_id: str, payload: dict[str, Any]) -> Draft:
    """The outcome of a request."""
    return Draft("run", {"event": "finished"} | payload, run_refs(state, run) | {"request_id": request_id})


def error_entry(
    state: State, run: Run, failure: Failure, refs: dict[str, Any] | None = None, **details: Any
) -> Draft:
    """What went wrong in a run."""
    payload = failure.model_dump(include={"type", "message"}) | {"details": failure.details | details}
    return Draft("error", payload, run_refs(state, run) | (refs or {}))


def input_entry(state: State, event: str, kind: str, reason: str, content: str, **ids: str | None) -> Draft:
    """What did not enter the thread, or was overtaken."""
    payload = {"event": event, "kind": kind[:EXCERPT], "reason": reason, "content": content[:EXCERPT]}
    payload |= {name: value for name, value in ids.items() if value is not None}
    return Draft("input", payload, {"session_id": state.session_id})


def dropped_input(state: State, given: Input, reason: str, request_id: str | None = None) -> Draft:
    """An input that was accepted and that no model has read."""
    ids = {"input_id": given.input_id, "request_id": given.request_id or request_id}
    return input_entry(state, "dropped", given.kind, reason, given.content, **ids)


def dropped_request(state: State, request: Request, reason: str) -> tuple[Draft, ...]:
    """What was asked and never ran: a message, or the inputs of a follow-up run."""
    if request.inputs:
        return tuple(dropped_input(state, given, reason, request.request_id) for given in request.inputs)
    return (input_entry(state, "dropped", "message", reason, request.content, request_id=request.request_id),)


def session_entry(state: State, event: str, reason: str | None, **told: Any) -> Draft:
    """What became of the session as a whole, and why."""
    payload = {"event": event} | told | ({"reason": reason} if reason else {})
    return Draft("session", payload, {"session_id": state.session_id})


def run_refs(state: State, run: Run) -> dict[str, Any]:
    """What correlates a fact with its run."""
    return {"session_id": state.session_id, "request_id": run.request.request_id, "run_id": run.run_id}


def call_refs(run: Run) -> dict[str, Any]:
    """What correlates a fact with the run's newest model call."""
    if run.call is None:
        return {}
    refs: dict[str, Any] = {"call_id": run.call.call_id, "iteration": run.call.iteration}
    if run.call.parent_call_id:
        refs["parent_call_id"] = run.call.parent_call_id
    return refs


def _message(state: State, run: Run, payload: dict[str, Any], refs: dict[str, Any]) -> Draft:
    refs = run_refs(state, run) | refs
    lane: dict[str, Any] = {"context_ref": run.request.context_ref}
    ids = {"request_id": refs["request_id"], "run_id": run.run_id}
    return Draft("ai_message", lane | payload | ids, refs)


def _recipe(run: Run, answer: ModelAnswered) -> dict[str, Any]:
    """What the model was shown for this reply, in terms of the thread: enough to show it again."""
    call = run.call
    assert call is not None
    recipe: dict[str, Any] = {
        "context_ref": call.context_ref,
        "basis_seq": call.at_seq,
        "model": call.model,
        "model_options": call.options.model_dump(mode="json", exclude_none=True),
        "policy_hash": answer.policy_hash,
        "digest": answer.digest,
        "input_tokens": answer.input_tokens,
        "usage": answer.reply.usage.as_json(),
        "attempt": answer.attempt,
        "stop_reason": answer.reply.stop_reason,
    }
    if answer.epoch is not None:
        recipe |= {"epoch": list(answer.epoch), "shared_prefix_tokens": answer.shared_prefix_tokens}
    if answer.cleared_tool_results is not None:
        recipe["cleared_tool_results"] = answer.cleared_tool_results
    if answer.cut_tool_results is not None:
        recipe["cut_tool_results"] = {call_id: list(shown) for call_id, shown in answer.cut_tool_results.items()}
    if call.context_policy:
        recipe["context_policy"] = call.context_policy.model_dump(mode="json", exclude_unset=True)
    if answer.prices:
        recipe["prices"] = [price.model_dump(exclude_defaults=True) for price in answer.prices]
    if call.token_ratio is not None:
        recipe["token_ratio"] = call.token_ratio
    if run.request.output_schema is not None:
        recipe["output_schema_seq"] = run.opened_seq
    return recipe
