"""Drafts: the entries that decisions commit, with their payloads and refs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from clew_workflows.contract import RunSettings
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.outcomes import OutcomeError, Usage
from clew_workflows.contract.payloads import (
    AgentVersion,
    AppliedCorrected,
    AppliedWithdraw,
    AssistantMessage,
    ConfigPayload,
    ConfigTokens,
    ErrorPayload,
    InputPayload,
    OperationPayload,
    Recipe,
    Retried,
    RunPayload,
    SessionPayload,
    Subagent,
    ToolMessage,
    UserMessage,
    list_configured_names,
)
from clew_workflows.protocol import (
    Failure,
    ModelAnswered,
    ResolvedAgent,
    ResolvedTool,
    ToolAnswered,
    number_tool_calls,
)
from clew_workflows.session.state import Child, Ending, Input, Request, RequestedCall, Run, Settings
from clew_workflows.thread.entries import Draft, Refs

_OTHER_FIELDS = {"content", "request_id", "metadata", "output_schema", "refs", "replies"}
"""Fields of a message that its entry holds outside of `settings`."""
EXCERPT_CHARACTERS = 200
"""Characters of a rejected or dropped input in its `input` entry."""


def draft_user_message(run: Run, unread: Input, call_id: str) -> Draft:
    """Draft the user message of an input, or of a message that joins the run. `call_id` is the next model call."""
    refs: Refs = {"source": unread.source, "call_id": call_id}
    if unread.request_id:
        refs["request_id"] = unread.request_id
    payload = UserMessage(
        context_ref=run.request.context_ref,
        role="user",
        content=unread.content,
        request_id=unread.request_id or run.request.request_id,
        run_id=run.run_id,
        input_id=unread.input_id,
        source=unread.source,
        metadata=unread.metadata or None,
        refs=unread.refs or None,
    )
    return Draft(payload, make_run_refs(run) | refs, unread.tokens)


def draft_request_message(run: Run, call_id: str) -> Draft:
    """Draft the user message that opens a run, with the message's own settings. `call_id` is its first model call."""
    request = run.request
    settings = (
        request.message.model_dump(mode="json", exclude_unset=True, exclude=_OTHER_FIELDS) if request.message else {}
    )
    payload = UserMessage(
        context_ref=request.context_ref,
        role="user",
        content=request.content,
        request_id=request.request_id,
        run_id=run.run_id,
        metadata=request.metadata or None,
        output_schema=request.output_schema,
        settings=settings or None,
        refs=(request.message and request.message.refs) or None,
    )
    return Draft(payload, make_run_refs(run) | {"call_id": call_id}, request.tokens)


GIVEN = "caller"
"""The `source` in the refs of replies and results that came with a message: no model of the session wrote them."""


def draft_replies(run: Run, earlier_calls: int) -> tuple[Draft, ...]:
    """Draft the replies that came with the message which opens a run. Their calls get ids of the session's.

    `earlier_calls`: the number of tool calls that the session has had.
    """
    request = run.request
    replies = (request.message and request.message.replies) or ()
    calls = [call for reply in replies for call in reply.tool_calls or ()]
    own_ids = {
        call.id: numbered["id"] for call, numbered in zip(calls, number_tool_calls(calls, earlier_calls), strict=True)
    }
    refs = make_run_refs(run) | {"source": GIVEN}
    made: list[Draft] = []
    for reply in replies:
        fields: Any = {
            "context_ref": request.context_ref,
            "content": reply.content,
            "request_id": request.request_id,
            "run_id": run.run_id,
        }
        if reply.role == "tool":
            own_id = own_ids[reply.tool_call_id or ""]
            payload: AssistantMessage | ToolMessage = ToolMessage(
                role="tool", tool_call_id=own_id, name=reply.name, **fields
            )
            made.append(Draft(payload, refs | {"tool_call_id": own_id}))
            continue
        named: list[ToolCall] = [
            {"id": own_ids[call.id], "name": call.name, "arguments": call.arguments}
            for call in reply.tool_calls or ()
        ]
        made.append(Draft(AssistantMessage(role="assistant", tool_calls=named or None, **fields), refs))
    return tuple(made)


def draft_assistant_message(run: Run, answer: ModelAnswered, requested: tuple[RequestedCall, ...]) -> Draft:
    """Draft a model's reply, with the recipe of its context."""
    reply = answer.reply
    calls: list[ToolCall] = [
        {"id": call.tool_call_id, "name": call.name, "arguments": call.arguments} for call in requested
    ]
    payload = AssistantMessage(
        context_ref=run.request.context_ref,
        role="assistant",
        content=reply.content,
        request_id=run.request.request_id,
        run_id=run.run_id,
        tool_calls=calls or None,
        thinking=reply.thinking or None,
        provider_data=reply.provider_data or None,
        provider_calls=list(reply.provider_calls) or None,
        citations=list(reply.citations) or None,
        interrupted=reply.stop_reason == "interrupted",
        recipe=_make_recipe(run, answer),
    )
    return Draft(payload, make_run_refs(run) | make_call_refs(run), answer.tokens)


def draft_tool_message(
    run: Run,
    call: RequestedCall,
    answer: ToolAnswered,
    children: Iterable[Child] = (),
    settings: RunSettings | None = None,
) -> Draft:
    """Draft a tool's result, with the subagent that works on the call, and arguments that a person has edited."""
    refs = make_run_refs(run) | make_call_refs(run) | {"tool_call_id": call.tool_call_id}
    if answer.subagent is None:
        answer = answer.model_copy(update={"subagent": _describe_child(children, call)})
    return Draft(make_tool_result(run, call, answer, settings), refs, answer.tokens)


def _describe_child(children: Iterable[Child], call: RequestedCall) -> Subagent | None:
    """Describe the session that works on a call; None: none was started."""
    return next(
        (
            Subagent(session_id=child.session_id, agent=child.agent)
            for child in children
            if child.tool_call_id == call.tool_call_id and child.step != "start"
        ),
        None,
    )


def make_tool_result(
    run: Run, call: RequestedCall, answer: ToolAnswered, settings: RunSettings | None = None
) -> ToolMessage:
    """Make the payload of a tool's result, with the settings that came with it."""
    return ToolMessage(
        context_ref=run.request.context_ref,
        role="tool",
        content=answer.content,
        request_id=run.request.request_id,
        run_id=run.run_id,
        tool_call_id=call.tool_call_id,
        name=call.name,
        edited_arguments=call.arguments if call.edited else None,
        result=answer.result,
        is_error=answer.is_error,
        in_doubt=answer.in_doubt,
        note_tokens=answer.note_tokens,
        pieces=answer.pieces,
        subagent=answer.subagent,
        by=answer.by,
        problem=answer.problem,
        settings=settings.model_dump(mode="json", exclude_unset=True) if settings else None,
    )


def make_late_result(doubt: ToolMessage, answer: ToolAnswered) -> ToolMessage:
    """Make the payload of a result that came after the end of its run, to replace the one in doubt."""
    return replace(
        doubt,
        content=answer.content,
        result=answer.result,
        is_error=answer.is_error,
        in_doubt=answer.in_doubt,
        note_tokens=answer.note_tokens,
        pieces=answer.pieces,
        problem=answer.problem,
        late=True,
    )


def make_config(settings: Settings) -> ConfigPayload:
    """Make the configuration in force. It is complete, so that no later default can change old contexts."""
    own_specs, names = [tool.spec for tool in settings.tools or ()], list(settings.config.tools)
    configuration = dump_configuration(settings)
    fields = configuration | {
        "agent": settings.agent and make_agent_version(settings.agent).as_dict(),
        "model": settings.model,
        "tools": [tool.spec for tool in settings.offered_tools],
        "external_tools": configuration["external_tools"] or None,
        "tool_names": names if names != list_configured_names(own_specs) else None,
        "own": _dump_own(settings) if settings.own.agent else None,
    }
    return ConfigPayload.from_json(fields)


def draft_config(settings: Settings) -> Draft:
    """Draft a `config` entry, with the tokens of the tools' schemas if a worker has counted them."""
    payload, tools = make_config(settings), settings.offered_tools
    counts = [tool.tokens for tool in tools if tool.tokens is not None]
    if len(counts) == len(tools):
        # The prompt's tokens are counted when the entry is committed.
        payload = replace(payload, tokens=ConfigTokens(system_prompt=0, tools=sum(counts)))
    return Draft(payload)


def make_agent_version(agent: ResolvedAgent) -> AgentVersion:
    """Make the part of a resolved agent that threads record."""
    return AgentVersion(name=agent.name, version=agent.version, label=agent.label)


def _dump_own(settings: Settings) -> dict[str, Any]:
    """Dump what callers have set, their changes of the policy included."""
    own = settings.own
    fields = own.model_dump(mode="json", exclude_unset=True, exclude={"external_tools"})
    value = {name: value for name, value in fields.items() if value is not None}
    policy = own.context_policy.overlay(settings.own_policy) if own.context_policy else settings.own_policy
    if policy and policy.model_fields_set:
        value["context_policy"] = policy.model_dump(mode="json", exclude_unset=True)
    return value


def dump_configuration(settings: Settings) -> dict[str, Any]:
    """Dump the configuration in force as JSON: every field of `SessionConfig`, the policy complete."""
    config = settings.config
    return config.model_dump(mode="json") | {
        "model_options": config.model_options.model_dump(mode="json", exclude_none=True),
        "limits": config.limits.model_dump(mode="json", exclude_none=True),
        "context_policy": settings.policy.model_dump(mode="json"),
        "webhooks": [webhook.model_dump(mode="json", exclude_none=True) for webhook in config.webhooks],
    }


def make_unresolved_tools(config: ConfigPayload) -> tuple[ResolvedTool, ...]:
    """Make tools from the schemas in a `config` entry. A worker resolves them again before one is called."""
    external = {tool["name"] for tool in config.external_tools or ()}
    return tuple(
        ResolvedTool(spec=spec, timeout_seconds=60, max_attempts=1, idempotent=False)
        for spec in config.tools
        if spec["name"] not in external
    )


def draft_error(run: Run, failure: Failure, retried: Retried | None = None) -> Draft:
    """Draft an `error` entry of a run; `retried` names the model call that follows instead."""
    details = failure.details | ({"retried": retried.as_dict()} if retried else {})
    payload = ErrorPayload(type=failure.type, message=failure.message, details=details)
    return Draft(payload, make_run_refs(run) | make_call_refs(run))


def draft_run(run: Run, request_id: str, ending: Ending) -> Draft:
    """Draft the outcome of a request.

    The request that opened the run has the usage of all that shared the run, so that the sum over requests is right.
    """
    opened = run.request.request_id
    is_own, failure = request_id == opened, ending.failure
    payload = RunPayload(
        event="finished",
        status=ending.status,
        termination_reason=ending.reason,
        usage=run.spent.own if is_own else Usage(shared_with=opened),
        # Absent without subagents.
        subagent_usage=run.spent.subagents if is_own and run.spent.subagents != Usage() else None,
        iterations=run.iteration,
        fallback=run.fallback,
        answer_seq=run.answer.seq,
        error=OutcomeError(type=failure.type, message=failure.message, retryable=failure.retryable)
        if failure
        else None,
        reason=ending.explanation or None,
        unread=run.unread or None,
    )
    return Draft(payload, make_run_refs(run) | {"request_id": request_id})


def draft_input(
    event: Literal["rejected", "dropped", "superseded", "merged"],
    kind: str,
    reason: str,
    content: str,
    *,
    input_id: str | None = None,
    op_id: str | None = None,
    request_id: str | None = None,
) -> Draft:
    """Draft an `input` entry: an input that was not committed, or an operation that was superseded."""
    payload = InputPayload(
        event=event,
        kind=kind[:EXCERPT_CHARACTERS],
        reason=reason,
        content=content[:EXCERPT_CHARACTERS],
        input_id=input_id,
        op_id=op_id,
        request_id=request_id,
    )
    return Draft(payload)


def draft_unread(
    unread: Input, event: Literal["rejected", "dropped"], reason: str, request_id: str | None = None
) -> Draft:
    """Draft the `input` entry of an input that was accepted and that no model has read."""
    own = unread.request_id or request_id
    return draft_input(event, unread.kind, reason, get_text(unread.content), input_id=unread.input_id, request_id=own)


def draft_corrected(run: Run) -> tuple[Draft, ...]:
    """Draft the operations by which the corrections of a run leave later contexts, each with its answer."""
    return tuple(
        Draft(
            OperationPayload(
                op_id=f"corrected-{run.run_id}-{number}",
                context_ref=run.request.context_ref,
                operation=AppliedCorrected(type="corrected", reason="system", from_seq=first, to_seq=last),
            ),
            make_run_refs(run),
        )
        for number, (first, last) in enumerate(run.tried.corrections, 1)
    )


def draft_withdrawal(run: Run) -> Draft:
    """Draft the operation that withdraws the messages of a run, before any model has been called."""
    operation = AppliedWithdraw(type="withdraw", reason="system", from_seq=run.opened_seq)
    payload = OperationPayload(
        op_id=f"withdraw-{run.run_id}", context_ref=run.request.context_ref, operation=operation
    )
    return Draft(payload, make_run_refs(run))


def draft_unopened(request: Request, ending: Ending) -> tuple[Draft, ...]:
    """Draft the `input` entries of a request that never ran: its message, or the inputs of a follow-up run."""
    request_id, failure = request.request_id, ending.failure
    event: Literal["rejected", "dropped"] = "rejected" if failure else "dropped"
    reason = f"{failure.type}: {failure.message}" if failure else ending.reason
    if not request.inputs:
        return (draft_input(event, "message", reason, get_text(request.content), request_id=request_id),)
    return tuple(draft_unread(unread, event, reason, request_id) for unread in request.inputs)


def draft_session(
    event: Literal["hibernated", "woken", "recovered", "closed"],
    reason: str | None,
    workflow: str | None = None,
) -> Draft:
    """Draft a `session` entry. `workflow` is how the terminated workflow had ended."""
    return Draft(SessionPayload(event=event, workflow=workflow, reason=reason or None))


def make_run_refs(run: Run) -> Refs:
    """Make the refs of an entry that belongs to a run."""
    return {"request_id": run.request.request_id, "run_id": run.run_id}


def make_call_refs(run: Run) -> Refs:
    """Make the refs to the run's newest model call; empty before the first."""
    if run.call is None:
        return {}
    refs: Refs = {"call_id": run.call.call_id, "iteration": run.call.iteration}
    if run.call.parent_call_id:
        refs["parent_call_id"] = run.call.parent_call_id
    return refs


def _make_recipe(run: Run, answer: ModelAnswered) -> Recipe:
    """Make the recipe of a reply's context, from which the context can be rebuilt."""
    call = run.call
    assert call is not None
    policy = call.context_policy
    return Recipe(
        context_ref=call.context_ref,
        basis_seq=call.at_seq,
        model=call.model,
        model_options=call.options.model_dump(mode="json", exclude_none=True),
        policy_hash=answer.policy_hash,
        digest=answer.digest,
        input_tokens=answer.input_tokens,
        usage=answer.reply.usage,
        earlier_usage=answer.earlier_usage,
        provider_tools=call.provider_tools,
        fitting=answer.fitting,
        request=answer.request,
        attempt=answer.attempt,
        stop_reason=answer.reply.stop_reason,
        epoch=answer.epoch,
        shared_prefix_tokens=answer.shared_prefix_tokens,
        cleared_tool_results=answer.cleared_tool_results,
        cleared_media=answer.cleared_media,
        truncated_tool_results=answer.truncated_tool_results,
        context_policy=policy.model_dump(mode="json", exclude_unset=True) if policy else None,
        prices=answer.prices,
        token_ratio=call.token_ratio,
        tools=run.request.tools,
        settings_seq=run.settings_seq if run.request.has_own_settings else None,
    )
