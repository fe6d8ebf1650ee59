"""A caller that answers a call may send other settings with it: the run goes on with them, the thread has them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from clew.contract import ApprovalInput, MessageInput, ModelOptions, RunSettings, ToolResultInput
from clew.errors import InvalidInput, RequestReused
from clew_workflows.contract.config import ExternalToolSpec
from clew_workflows.protocol import Prepare
from clew_workflows.session.state import MAX_KNOWN_COMMANDS
from clew_workflows.thread.context.contexts import find_own_settings, rebuild_context
from tests.support.session_harness import SessionHarness, carry_over, make_agent
from tests.support.threads import assert_valid

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def external(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": {}}} | fields


def begin(*calls: str, **own: Any) -> SessionHarness:
    """A session with a tool of its own, whose request brings `order` and forces a call."""
    session = SessionHarness(tools=("add", "ask_add"))
    tools: Any = [external("order")]
    session.do(
        MessageInput.model_validate(
            {
                "content": "hello",
                "request_id": "r",
                "external_tools": tools,
                "model_options": {"tool_choice": "required", "temperature": 0.5},
            }
            | own,
            strict=False,
        )
    )
    session.reply("", *(calls or ("order",)))
    return session


def submit(session: SessionHarness, call: str = "tool00001", **settings: Any) -> None:
    chosen = RunSettings.model_validate(settings, strict=False)
    session.do(ToolResultInput(tool_call_id=call, content="done", settings=chosen))


def shown_tools(session: SessionHarness) -> list[str]:
    return [tool["name"] for tool in session.build_context(session.call).tool_spec]


def check_recipes(session: SessionHarness, shown: dict[str, Any]) -> None:
    """Each call's context can be built again from the thread alone, tools and schema included."""
    for entry in session.thread:
        if entry.recipe and (before := shown.get(entry.refs["call_id"])):
            again = rebuild_context(session.thread, entry.recipe, find_own_settings(session.thread, entry.recipe))
            assert again.meta.digest == before.meta.digest
            assert (again.tool_spec, again.output_schema) == (before.tool_spec, before.output_schema)


def test_the_tools_of_a_request_are_its_own() -> None:
    """They stand in the place of the session's external tools for the run, and the session keeps its own."""
    session = SessionHarness(tools=("add",), external_tools=(ExternalToolSpec.model_validate(external("ship")),))
    session.do(
        MessageInput.model_validate(
            {"content": "a", "request_id": "r", "external_tools": [external("order")]}, strict=False
        )
    )
    assert shown_tools(session) == ["add", "order"]
    shown = {session.call.call_id: session.build_context(session.call)}
    session.reply("", "order", "ship")
    results = [entry.payload["content"] for entry in session.thread if entry.payload.get("role") == "tool"]
    assert results == ["error: unknown tool 'ship'; the tools are: add, order"]
    session.do(ToolResultInput(tool_call_id="tool00001", content="done"))
    session.reply("fine")
    check_recipes(session, shown)
    session.ask("next")
    assert shown_tools(session) == ["add", "ship"]


def test_a_run_goes_on_with_the_settings_that_come_with_a_result() -> None:
    """A forced choice of a tool ends with the request that made it; what is absent is the session's again."""
    session = begin()
    first = {"call-1": session.thread[2].recipe}
    assert first["call-1"] is not None
    assert first["call-1"].model_options["tool_choice"] == "required"
    submit(
        session,
        model="openai:gpt-4.1",
        context_policy={"system_prompt": "Be brief."},
        output_schema=SCHEMA,
        external_tools=[external("cancel")],
    )
    call = session.call
    assert (call.options.tool_choice, call.options.temperature) == (None, None)
    assert call.model == "openai:gpt-4.1"
    context = session.build_context(call)
    assert context.messages[0] == {"role": "system", "content": "Be brief."}
    assert (shown_tools(session), context.output_schema) == (["add", "ask_add", "cancel"], SCHEMA)
    shown = {call.call_id: context}
    session.reply('{"ok": true}')
    assert session.find_ending("r") == ("completed", "final_answer")
    check_recipes(session, shown)
    result = next(entry for entry in session.thread if entry.payload.get("role") == "tool")
    assert result.payload["settings"]["external_tools"][0]["name"] == "cancel"
    session.ask("next")
    assert (session.call.model, shown_tools(session)) == ("openai:gpt-4o", ["add", "ask_add"])


def test_absent_settings_leave_the_run_as_it_is() -> None:
    """A caller that sends a result alone goes on with what the message had set."""
    session = begin()
    session.do(ToolResultInput(tool_call_id="tool00001", content="done"))
    assert (session.call.options.tool_choice, shown_tools(session)) == ("required", ["add", "ask_add", "order"])


def test_settings_hold_once_all_calls_of_the_round_have_results() -> None:
    """Those that came last; a call that still waits keeps the tool that it was made for, also over a rollover."""
    session = begin("order", "order")
    submit(session, external_tools=[])
    carried = carry_over(session)
    assert carried.state.run is not None
    assert carried.state.run.following is not None
    submit(session, "tool00002", model_options=ModelOptions(temperature=1).model_dump(exclude_unset=True))
    assert (session.call.options.temperature, session.call.options.tool_choice) == (1, None)


def test_settings_come_with_decisions_too() -> None:
    """An approved call runs first. The thread has the settings with the decision."""
    session = begin("ask_add")
    session.do(
        ApprovalInput(
            tool_call_id="tool00001", decision="approve", settings=RunSettings(model_options=ModelOptions(seed=7))
        )
    )
    session.answer_calls("3")
    assert (session.call.options.seed, session.call.options.tool_choice) == (7, None)
    approval = next(entry for entry in session.thread if entry.kind == "approval")
    assert approval.payload["settings"] == {"model_options": {"seed": 7}}


def test_settings_that_cannot_be_used_are_refused_with_the_result() -> None:
    """Nothing is committed, and the call still waits."""
    session = begin()
    rev = session.thread.rev
    wrong: tuple[dict[str, Any], ...] = (
        {"model_options": {"tool_choice": "fly"}},
        {"external_tools": [external("add")]},
        {"context_policy": {"projector": "none"}},
    )
    for settings in wrong:
        with pytest.raises(InvalidInput):
            submit(session, **settings)
    assert session.thread.rev == rev
    submit(session)
    assert session.call.iteration == 2


def test_another_agent_goes_on_with_the_request() -> None:
    """A worker resolves it before the next call, which has its prompt and its tools. The session keeps it."""
    session = SessionHarness(agent="support", prepare=False)
    session.answer_preparation(agent=make_agent(system_prompt="You help."), tools=("order_outside",))
    session.ask(request_id="r")
    session.reply("", "order_outside")
    submit(session, agent="sales")
    assert isinstance(session.effect, Prepare)
    assert session.effect.agent == "sales"
    session.answer_preparation(agent=make_agent("sales", system_prompt="You sell."), tools=("add",))
    context = session.build_context(session.call)
    assert context.messages[0] == {"role": "system", "content": "You sell."}
    assert shown_tools(session) == ["add"]
    session.reply("sold")
    assert session.find_ending("r") == ("completed", "final_answer")
    assert session.state.settings.config.agent == "sales"


def test_a_follow_up_run_takes_settings_too() -> None:
    """It has no message of its own, and what it answers is in the thread."""
    session = SessionHarness(tools=("order_outside",))
    session.ask(request_id="r")
    session.steer("and this")
    session.fail()
    session.reply("", "order_outside")
    submit(session, model_options={"seed": 3})
    assert session.call.options.seed == 3
    session.reply("fine")
    assert session.user_texts == ["hello", "and this"]


def test_a_request_of_one_call_a_reply_carries_out_the_first() -> None:
    """The model reads that the others were not run, and may call again."""
    session = SessionHarness(tools=("order_outside", "add"))
    session.ask(request_id="r", model_options=ModelOptions(parallel_tool_calls=False))
    session.reply("", "order_outside", "add", "order_outside")
    assert session.state.run is not None
    waiting = [call.tool_call_id for call in session.state.run.tool_calls if not call.returned]
    assert waiting == ["tool00001"]
    others = [entry.payload for entry in session.thread if entry.payload.get("role") == "tool"]
    assert [(other["tool_call_id"], other["is_error"]) for other in others] == [
        ("tool00002", True),
        ("tool00003", True),
    ]


def test_the_same_id_with_another_message_is_refused() -> None:
    """While the request waits, while it runs, when it has ended, and in the next workflow run."""
    session = SessionHarness()
    session.ask("hello", request_id="r", model_options=ModelOptions(temperature=0))
    for _ in range(2):
        for content, own in (("hello!", {}), ("hello", {}), ("hello", {"metadata": {"a": "b"}})):
            with pytest.raises(RequestReused):
                session.ask(content, request_id="r", **own)
        rev = session.thread.rev
        session.ask("hello", request_id="r", model_options=ModelOptions(temperature=0), on_busy="queue")
        assert session.thread.rev == rev
        if session.effect:
            session.reply("fine")
    known = carry_over(session).state.memory
    assert known.is_reused("request_id", "r", "another")
    assert not known.is_reused("request_id", "other", "another")
    assert not known.is_reused("input_id", "r", "another")


def test_a_session_remembers_the_newest_messages() -> None:
    """The session remembers as many ids as outcomes; an older id is a repetition, with any content."""
    memory = SessionHarness().state.memory
    for number in range(MAX_KNOWN_COMMANDS + 1):
        memory = memory.add_digest("request_id", str(number), "d")
    assert [memory.is_reused("request_id", name, "another") for name in ("0", "1")] == [False, True]
    assert not memory.is_reused("request_id", "1", "d")
    assert len(memory.digests) == MAX_KNOWN_COMMANDS


def test_what_was_answered_elsewhere_comes_before_the_runs_own_replies() -> None:
    """A message brings replies and results: the thread has them, under ids of its own, and the model goes on."""
    session = SessionHarness()
    session.do(
        MessageInput.model_validate_json(
            json.dumps(
                {
                    "content": "What is it?",
                    "request_id": "r",
                    "replies": [
                        {
                            "role": "assistant",
                            "content": "",
                            "tool_calls": [
                                {"id": "x", "name": "theirs", "arguments": {"a": 1}},
                                {"id": "y", "name": "theirs", "arguments": {}},
                            ],
                        },
                        {"role": "tool", "content": "sun", "tool_call_id": "x", "name": "theirs"},
                        {"role": "tool", "content": "rain", "tool_call_id": "y", "name": "theirs"},
                    ],
                }
            )
        )
    )
    messages = session.build_context(session.call).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["tool00001", "tool00002"]
    assert [message["content"] for message in messages[2:]] == ["sun", "rain"]
    assert_valid(messages)
    session.reply("", "add")
    assert [call.tool_call_id for call, _ in session.round.calls] == ["tool00003"]
    assert "replies" not in (session.thread[1].payload.get("settings") or {})


@pytest.mark.parametrize(
    "replies",
    [
        [{"role": "user", "content": "hi"}],
        [{"role": "tool", "content": "sun", "tool_call_id": "x"}],
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "a", "arguments": {}}]}],
    ],
)
def test_replies_are_whole_and_the_assistants(replies: list[dict[str, Any]]) -> None:
    """Each call has its result right behind it; what the user said is the message itself."""
    with pytest.raises(ValidationError):
        MessageInput.model_validate_json(json.dumps({"content": "a", "replies": replies}))
