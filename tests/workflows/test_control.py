"""Steering, queues, approvals and cancellations during a run, on a real server."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from pydantic import BaseModel

from clew import (
    Busy,
    ContextPolicy,
    RequestFailed,
    Session,
)
from clew.contract import PendingCall
from clew.errors import (
    AlreadyResolved,
    Idle,
    InvalidInput,
    InvalidOperation,
    QueueFull,
    RequestMismatch,
    RequestReused,
    UnknownApproval,
)
from clew.local import Reply, ToolCall
from clew.session.events import EntryCommitted, TextAdded
from tests.support import toolbox
from tests.support.rolling import SlowModel
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS, wait_until


async def list_words(session: Session) -> list[str]:
    """List one word for each entry: the role and the content of a message, else the kind."""
    words = []
    for entry in await session.entries():
        payload = entry.payload
        match entry.kind:
            case "ai_message":
                words.append(f"{payload['role']}: {payload['content']}")
            case "run":
                words.append(f"{entry.refs['request_id']} {payload['status']}")
            case "input":
                words.append(f"{payload['event']} {payload['kind']}")
            case "ai_context_operation":
                words.append(payload["operation"]["type"])
            case _:
                words.append(entry.kind)
    return words


async def wait_for_approvals(session: Session) -> list[PendingCall]:
    """The approvals that are pending, once there are any."""

    async def waits() -> bool:
        return bool((await session.status()).pending_approvals)

    await wait_until(waits)
    return (await session.status()).pending_approvals


async def test_what_is_steered_in_is_read_after_the_answer(stack: Stack) -> None:
    """By default an input does not affect the model call in flight: it follows the answer, and the run continues."""
    model = SlowModel()
    session = await stack.open(model)
    request = await session.message("go", request_id="r")
    await model.wait_for_call()
    first = await session.steer("shorter", input_id="i-1")
    second = await session.inject("it rains", source="weather")
    assert (first.request_id, first.position, second.position) == ("r", 1, 2)
    assert (await session.status()).pending_inputs == 2
    model.release(2)
    assert await request.answer() == "re: it rains"
    assert await list_words(session) == [
        "config", "user: go", "assistant: re: go", "user: shorter", "user: it rains", "assistant: re: it rains",
        "r completed",
    ]  # fmt: skip
    entries = await session.entries()
    assert [entries[3].refs["call_id"], entries[4].refs["source"]] == ["call-2", "weather"]
    assert await session.steer("shorter", input_id="i-1") == first, "an input that is known is told the same again"
    with pytest.raises(RequestReused):
        await session.steer("late", input_id="i-1")


async def test_a_step_input_is_read_before_the_next_call(stack: Stack) -> None:
    """With `at="step"` the model reads it together with the tool's result."""
    calls = [Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 1}),)), Reply("done")]
    model = SlowModel(lambda _body: calls.pop(0))
    session = await stack.open(model, tools=["add"])
    request = await session.message("go")
    await model.wait_for_call()
    await session.steer("be quick", at="step")
    model.release()
    body = await model.wait_for_call()
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]
    model.release()
    assert await request.answer() == "done"


async def test_an_idle_session_takes_no_input(stack: Stack) -> None:
    """To an idle session input is refused loudly: by update to its sender, by signal in the thread."""
    session = await stack.open()
    await session.ask("hello")
    with pytest.raises(Idle):
        await session.steer("anyone?")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    await handle.signal("steer", {"content": "anyone?"})
    await session.ask("again")
    (refused,) = await session.entries(kind="input")
    assert (refused.payload["event"], refused.payload["kind"]) == ("rejected", "steer")


@pytest.mark.slow
async def test_inputs_are_guarded_and_counted(stack: Stack) -> None:
    """A guard on another request is refused, and the sixty-fifth input too."""
    model = SlowModel()
    session = await stack.open(model)
    request = await session.message("go", request_id="r")
    await model.wait_for_call()
    with pytest.raises(RequestMismatch):
        await session.steer("no", expected_request_id="another")
    await session.steer("yes", expected_request_id="r")
    for number in range(63):
        await session.inject(f"{number}")
    with pytest.raises(QueueFull):
        await session.inject("one too many")
    model.release(2)
    assert await request.answer() == "re: 62"


async def test_what_a_failed_run_has_not_read_is_answered_by_a_follow_up(stack: Stack) -> None:
    """Input of a failed run opens a follow-up run, unless it has `on_failure: drop`."""
    replies = [Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 1}),)), Reply("I read it")]
    model = SlowModel(lambda _body: replies.pop(0))
    session = await stack.open(model, tools=["add"], max_iterations=1)
    request = await session.message("go", request_id="r")
    await model.wait_for_call()
    await session.steer("mind this")
    await session.inject("never mind", on_failure="drop")
    model.release(2)
    assert (await request.result()).termination_reason == "max_iterations"
    assert (await session.request("followup:run-1").result()).status == "completed"
    words = await list_words(session)
    assert words[-5:] == [
        "dropped inject", "r completed", "user: mind this", "assistant: I read it", "followup:run-1 completed",
    ]  # fmt: skip
    with pytest.raises(InvalidInput):
        await session.message("mine", request_id="followup:run-9")


async def test_a_context_is_never_changed_under_a_run(stack: Stack) -> None:
    """Operations and configuration that come in the middle of a run wait for its end; of operations the latest."""
    gate = uuid.uuid4().hex
    replies = [Reply(tool_calls=(ToolCall("wait_for", {"gate": gate}),)), Reply("done"), Reply("next")]
    model = SlowModel(lambda _body: replies.pop(0))
    session = await stack.open(model, tools=["wait_for"], system_prompt="old")
    request = await session.message("go")
    await model.wait_for_call()
    model.release()
    one = await session.replace_context([{"role": "user", "content": "forget"}], op_id="o-1")
    two = await session.replace_context([{"role": "user", "content": "once"}], op_id="o-2")
    again = await session.replace_context([{"role": "user", "content": "once"}], op_id="o-2")
    later = await session.configure(system_prompt="new")
    assert [one.status, two.status, again.status, later.status] == ["deferred", "deferred", "duplicate", "deferred"]
    pending = (await session.status()).pending_context_op
    assert pending is not None
    assert pending.op_id == "o-2"
    toolbox.get_gate(gate).set()
    body = await model.wait_for_call()
    assert [message["content"] for message in body["messages"]][:2] == ["old", "go"]
    model.release()
    await request.answer()
    assert (await list_words(session))[-3:] == [f"{request.request_id} completed", "replace", "config"]
    request = await session.message("and now?")
    body = await model.wait_for_call()
    assert [message["content"] for message in body["messages"]] == ["new", "once", "and now?"]
    model.release()
    await request.answer()
    words = await list_words(session)
    assert words.index("superseded modify_context") < words.index("replace") < words.index("user: and now?")


async def test_lanes_are_contexts_of_their_own(stack: Stack) -> None:
    """A switch makes a fresh lane active, which inherits nothing; replace changes its own lane, and only that."""
    session = await stack.open(lambda body: Reply(f"{len(body['messages'])}"))
    assert await session.ask("one") == "1"
    assert (await session.switch_context("draft", op_id="s-1")).status == "applied"
    assert await session.ask("two") == "1"
    await session.replace_context(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], op_id="p-1", context_ref="default"
    )
    assert (await session.status()).active_context_ref == "draft"
    assert await session.ask("three") == "3"
    await session.switch_context("default", op_id="s-2")
    assert await session.ask("four") == "3", "the snapshot and the question"
    assert (await session.switch_context("draft", op_id="s-1")).status == "duplicate"
    assert (await session.status()).active_context_ref == "default"
    with pytest.raises(InvalidOperation):
        await session.replace_context([{"role": "tool", "content": "x", "tool_call_id": "y"}], op_id="p-2")
    with pytest.raises(InvalidOperation):
        await session.replace_context([], op_id="p-3", base_seq=10_000)


async def test_configuration_changes_are_entries_and_hold_from_then_on(stack: Stack) -> None:
    """A new model and new tools are resolved by a worker, then committed; unknown ones fail the next request."""
    session = await stack.open("first")
    await session.ask("hello")
    receipt = await session.configure(model=stack.add_model("second"), tools=["add"])
    assert receipt.status == "applied"
    assert receipt.seq == 4
    entry = (await session.entries())[4]
    assert entry.kind == "config"
    assert [tool["name"] for tool in entry.payload["tools"]] == ["add", "read_result"]
    assert await session.ask("hello") == "second"
    await session.configure(tools=["teleport"])
    with pytest.raises(RequestFailed, match="teleport"):
        await session.ask("hello")
    await session.configure(tools=[])
    assert await session.ask("hello") == "second"


async def test_a_busy_session_does_as_it_is_told(stack: Stack) -> None:
    """`queue` waits for the run, `interrupt` cancels it, `steer` joins it and shares its outcome."""
    model = SlowModel()
    session = await stack.open(model, on_busy="queue")
    first = await session.message("first", request_id="first")
    await model.wait_for_call()
    queued = await session.message("queued", request_id="queued")
    joined = await session.message("joined", request_id="joined", on_busy="steer")
    with pytest.raises(Busy):
        await session.message("no", on_busy="reject")
    assert (await session.status()).queued_messages == 1
    model.release(2)
    assert await first.answer() == await joined.answer() == "re: joined"
    await model.wait_for_call()
    assert (await model.wait_for_call())["messages"][-1]["content"] == "queued"
    urgent = await session.message("urgent", request_id="urgent", on_busy="interrupt")
    assert (await queued.result()).termination_reason == "interrupted"
    model.release(2)
    assert await urgent.answer() == "re: urgent"
    outcomes = [word for word in await list_words(session) if word.split()[-1] in ("completed", "cancelled")]
    assert outcomes == ["first completed", "joined completed", "queued cancelled", "urgent completed"]


async def test_cancel_reaches_a_reply_that_is_streaming(stack: Stack) -> None:
    """The provider's stream is closed, the caller gets `cancelled`, and the next message works at once."""
    replies = [Reply("word " * 1000, tokens_per_second=5), Reply("fresh")]
    session = await stack.open(lambda _body: replies.pop(0))
    request = await session.message("go", request_id="r")
    async for event in request.events():
        if isinstance(event, TextAdded):
            break
    await session.steer("unread")
    receipt = await session.cancel(reason="enough")
    assert (receipt.request_id, receipt.cancelled) == ("r", True)
    assert (await request.result()).status == "cancelled"
    assert await session.ask("next") == "fresh"
    words = await list_words(session)
    assert words[2].startswith("assistant: word")
    assert [words[1], *words[3:5]] == ["user: go", "dropped steer", "r cancelled"], (
        "stop means stop, for what waited too"
    )
    assert (await session.cancel("r")).cancelled is False
    with pytest.raises(Idle):
        await session.cancel()


async def test_cancel_reaches_a_tool_and_closes_its_call(stack: Stack) -> None:
    """The tool is cancelled in the worker, and the thread stays valid input for the next call."""
    gate = uuid.uuid4().hex
    replies = [Reply(tool_calls=(ToolCall("note_cancel", {"gate": gate}),)), Reply("fresh")]
    session = await stack.open(lambda _body: replies.pop(0), tools=["note_cancel"])
    request = await session.message("go")
    await toolbox.get_gate(f"{gate}-started").wait()
    await session.cancel()
    assert (await request.result()).status == "cancelled"
    async with asyncio.timeout(PATIENCE_SECONDS):
        await toolbox.get_gate(f"{gate}-cancelled").wait()
    assert await session.ask("next") == "fresh"
    (closed,) = [entry for entry in await session.entries() if entry.payload.get("role") == "tool"]
    assert closed.payload["content"] == "interrupted (cancelled): this call may have run"


async def test_a_tool_that_ignores_cancellation_holds_nobody_up(stack: Stack) -> None:
    """The caller gets `cancelled` and the next message works at once, while the tool still runs."""
    gate = uuid.uuid4().hex
    replies = [Reply(tool_calls=(ToolCall("ignore_cancel", {"gate": gate}),)), Reply("fresh")]
    session = await stack.open(lambda _body: replies.pop(0), tools=["ignore_cancel"])
    request = await session.message("go")
    await toolbox.get_gate(f"{gate}-started").wait()
    await session.cancel()
    assert (await request.result()).status == "cancelled"
    assert await session.ask("next") == "fresh"
    toolbox.get_gate(gate).set()


@pytest.mark.slow
async def test_ten_waiting_callers_never_keep_a_cancel_out(stack: Stack) -> None:
    """The server accepts ten updates in flight; waiting callers never use all of them."""
    model = SlowModel()
    session = await stack.open(model)
    request = await session.message("go", request_id="r")
    await model.wait_for_call()
    waiting = [asyncio.create_task(session.request("r").result()) for _ in range(10)]
    assert (await session.cancel()).cancelled
    assert {(await task).status for task in (*waiting, asyncio.create_task(request.result()))} == {"cancelled"}


@pytest.mark.slow
async def test_a_tool_call_waits_for_approval(stack: Stack) -> None:
    """Pending calls show name and arguments; they are approved, edited or denied in any order."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(
                tool_calls=tuple(ToolCall("add", {"a": number, "b": 1}, f"c{number}") for number in range(3))
            )
        return Reply(" | ".join(m["content"] for m in body["messages"] if m["role"] == "tool"))

    session = await stack.open(script, tools=["add"], require_approval=["add"])
    request = await session.message("go")
    pending = await wait_for_approvals(session)
    assert pending[1] == PendingCall(tool_call_id="tool00002", name="add", arguments={"a": 1, "b": 1})
    with pytest.raises(InvalidInput):
        await session.approve("tool00003", arguments={"a": "two", "b": 1})
    await session.approve("tool00003", arguments={"a": 40, "b": 2})
    await session.deny("tool00001", reason="not today")
    with pytest.raises(AlreadyResolved):
        await session.approve("tool00001")
    with pytest.raises(UnknownApproval):
        await session.approve("tool00009")
    await session.approve("tool00002")
    edited = '[a person changed this call before it ran; its arguments were {"a":40,"b":2}]\n42'
    assert await request.answer() == f"denied: not today | 2 | {edited}"
    approvals = await session.entries(kind="approval")
    assert [entry.payload["decision"] for entry in approvals] == ["approve", "deny", "approve"]


async def test_the_other_calls_of_a_reply_do_not_wait_for_an_approval(stack: Stack) -> None:
    """They run at once, and a call that is approved meanwhile runs beside them: it opens what the first waits for."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            names = (("add", {"a": 1, "b": 1}), ("wait_for", {"gate": gate}), ("open_gate", {"gate": gate}))
            return Reply(tool_calls=tuple(ToolCall(name, given, f"c-{name}") for name, given in names))
        return Reply(" | ".join(m["content"] for m in body["messages"] if m["role"] == "tool"))

    gate = "approved-beside"
    session = await stack.open(script, tools=["add", "wait_for", "open_gate"], require_approval=["open_gate"])
    request = await session.message("go")
    await wait_for_approvals(session)
    async for event in session.follow(0):
        if isinstance(event, EntryCommitted) and event.entry.payload.get("role") == "tool":
            assert event.entry.payload["content"] == "2"
            break
    assert (await session.status()).status == "awaiting_approval"
    await session.approve("tool00003", by="ada")
    assert await request.answer() == f"2 | {gate} is open | opened"
    (approval,) = await session.entries(kind="approval")
    assert approval.payload["by"] == "ada"


@pytest.mark.slow
async def test_a_cancel_resolves_what_waits_for_approval(stack: Stack) -> None:
    """An approval has no timeout; after a cancellation its call is no longer pending."""
    session = await stack.open(
        lambda body: (
            Reply(tool_calls=(ToolCall("guarded", {}),)) if get_last_message(body)["content"] == "go" else Reply("ok")
        ),
        tools=["guarded"],
        request_timeout_seconds=5,
    )
    request = await session.message("go")
    await wait_for_approvals(session)
    await session.cancel()
    assert (await request.result()).status == "cancelled"
    with pytest.raises(UnknownApproval):
        await session.approve("tool00001")
    assert await session.ask("next") == "ok"


class City(BaseModel):
    """The form of an answer."""

    name: str
    people: int


@pytest.mark.slow
async def test_an_answer_comes_in_the_form_asked_for(stack: Stack) -> None:
    """The schema reaches the provider; a model whose answer does not fit reads why, until its calls are used up.

    The next message's request has the last answer, and neither the wrong ones nor their corrections.
    """
    last = '{"name": "Oslo", "people": 700000}'
    replies = [Reply("Oslo, I think"), Reply('{"name": 7, "people": 0}'), Reply(last), Reply("Yes.")]
    session = await stack.open(lambda _body: replies.pop(0))
    assert await session.ask("Which?", answer=City) == City(name="Oslo", people=700_000)
    model = (await session.status()).model
    sent = stack.list_requests(model)
    assert sent[0]["response_format"]["json_schema"]["schema"] == City.model_json_schema()
    assert "it is not JSON" in sent[1]["messages"][-1]["content"]
    assert "name: 7 is not of type" in sent[2]["messages"][-1]["content"]
    context = await session.context(call_id="call-1")
    assert context.output_schema == City.model_json_schema()
    assert await session.ask("Is it large?") == "Yes."
    sent = stack.list_requests(model)
    talk = [message["content"] for message in sent[3]["messages"] if message["role"] != "system"]
    assert talk == ["Which?", last, "Is it large?"]
    assert len((await session.context(call_id="call-3")).messages) == len(sent[2]["messages"])
    stubborn = await stack.open("never JSON", max_iterations=3)
    with pytest.raises(RequestFailed) as failed:
        await stubborn.ask("Which?", answer=City)
    assert failed.value.outcome.error is not None
    assert (failed.value.outcome.error.type, failed.value.outcome.iterations) == ("invalid_output", 3)
    with pytest.raises(RequestFailed, match="output_schema cannot be used"):
        await stubborn.ask("Which?", output_schema={"required": 7})


@pytest.mark.slow
async def test_an_answer_is_of_any_type(stack: Stack) -> None:
    """The model is asked for an object; the thread, the outcome and the caller have the value."""
    replies = [Reply('{"value": [1, "two"]}'), Reply('{"value": [1, 2]}'), Reply('{"value": null}'), Reply("[1]")]
    session = await stack.open(lambda _body: replies.pop(0))
    request = await session.message("Which?", answer=list[int])
    outcome = await request.result()
    assert (outcome.value, outcome.answer, await request.answer()) == ([1, 2], "[1, 2]", [1, 2])
    assert await session.request(request.request_id).answer() == "[1, 2]"
    assert (await session.request(request.request_id, answer=tuple[int, int]).result()).value == (1, 2)
    first, second = stack.list_requests((await session.status()).model)
    assert first["response_format"]["json_schema"]["schema"]["required"] == ["value"]
    assert '1: "two" is not of type "integer"' in second["messages"][-1]["content"]
    asked = await session.context(call_id="call-2")
    assert asked.output_schema == {"type": "array", "items": {"type": "integer"}}
    assert await session.ask("And?", answer=City | None) is None
    assert await session.ask("Without an object?", answer=list[int]) == [1]


async def test_an_outcome_without_an_answer_has_no_value(stack: Stack) -> None:
    """`result` returns the outcome; its `value` raises the same error as `answer`."""
    session = await stack.open("never JSON", max_iterations=1)
    request = await session.message("Which?", answer=list[int])
    outcome = await request.result()
    assert (outcome.status, outcome.answer) == ("failed", None)
    with pytest.raises(RequestFailed, match="it is not JSON"):
        _ = outcome.value
    with pytest.raises(RequestFailed, match="it is not JSON"):
        await request.answer()


async def test_a_queued_message_is_served_by_the_session_as_it_is_then(stack: Stack) -> None:
    """A queued message runs under the configuration at its start: lane, prompt and policy."""
    model = SlowModel()
    session = await stack.open(model, on_busy="queue")
    first = await session.message("first")
    await model.wait_for_call()
    queued = await session.message("queued")
    cramped = await session.message("cramped", context_policy=ContextPolicy(max_input_tokens=2500))
    await session.switch_context("draft", op_id="o-1")
    policy = ContextPolicy(max_input_tokens=3000, reserve_output_tokens=2600)
    await session.configure(system_prompt="new", context_policy=policy)
    model.release(2)
    await first.answer()
    body = await model.wait_for_call()
    assert [message["content"] for message in body["messages"]] == ["new", "queued"]
    assert await queued.answer() == "re: queued"
    assert (await cramped.result()).termination_reason == "invalid_token_budget"
