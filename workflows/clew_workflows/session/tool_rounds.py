"""The tool calls of a round, from the model's reply to a result for each.

Each call gets a result, also if the run ends first: a call that has returned keeps its own, a call whose activity was
started and has not answered is in doubt, a call that waited for its result from outside was not answered, and a call
that was never started was not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import jsonschema_rs
from pydantic_core import from_json, to_json

from clew_workflows.contract import LateResultInput, RunSettings
from clew_workflows.contract.config import ExternalToolSpec
from clew_workflows.contract.content import Part, get_text, read_parts
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.limits import MAX_ARGUMENT_STEPS, MAX_MESSAGE_BLOB_BYTES, MAX_PARTS
from clew_workflows.contract.messages import ToolSpec, canonicalize, find_data_url, replace_data, truncate_result
from clew_workflows.contract.names import selects
from clew_workflows.contract.schemas import StepCounter
from clew_workflows.protocol import (
    Failure,
    FunctionRoute,
    ModelReply,
    PlannedCall,
    RequestedTool,
    ResolvedTool,
    RunTool,
    RunTools,
    ToolAnswered,
    ToolReturned,
    make_idempotency_key,
    number_tool_calls,
)
from clew_workflows.session import drafts, named_blobs
from clew_workflows.session.state import Decision, LateCall, Moment, RequestedCall, Run, State
from clew_workflows.thread.entries import Draft
from clew_workflows.thread.thread import Thread

# Validating the arguments of tool calls: those of a model where its answer is made, edited ones in workflow code.


MAX_SHOWN_CHARACTERS = 200
MAX_PATTERNS = 100
"""Most regular expressions of a schema. All of them are compiled for each round."""
MAX_PATTERN_BYTES = 1_000_000
"""Largest regular expression when it is compiled, in bytes: that takes 3 ms."""


MAX_READ_SCHEMAS = 64
"""Most schemas that a process keeps as they were read."""


def check_arguments(calls: Sequence[RequestedTool], specs: Iterable[ToolSpec]) -> tuple[RequestedTool, ...]:
    """Note what is wrong with the arguments of a reply's calls, by the schemas of their tools.

    The worker that makes the answer does it. The calls share the steps that one may take.
    """
    schemas = {spec["name"]: spec["parameters"] for spec in specs} if calls else {}
    return tuple(
        call.model_copy(update={"problem": find_argument_problem(call.arguments, schemas[call.name], len(calls))})
        if call.name in schemas and call.malformed is None
        else call
        for call in calls
    )


def find_argument_problem(arguments: dict[str, Any], schema: dict[str, Any], calls: int = 1) -> str | None:
    """Describe how the arguments of one of so many tool calls violate its schema; None if they do not."""
    try:
        return _read_schema(to_json(schema)).find_problem(arguments, MAX_ARGUMENT_STEPS // calls)
    except ValueError as error:
        return str(error)[:500]


def make_validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """Make a validator whose patterns take linear time, and which fetches no other schema.

    Raises:
        ValueError: The schema is not valid JSON Schema, or its patterns are too many or too large.
    """
    patterns = _count_patterns(schema)
    if patterns > MAX_PATTERNS:
        raise ValueError(f"the schema has {patterns} patterns, at most {MAX_PATTERNS} are accepted")
    options = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
    try:
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=options, retriever=_refuse)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        hint = "a pattern is not valid, or too large: " if 'is not a "regex"' in str(error) else ""
        raise ValueError(f"{hint}{error}") from None


def check_external_tools(tools: Sequence[ExternalToolSpec]) -> None:
    """Check that the parameters of the tools that a caller defines are valid JSON Schema.

    Raises:
        InvalidInput: Those of a tool are not, or all together have over 100 regular expressions.
    """
    patterns = 0
    for number, tool in enumerate(tools):
        path = f"external_tools.{number}.parameters"
        patterns += _count_patterns(tool.parameters)
        if patterns > MAX_PATTERNS:
            raise InvalidInput(
                f"{path}: with it there are over {MAX_PATTERNS} patterns, which are all that is accepted"
            )
        try:
            make_validator(tool.parameters)
        except ValueError as error:
            raise InvalidInput(f"{path}: not valid JSON Schema: {str(error)[:300]}") from None


@lru_cache(maxsize=MAX_READ_SCHEMAS)
def _read_schema(serialized: bytes) -> _ArgumentSchema:
    return _ArgumentSchema(from_json(serialized))


class _ArgumentSchema:
    """The schema of a tool's arguments.

    The validator is asked only whether they are valid, first for all arguments and then for each alone. Its own
    errors are not collected: with nested alternatives that can take exponentially longer.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._steps = StepCounter(schema)
        self._validator = make_validator(schema)

    @cached_property
    def _single(self) -> jsonschema_rs.Draft202012Validator:
        """The validator for one argument alone."""
        return make_validator(self._schema | {"required": []})

    def find_problem(self, arguments: dict[str, Any], max_steps: int) -> str | None:
        """Describe how arguments violate the schema.

        Raises:
            ValueError: The validation takes too many steps, or the schema is not valid.
        """
        self._steps.check(arguments, max_steps)
        if self._validator.is_valid(arguments):
            return None
        missing = [name for name in self._schema.get("required", ()) if name not in arguments]
        if missing:
            return f"{missing[0]}: it is missing"
        wrong = next((name for name in arguments if not self._single.is_valid({name: arguments[name]})), None)
        if wrong is None:
            return "they are not what the tool's parameters ask for"
        if wrong not in self._schema.get("properties", {}):
            return f"{wrong[:50]}: the tool has no such argument"
        form = canonicalize(self._schema["properties"][wrong]).decode()
        return f"{wrong[:50]}: it is not of the form {form[:MAX_SHOWN_CHARACTERS]}"


def _count_patterns(schema: Any) -> int:
    """Count the regular expressions. What has their keywords in another place counts, too."""
    count, left = 0, [schema]
    while left:
        match left.pop():
            case dict() as fields:
                count += isinstance(fields.get("pattern"), str)
                count += len(named) if isinstance(named := fields.get("patternProperties"), dict) else 0
                left += fields.values()
            case list() as items:
                left += items
    return count


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")


# Results of remote calls: what another worker's activity returns, as the text that the model reads.


_JSON = ("json/plain", "json/protobuf")


def read_remote_result(encoding: str, data: bytes, limit: int) -> ToolAnswered:
    """Make the answer of a remote call from the payload of its activity's result.

    A JSON string is the text itself. A list of parts that name blobs is the parts of the result; the blobs are not
    checked yet, and what is no part in the list is a text. Any other JSON value is its JSON text. Data, such as an
    image, is described. A result over the limit is truncated, one that is not JSON is an error that the model reads.

    Args:
        encoding: The payload's encoding, from its metadata.
        data: The payload's data.
        limit: The most bytes of the text.
    """
    if encoding == "binary/null":
        return ToolAnswered(content="null")
    if encoding not in _JSON:
        return _make_error(f"its encoding is {encoding[:100]!r}, not JSON")
    try:
        value = from_json(data)
        if (
            (parts := _read_remote_parts(value))
            and len(get_text(parts).encode()) <= limit
            and not find_data_url(get_text(parts))
        ):
            return ToolAnswered(content=parts)
        text = replace_data(value if isinstance(value, str) else data.decode()).encode()
        content = text.decode() if len(text) <= limit else truncate_result(text, limit)[0]
    except ValueError as error:
        return _make_error(str(error)[:200])
    return ToolAnswered(content=content)


def _read_remote_parts(value: Any) -> list[Part] | None:
    """Read a list of parts, each alone; None: it is no list, has no media, or is too long."""
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        return None
    read = [read_parts([item]) for item in value]
    if not any(read):
        return None
    return [part for item, parts in zip(value, read, strict=True) for part in parts or [_make_text_part(item)]]


def _make_text_part(item: Any) -> Part:
    text = item.get("text") if isinstance(item, dict) and item.keys() == {"type", "text"} else item
    return {"type": "text", "text": text if isinstance(text, str) else to_json(item).decode()}


def _make_error(reason: str) -> ToolAnswered:
    return ToolAnswered(content=f"error: the tool has run, but its result cannot be read: {reason}", is_error=True)


NOT_RUN = "[not run: the run ended ({reason}) before this tool call was started]"
NOT_ANSWERED = "[not answered: the run ended ({reason}) before this tool call had a result]"
IN_DOUBT = (
    "in doubt ({reason}): it is not known whether this call took effect, and it was not repeated. "
    "Its idempotency key is {key}"
)
INTERRUPTED = "interrupted ({reason}): this call may have run"
MAX_NAMES_CHARACTERS = 1000
"""Characters of the tools' names in the answer to a call of an unknown tool."""
MAX_DETACHED_CALLS = 64
"""Most late calls of earlier workflow runs that a session remembers."""
MAX_DETACHED_BYTES = 65_536
"""Most bytes of their results in doubt, which hold arguments that people have edited."""
_ONE_CALL = "not run: this request takes one tool call a reply. Call again, if it is still needed"
_UNKNOWN_OUTCOME = ("timeout", "worker_lost", "cancelled")
"""Failures after which it is not known whether the tool has run."""
_OWN_FAILURES = ("tool_failed", "tool_timeout")
"""Failures of the tool itself, whose words the model reads."""


def open_calls(state: State, run: Run, reply: ModelReply) -> list[tuple[RequestedCall, ToolAnswered | None]]:
    """Number the tool calls of a reply. A call that cannot be run has its answer beside it, an error."""
    tools, allowed = reply.tool_calls, run.request.tools
    known = {
        resolved.spec["name"]: resolved
        for resolved in state.settings.list_tools(run.request.external_tools)
        if allowed is None or resolved.spec["name"] in allowed
    }
    calls: list[tuple[RequestedCall, ToolAnswered | None]] = []
    for tool, numbered in zip(tools, number_tool_calls(tools, state.counters.tool_calls), strict=True):
        if calls and run.request.options.parallel_tool_calls is False:
            problem: str | None = _ONE_CALL
        else:
            problem = _describe_cut(run, reply) if tool.cut else _find_problem(known, tool)
        answer = ToolAnswered(content=f"error: {problem}", is_error=True) if problem else None
        call = RequestedCall(numbered["id"], tool.name, tool.arguments, returned=answer is not None)
        if answer is None:
            resolved = known[tool.name]
            selected = any(selects(name, tool.name) for name in state.settings.config.require_approval)
            needs_approval = bool(resolved.requires_approval) or selected
            as_whole = "round" in (resolved.requires_approval, state.settings.config.approval_scope)
            call = replace(
                call,
                needs_approval=needs_approval,
                holds_round=needs_approval and as_whole,
                idempotent=resolved.idempotent,
                route=resolved.route,
            )
        calls.append((call, answer))
    return calls


def _describe_cut(run: Run, reply: ModelReply) -> str:
    """Describe, for the model, why a call that ended within its arguments was not run."""
    limit = f"its limit of {run.request.options.max_output_tokens} tokens"
    reason = f"the reply reached {limit}" if reply.stop_reason == "length" else "the reply ended"
    return f"{reason} within the arguments of this call, so it was not run: call again with shorter arguments"


def _find_problem(known: Mapping[str, ResolvedTool], tool: RequestedTool) -> str | None:
    """Describe why a call cannot be run; None if it can."""
    if tool.name not in known:
        names = f"the tools are: {', '.join(known)[:MAX_NAMES_CHARACTERS]}" if known else "there are no tools"
        return f"unknown tool {tool.name!r}; {names}"
    if tool.malformed is not None:
        return f"the arguments were not a JSON object: {tool.malformed[:1000]}"
    # A function's own worker validates its arguments.
    is_checked = not isinstance(known[tool.name].route, FunctionRoute)
    return f"invalid arguments: {tool.problem}" if is_checked and tool.problem else None


def get_tool(state: State, name: str) -> ResolvedTool:
    """Return a tool of the session or of the request that runs; there must be one of this name."""
    own = state.run.request.external_tools if state.run else None
    return next(tool for tool in state.settings.list_tools(own) if tool.spec["name"] == name)


def list_outside(state: State) -> tuple[RequestedCall, ...]:
    """List the calls of the round that wait for their results from outside."""
    calls = state.run.tool_calls if state.run else ()
    return tuple(call for call in calls if call.expires_at is not None and not call.returned)


def list_running(state: State) -> tuple[RequestedCall, ...]:
    """List the calls of the round that run: neither a person's decision nor a submitted result is waited for."""
    calls = state.run.tool_calls if state.run else ()
    return tuple(call for call in calls if call.has_begun and not call.returned and not call.is_external)


def list_ready(calls: Sequence[RequestedCall]) -> tuple[RequestedCall, ...]:
    """List the calls of a round that may begin: a call that needs an approval has it.

    If the round is approved as a whole, none begins before the last decision.
    """
    if any(call.holds_round for call in list_unapproved(calls)):
        return ()
    return tuple(call for call in calls if not (call.returned or call.needs_approval or call.has_begun))


def open_outside(state: State, run: Run, at: Moment) -> Run:
    """Let the ready calls of the round whose results come from outside wait for them from now on."""
    ready = list_ready(run.tool_calls)
    calls = tuple(
        replace(call, expires_at=at.time + get_tool(state, call.name).timeout_seconds)
        if call.is_outside and call in ready
        else call
        for call in run.tool_calls
    )
    return replace(run, tool_calls=calls)


def make_effect(state: State, run: Run) -> RunTools | None:
    """Make the effect that runs the ready calls of the round, beside those that run; None if none is to begin."""
    starting = [call for call in list_ready(run.tool_calls) if not call.is_outside]
    if not starting:
        return None
    calls = (call for call in run.tool_calls if call.is_running or call in starting)
    return RunTools(calls=tuple(_plan_call(state, run, call) for call in calls))


def _plan_call(state: State, run: Run, call: RequestedCall) -> PlannedCall:
    tool = get_tool(state, call.name)
    run_tool = RunTool(
        request_id=run.request.request_id,
        run_id=run.run_id,
        call_id=run.call.call_id if run.call else "",
        tool_call_id=call.tool_call_id,
        name=call.name,
        arguments=call.arguments,
        edited=call.edited,
        encoding=state.settings.config.encoding,
        max_result_bytes=state.settings.config.limits.max_tool_result_bytes,
        family=state.archive.family if state.archive else None,
        iteration=run.iteration,
    )
    run_tool = run_tool.model_copy(update=_limit_media(state))
    if isinstance(tool.route, FunctionRoute) and tool.route.takes_context:
        context = {
            "agent": state.settings.agent.name if state.settings.agent else None,
            "metadata": state.settings.config.metadata or None,
            "request_metadata": run.request.metadata or None,
        }
        run_tool = run_tool.model_copy(update=context)
    return PlannedCall(run_tool, tool)


def _limit_media(state: State) -> dict[str, int]:
    """Limit the blobs of a result, where the session's limits are not those of all sessions."""
    limits, changed = state.settings.config.limits, dict[str, int]()
    if limits.max_blob_bytes is not None:
        changed["max_blob_bytes"] = limits.max_blob_bytes
    left = limits.max_message_blob_bytes or MAX_MESSAGE_BLOB_BYTES
    if limits.max_session_blob_bytes is not None:
        left = min(left, max(limits.max_session_blob_bytes - state.counters.media_bytes, 0))
    if left != MAX_MESSAGE_BLOB_BYTES:
        changed["max_media_bytes"] = left
    return changed


def list_starting(state: State, effect: RunTools) -> tuple[PlannedCall, ...]:
    """List the calls of an effect whose activities have not been started."""
    calls = {call.tool_call_id: call for call in state.run.tool_calls} if state.run else {}
    return tuple(planned for planned in effect.calls if not calls[planned.call.tool_call_id].scheduled)


def mark_scheduled(state: State, effect: RunTools) -> Decision:
    """Record that the activities of an effect are started: from now on its calls may have run."""
    run = state.run
    if run is None:
        return Decision(state)
    started = {planned.call.tool_call_id for planned in effect.calls}
    calls = tuple(replace(call, scheduled=True) if call.tool_call_id in started else call for call in run.tool_calls)
    return Decision(replace(state, run=replace(run, tool_calls=calls)))


def is_over(state: State, effect: RunTools) -> bool:
    """Whether all calls of an effect have returned, and the run waits for people or for results from outside."""
    calls = {call.tool_call_id: call for call in state.run.tool_calls} if state.run else {}
    return all(
        planned.call.tool_call_id in calls and calls[planned.call.tool_call_id].returned for planned in effect.calls
    )


def take_result(state: State, event: ToolReturned) -> Decision:
    """Commit the result of a call that has returned, also if its run has ended by then."""
    run = state.run
    call = next((call for call in run.tool_calls if call.tool_call_id == event.tool_call_id), None) if run else None
    if run is None or call is None:
        return _take_late_result(state, event)
    if call.returned:
        return Decision(state)
    answer = event.answer
    if answer is None:
        failure = event.failure or Failure(type="cancelled", message="its activity was cancelled")
        answer = _make_failure_answer(state, call, failure)
        if failure.type == "timeout":
            run = replace(
                run,
                timed_out_calls=(*run.timed_out_calls, f"tool {call.name!r} ({call.tool_call_id}) had not returned"),
            )
    return commit_result(state, run, call, answer)


def commit_result(
    state: State, run: Run, call: RequestedCall, answer: ToolAnswered, settings: RunSettings | None = None
) -> Decision:
    """Commit the result of one call of the round, with the settings that came with it."""
    calls = tuple(
        replace(call, returned=True) if other.tool_call_id == call.tool_call_id else other for other in run.tool_calls
    )
    result = drafts.draft_tool_message(run, call, answer, state.children, settings)
    counters = named_blobs.count_content(state.counters, answer.content)
    return Decision(replace(state, run=replace(run, tool_calls=calls), counters=counters), (result,))


def close_calls(state: State, run: Run, reason: str) -> tuple[tuple[Draft, ...], tuple[LateCall, ...]]:
    """Draft a result for each call without one, as the run ends. Second: the calls that may still return."""
    results: list[Draft] = []
    late: list[LateCall] = []
    for call in run.tool_calls:
        if call.returned:
            continue
        if not call.scheduled:
            content = NOT_RUN if call.expires_at is None else NOT_ANSWERED
            answer = ToolAnswered(content=content.format(reason=reason), is_error=True)
            results.append(drafts.draft_tool_message(run, call, answer, state.children))
            continue
        answer = _make_doubtful_answer(state, call, reason)
        draft = drafts.draft_tool_message(run, call, answer, state.children)
        results.append(draft)
        late.append(LateCall(drafts.make_tool_result(run, call, answer), draft.refs, state.counters.runs))
    return tuple(results), tuple(late)


def take_late_result(state: State, command: LateResultInput) -> Decision:
    """Commit a late result that a tool's worker has sent, because the workflow run of its activity may have ended.

    If the activity's own result came first, or the call has none in doubt, nothing changes.
    """
    answer = ToolAnswered(content=command.content, result=command.result, is_error=command.is_error)
    return _take_late_result(state, ToolReturned(tool_call_id=command.tool_call_id, answer=answer))


def _take_late_result(state: State, event: ToolReturned) -> Decision:
    """Commit a result that came after the end of its run: later contexts have it instead of the result in doubt."""
    known = (*state.late_calls, *state.detached_calls)
    call = next((call for call in known if call.tool_call_id == event.tool_call_id), None)
    if call is None:
        return Decision(state)
    state = replace(
        state,
        late_calls=tuple(other for other in state.late_calls if other is not call),
        detached_calls=tuple(other for other in state.detached_calls if other is not call),
    )
    if event.answer is None or event.answer.in_doubt:
        return Decision(state)
    late = Draft(drafts.make_late_result(call.doubt, event.answer), call.refs, event.answer.tokens)
    return Decision(state, (late,))


def detach_calls(state: State, thread: Thread) -> tuple[LateCall, ...]:
    """List the late calls that the next workflow run knows: the newest ones, within a bound."""
    kept: list[LateCall] = []
    room = MAX_DETACHED_BYTES
    for call in (*state.detached_calls, *state.late_calls)[::-1][:MAX_DETACHED_CALLS]:
        room -= len(canonicalize(call.doubt.as_dict()))
        if room < 0:
            break
        kept.append(replace(call, round_seq=_find_round(thread, call)) if call.round_seq < 0 else call)
    return tuple(reversed(kept))


def _find_round(thread: Thread, call: LateCall) -> int:
    """Find where the round of a call begins; -1: the thread does not hold it."""
    lane, results = thread.get_lane(call.doubt.context_ref), thread.filter_by_ref("tool_call_id", call.tool_call_id)
    group = lane.find_group(results[-1].seq) if lane and results else None
    return group.start if group else -1


def _make_failure_answer(state: State, call: RequestedCall, failure: Failure) -> ToolAnswered:
    """Make the result of a call whose activity has failed."""
    if call.idempotent and failure.type not in _UNKNOWN_OUTCOME:
        if failure.type in _OWN_FAILURES:
            return ToolAnswered(content=f"error: {failure.type}: {failure.message}", is_error=True)
        return ToolAnswered(content=f"error: {failure.type}", is_error=True, problem=failure.message)
    return _make_doubtful_answer(state, call, failure.type)


def _make_doubtful_answer(state: State, call: RequestedCall, reason: str) -> ToolAnswered:
    if call.idempotent:
        content = INTERRUPTED.format(reason=reason)
    else:
        content = IN_DOUBT.format(reason=reason, key=make_idempotency_key(state.session_id, call.tool_call_id))
    return ToolAnswered(content=content, is_error=True, in_doubt=True)


def list_unapproved(calls: Sequence[RequestedCall]) -> tuple[RequestedCall, ...]:
    """List the calls of a round that a person has not approved or denied yet."""
    return tuple(call for call in calls if call.needs_approval and not call.returned)
