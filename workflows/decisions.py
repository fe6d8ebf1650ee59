"""The session's decisions: pure functions from what is and what happened to what follows.

A decision says what the session becomes, which facts enter the thread, in order, and what is asked of the world
next. The clock and the thread's next seq are passed in as a `Moment`; the workflow commits, then acts.
What the world answers, or fails at, after the session has closed changes nothing: its outcome is told already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clew.contract import MessageInput, SessionConfig
from clew.entries import Draft
from clew.policy import ContextPolicy, resolve
from clew.projection import projector_named
from workflows.effects import (
    AskedTool,
    CallModel,
    Effect,
    Event,
    Failure,
    ModelAnswered,
    Prepare,
    Prepared,
    RunTool,
    RunTools,
    ToolAnswered,
    ToolsAnswered,
)
from workflows.state import AskedCall, Moment, Request, Run, State

DEFAULT_OUTPUT_TOKENS = 4096
"""For a reply under a policy that reserves nothing; some providers want a number."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows: the next state, the facts to commit, in order, and the effect to carry out."""

    state: State
    commit: tuple[Draft, ...] = ()
    effect: Effect | None = None

    def after(self, *earlier: Draft) -> Decision:
        """This decision, with other facts committed before its own."""
        return replace(self, commit=(*earlier, *self.commit))


def begin(session_id: str, config: SessionConfig) -> Decision:
    """A session starts: a worker resolves its tools and its model before anything else.

    Raises:
        InvalidInput, InvalidTokenBudget: the configuration's policy cannot be used.
    """
    agent = config.context_policy or ContextPolicy.for_model(config.model)
    state = State(session_id, config, policy=resolve(agent=agent))
    projector_named(state.policy.projector)
    return Decision(state, effect=Prepare(model=config.model, tools=config.tools))


def happened(state: State, event: Event, at: Moment) -> Decision:
    """An effect has come to its end; nothing of it matters to a session that has closed."""
    if state.closed:
        return Decision(state)
    match event:
        case Prepared():
            return prepared(state, event, at)
        case ModelAnswered():
            return model_answered(state, event, at)
        case ToolsAnswered():
            return tools_answered(state, event.answers, at)
        case Failure() if state.phase == "preparing":
            return prepared(state, Prepared(tools=state.tools or (), problem=event), at)
        case Failure(type="timeout"):
            return fail(state, timed_out(_running(state), event.message))
        case Failure():
            return fail(state, event)


def prepared(state: State, answer: Prepared, at: Moment) -> Decision:
    """A worker has resolved the configuration, or said what it does not know.

    A session that cannot be prepared still lives: its requests fail with the reason, and each tries again.
    """
    changed, early = state.tools != answer.tools, state.early
    state = replace(state, tools=answer.tools, problem=answer.problem, phase="idle", early=())
    drafts = (_config_entry(state), *early) if changed else ()
    if state.waiting:
        state, asked = _opened(replace(state, waiting=None), state.waiting, at)
        drafts = (*drafts, asked)
    if not state.run:
        return Decision(state, drafts)
    at = replace(at, rev=at.rev + len(drafts))
    return (fail(state, state.problem) if state.problem else call_model(state, at)).after(*drafts)


def request_of(state: State, message: MessageInput, request_id: str) -> Request:
    """The request that a message makes of the session's settings and its own.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
    """
    config, policy = state.config, message.context_policy
    if message.model and message.model != config.model and config.context_policy is None:
        policy = resolve(request=policy, agent=ContextPolicy.for_model(message.model))
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
    )


def accept(state: State, request: Request, at: Moment) -> Decision:
    """A message was accepted: it opens a run, as soon as the session is prepared."""
    if state.tools is None:
        return Decision(replace(state, waiting=request))
    return open_run(state, request, at)


def reject(state: State, signal: str, reason: str, content: str) -> Decision:
    """A signal cannot be refused to its sender, so that it was refused becomes a fact."""
    payload = {"event": "rejected", "kind": signal[:200], "reason": reason, "content": content}
    draft = Draft("input", payload, {"session_id": state.session_id})
    if state.tools is None:
        return Decision(replace(state, early=(*state.early, draft)))
    return Decision(state, (draft,))


def open_run(state: State, request: Request, at: Moment) -> Decision:
    """The user's message is committed before any model is called."""
    state, asked = _opened(state, request, at)
    if state.problem:
        # The worker may have learnt since; what it does not know was never final.
        preparing = Prepare(model=state.config.model, tools=state.config.tools)
        return Decision(replace(state, phase="preparing"), (asked,), preparing)
    return call_model(state, replace(at, rev=at.rev + 1)).after(asked)


def call_model(state: State, at: Moment) -> Decision:
    """The next model call of the run, pinned to all that is committed by now."""
    run = _running(state)
    limit = state.config.limits.max_total_tokens
    spent = state.usage.input_tokens + state.usage.output_tokens
    if limit is not None and spent >= limit:
        message = f"the session has used {spent} tokens of the {limit} that its limits allow"
        return fail(state, Failure(type="token_limit", message=message))
    if at.time >= run.deadline:
        return fail(state, timed_out(run))
    request = run.request
    call = CallModel(
        request_id=request.request_id,
        run_id=run.run_id,
        call_id=f"call-{state.calls + 1}",
        iteration=run.iteration + 1,
        context_ref=request.context_ref,
        at_seq=at.rev - 1,
        model=request.model,
        options=request.options,
        context_policy=request.context_policy,
        parent_call_id=run.call.call_id if run.call else None,
    )
    run = replace(run, iteration=call.iteration, call=call, asked=())
    return Decision(replace(state, run=run, calls=state.calls + 1, phase="awaiting_model"), (), call)


def model_answered(state: State, answer: ModelAnswered, at: Moment) -> Decision:
    """The reply is committed; it ends the run, or asks for tools."""
    run, reply = _running(state), answer.reply
    spent = reply.usage.model_copy(update={"model_calls": 1})
    asked = tuple(
        _asked(state, f"tool-{state.tool_calls + number}", tool) for number, tool in enumerate(reply.tool_calls, 1)
    )
    payload: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if asked:
        payload["tool_calls"] = [
            {"id": call.tool_call_id, "name": call.name, "arguments": call.arguments} for call in asked
        ]
    if reply.thinking:
        payload["thinking"] = reply.thinking
    if reply.provider_data:
        payload["provider_data"] = reply.provider_data
    message = _message(state, run, payload | {"recipe": _recipe(run, answer)}, call=True)
    run = replace(
        run,
        usage=run.usage.plus(spent),
        answer_seq=at.rev if reply.content else run.answer_seq,
        asked=asked,
    )
    state = replace(state, run=run, usage=state.usage.plus(spent), tool_calls=state.tool_calls + len(asked))
    if not asked:
        reason = "max_output_tokens" if reply.stop_reason == "length" else "final_answer"
        return finish(state, "completed", reason).after(message)
    if run.iteration >= run.request.max_iterations:
        return finish(state, "completed", "max_iterations").after(message)
    return _run_tools(state, replace(at, rev=at.rev + 1)).after(message)


def tools_answered(state: State, answers: Sequence[ToolAnswered], at: Moment) -> Decision:
    """All results of a round are there; they are committed in call order, and the model reads them."""
    run = _running(state)
    results = iter(answers)
    asked = tuple(call if call.answer else replace(call, answer=next(results)) for call in run.asked)
    return _commit_results(replace(state, run=replace(run, asked=asked)), at)


def fail(state: State, failure: Failure) -> Decision:
    """The run cannot go on: the failure becomes a fact, and the run ends."""
    payload = failure.model_dump(include={"type", "message", "details"})
    error = Draft("error", payload, _refs(state, _running(state)))
    return finish(state, "failed", failure.type, failure).after(error)


def close(state: State, at: Moment) -> Decision:
    """The session ends. What runs is cancelled; what was accepted and never ran leaves its outcome too."""
    drafts: list[Draft] = []
    if state.tools is None:
        early, state = state.early, replace(state, tools=(), early=())
        drafts += [_config_entry(state), *early]
    if state.waiting:
        dropped = {"event": "dropped", "kind": "message", "reason": "closed", "content": state.waiting.content[:200]}
        run = Run(f"run-{state.runs + 1}", state.waiting, deadline=at.time)
        state = replace(state, waiting=None, run=run, runs=state.runs + 1)
        drafts.append(Draft("input", dropped, _refs(state, run)))
    if state.run:
        ended = finish(state, "cancelled", "closed")
        state, drafts = ended.state, [*drafts, *ended.commit]
    return Decision(replace(state, phase="closed"), tuple(drafts))


def finish(state: State, status: str, reason: str, failure: Failure | None = None) -> Decision:
    """The terminal transition: dangling tool calls are closed, then the outcome is committed."""
    run = _running(state)
    closers = [
        _result(state, run, call, ToolAnswered(content=_NOT_RUN.format(reason=reason), is_error=True))
        for call in run.asked
    ]
    payload: dict[str, Any] = {
        "event": "finished",
        "status": status,
        "termination_reason": reason,
        "usage": run.usage.as_json(),
        "iterations": run.iteration,
    }
    if run.answer_seq is not None:
        payload["answer_seq"] = run.answer_seq
    if failure:
        payload["error"] = failure.model_dump(include={"type", "message", "retryable"})
    ended = Draft("run", payload, _refs(state, run))
    return Decision(replace(state, run=None, phase="idle"), (*closers, ended))


def timed_out(run: Run, last: str | None = None) -> Failure:
    """The request's time is over; `last` is what stood in its way."""
    message = f"no answer within {run.request.timeout_seconds} seconds"
    return Failure(type="timeout", message=f"{message}; last: {last}" if last else message, retryable=True)


_NOT_RUN = "[not run: the run ended ({reason}) before this tool call was answered]"


def _opened(state: State, request: Request, at: Moment) -> tuple[State, Draft]:
    runs = state.runs + 1
    run = Run(f"run-{runs}", request, deadline=at.time + request.timeout_seconds)
    payload: dict[str, Any] = {"role": "user", "content": request.content}
    if request.metadata:
        payload["metadata"] = request.metadata
    return replace(state, runs=runs, run=run), _message(state, run, payload)


def _run_tools(state: State, at: Moment) -> Decision:
    run = _running(state)
    by_name = {tool.spec["name"]: tool for tool in state.tools or ()}
    calls = tuple(
        (
            RunTool(
                request_id=run.request.request_id,
                run_id=run.run_id,
                call_id=run.call.call_id if run.call else "",
                tool_call_id=call.tool_call_id,
                name=call.name,
                arguments=call.arguments,
                max_result_bytes=state.config.limits.max_tool_result_bytes,
            ),
            by_name[call.name],
        )
        for call in run.asked
        if call.answer is None
    )
    if not calls:
        return _commit_results(state, at)
    return Decision(replace(state, phase="awaiting_tools"), (), RunTools(calls=calls))


def _commit_results(state: State, at: Moment) -> Decision:
    run = _running(state)
    results = tuple(_result(state, run, call, call.answer) for call in run.asked if call.answer)
    state = replace(state, run=replace(run, asked=()))
    return call_model(state, replace(at, rev=at.rev + len(results))).after(*results)


def _asked(state: State, tool_call_id: str, tool: AskedTool) -> AskedCall:
    """A tool call under an id of our own; what cannot be run is answered at once, for the model to read."""
    names = [resolved.spec["name"] for resolved in state.tools or ()]
    answer = None
    if tool.name not in names:
        known = f"the tools are: {', '.join(names)}" if names else "there are no tools"
        answer = ToolAnswered(content=f"error: unknown tool {tool.name!r}; {known}", is_error=True)
    elif tool.malformed is not None:
        content = f"error: the arguments were not a JSON object: {tool.malformed[:1000]}"
        answer = ToolAnswered(content=content, is_error=True)
    return AskedCall(tool_call_id, tool.name, tool.arguments, answer)


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
    if call.context_policy:
        recipe["context_policy"] = call.context_policy.model_dump(mode="json", exclude_unset=True)
    return recipe


def _message(state: State, run: Run, payload: dict[str, Any], call: bool = False, **refs: str) -> Draft:
    request_id = run.request.request_id
    lane: dict[str, Any] = {"context_ref": run.request.context_ref}
    ids = {"request_id": request_id, "run_id": run.run_id}
    return Draft("ai_message", lane | payload | ids, _refs(state, run, call) | refs)


def _result(state: State, run: Run, call: AskedCall, answer: ToolAnswered) -> Draft:
    payload: dict[str, Any] = {
        "role": "tool",
        "content": answer.content,
        "tool_call_id": call.tool_call_id,
        "name": call.name,
    }
    if answer.is_error:
        payload["is_error"] = True
    return _message(state, run, payload, call=True, tool_call_id=call.tool_call_id)


def _refs(state: State, run: Run, call: bool = False) -> dict[str, Any]:
    refs: dict[str, Any] = {
        "session_id": state.session_id,
        "request_id": run.request.request_id,
        "run_id": run.run_id,
    }
    if call and run.call:
        refs |= {"call_id": run.call.call_id, "iteration": run.call.iteration}
        if run.call.parent_call_id:
            refs["parent_call_id"] = run.call.parent_call_id
    return refs


def _config_entry(state: State) -> Draft:
    """All that shapes a model's input from here on, complete, so that no later default can change it."""
    config = state.config
    payload = {
        "model": config.model,
        "model_options": config.model_options.model_dump(mode="json", exclude_none=True),
        "system_prompt": config.system_prompt,
        "context_policy": state.policy.model_dump(mode="json"),
        "tools": [tool.spec for tool in state.tools or ()],
        "encoding": config.encoding,
        "limits": config.limits.model_dump(mode="json", exclude_none=True),
    }
    return Draft("config", payload, {"session_id": state.session_id})


def _running(state: State) -> Run:
    assert state.run is not None, "no run is active"
    return state.run
