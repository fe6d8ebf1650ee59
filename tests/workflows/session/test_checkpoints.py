"""Checkpoints: what they take of a session, and how a session takes them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from clew import ClearToolResults, ContextPolicy
from clew.contract import CheckpointInput, ContextOperation, Limits
from clew.contract.payloads import SummaryPayload
from clew.errors import Busy, TooLarge, UnknownLane
from clew_workflows.contract.messages import list_call_ids
from clew_workflows.session.checkpoints import (
    check_checkpoint,
    draft_checkpoint,
    list_restore_operations,
    make_restore_operation,
)
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.entries import Draft
from tests.support import session_harness


def make_draft(session: session_harness.SessionHarness, lane: str = "default") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        draft_checkpoint(session.state, session.thread, lane, session.thread.last_seq).payload
    )
    return value


def test_a_checkpoint_holds_the_results_that_a_context_has_cleared() -> None:
    """The new session has no thread that they could be read from."""
    policy = ContextPolicy(clear_tool_results=ClearToolResults(keep=0))
    session = session_harness.SessionHarness(tools=("look",), context_policy=policy)
    session.ask("look")
    session.reply("", "look")
    session.answer_calls("blue " * 100)
    session.reply("it is blue")
    cleared = build_context(session.thread)
    assert cleared.meta.cleared_tool_results == 1
    assert [message["content"] for message in make_draft(session)["context"]["messages"]] == [
        *("look", "", "blue " * 100, "it is blue")
    ]


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_summary_becomes_a_users_message(role: Any) -> None:
    """The prompt is not among the messages, and where it is the session's own the configuration has it."""
    session = session_harness.SessionHarness(
        system_prompt="Be brief.", context_policy=ContextPolicy(summary_role=role)
    )
    session.ask("hello")
    session.take_event(session_harness.make_reply(content="fine"))
    said = {"context_ref": "default", "from_seq": 1, "to_seq": 1, "content": "a greeting", "format": "text"}
    session.commit(Draft(SummaryPayload.from_json(said | {"model": "local:tiny"})))
    draft = make_draft(session)
    assert draft["context"] == {
        "messages": [
            {"role": "user", "content": "Summary of earlier conversation:\na greeting"},
            {"role": "assistant", "content": "fine"},
        ]
    }
    assert draft["config"]["system_prompt"] == "Be brief."


def test_a_lanes_own_prompt_goes_with_it() -> None:
    """Also if the lane's own setting is to have no prompt."""
    session = session_harness.SessionHarness(system_prompt="Be brief.")
    session.operate("o-1", result_context={"messages": [], "system_prompt": "Be long."})
    assert make_draft(session)["context"] == {"messages": [], "system_prompt": "Be long."}
    session.operate("o-2", result_context={"messages": [], "system_prompt": ""})
    assert make_draft(session)["context"] == {"messages": [], "system_prompt": ""}


def test_what_was_configured_goes_along() -> None:
    """Set fields of the policy are restored; fields that were never set stay unset."""
    session = session_harness.SessionHarness(tools=("add",))
    assert make_draft(session)["config"] == {"model": "openai:gpt-4o", "encoding": "heuristic", "tools": ["add"]}
    session.configure(context_policy=ContextPolicy(keep_last_turns=9))
    assert make_draft(session)["config"]["context_policy"]["keep_last_turns"] == 9


def test_a_restored_session_takes_its_context_as_any_snapshot() -> None:
    """A call and its result stay together under new ids, and ids stay ids, however often a session is restored."""
    call = {"id": "tool00001", "name": "add", "arguments": {}}
    said = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "tool00001"},
    ]
    payload: dict[str, Any] = {
        "session_id": "s",
        "at_seq": 1,
        "context_ref": "default",
        "context": {"messages": said},
    }
    ids = ["tool00001"]
    for _ in range(3):
        session = session_harness.SessionHarness()
        session.do(ContextOperation.model_validate_json(json.dumps(make_restore_operation(payload, "o"))))
        asked, told = session.context().messages
        (call_id,) = list_call_ids(asked)
        assert told.get("tool_call_id") == call_id not in ids
        ids.append(call_id)
        payload = payload | {"context": {"messages": [asked, told]}}


def test_a_checkpoint_covers_the_tools_of_servers() -> None:
    """A worker that restores it resolves the configured names to the same schemas."""
    session = session_harness.SessionHarness(tools=("mcp:files/*", "add"), prepare=False)
    session.answer_preparation(tools=("mcp__files__read", "add", "read_result"))
    drafted = draft_checkpoint(session.state, session.thread, "default", session.thread.last_seq)
    assert [tool["name"] for tool in drafted.fingerprinted["tools"]] == ["mcp__files__read", "add"]


def test_a_session_at_rest_is_checkpointed() -> None:
    """Its active lane, also before its first message, and every other lane that it has."""
    session = session_harness.SessionHarness()
    check_checkpoint(session.state, session.thread, CheckpointInput())
    session.ask()
    with pytest.raises(Busy):
        check_checkpoint(session.state, session.thread, CheckpointInput())
    session.reply("fine")
    check_checkpoint(session.state, session.thread, CheckpointInput(context_ref="default"))
    with pytest.raises(UnknownLane):
        check_checkpoint(session.state, session.thread, CheckpointInput(context_ref="draft"))
    session.operate("o-1", lane="draft")
    check_checkpoint(session.state, session.thread, CheckpointInput(context_ref="draft"))


def test_a_checkpoint_is_at_most_as_large_as_an_input() -> None:
    """A session could not take a larger one."""

    def draft(limit: int) -> None:
        session = session_harness.SessionHarness(limits=Limits(max_message_bytes=limit))
        session.operate("o-1", result_context={"messages": [{"role": "user", "content": "blue"}]})
        make_draft(session)

    with pytest.raises(TooLarge) as error:
        draft(100)
    match = re.search(r"has (\d+) bytes", str(error.value))
    assert match
    draft(int(match[1]))
    with pytest.raises(TooLarge):
        draft(int(match[1]) - 1)


def test_the_callers_refs_go_along() -> None:
    """Each message keeps its own, also from checkpoint to checkpoint."""
    session = session_harness.SessionHarness()
    session.ask("one", refs={"ticket": "1"})
    session.steer("two", at="step")
    session.reply("", "add")
    session.answer_calls("3")
    session.steer("one", refs={"ticket": "3"})
    session.reply("fine")
    session.steer("one", refs={"ticket": "4"})
    session.steer("one", refs={"ticket": "5"})
    session.reply("fine")
    session.reply("fine")
    for _ in range(2):
        messages = make_draft(session)["context"]["messages"]
        assert [message.get("refs") for message in messages if message["role"] == "user"] == [
            *({"ticket": "1"}, None, {"ticket": "3"}, {"ticket": "4"}, {"ticket": "5"})
        ]
        payload = {"session_id": "s", "at_seq": 1, "context_ref": "default", "context": {"messages": messages}}
        session = session_harness.SessionHarness()
        session.do(ContextOperation.model_validate_json(json.dumps(make_restore_operation(payload, "o"))))


def test_a_restored_session_goes_on_in_the_lane_of_its_checkpoint() -> None:
    """The default lane is active in a new session; another one is made so."""
    for lane, kinds in (("default", ["replace"]), ("draft", ["replace", "switch"])):
        payload = {"session_id": "s", "at_seq": 1, "context_ref": lane, "context": {"messages": []}}
        operations = list_restore_operations(payload, "o")
        assert [operation["operation"]["type"] for operation in operations] == kinds
        assert {operation["context_ref"] for operation in operations} == {lane}
