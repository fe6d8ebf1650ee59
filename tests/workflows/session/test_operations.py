"""What changes a context: operations and configuration, at once or when the run has ended."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from clew.contract import ConfigureInput, ModelOptions
from clew.errors import InvalidOperation, InvalidTokenBudget, QueueFull, RequestReused, UnknownTool
from clew_workflows.contract.outputs import ConfigureReceipt
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import Prepare
from clew_workflows.session import commands, views
from clew_workflows.session.state import MAX_KNOWN_OPS, MAX_WAITING
from clew_workflows.thread.context.archived import retain
from clew_workflows.thread.thread import Thread
from tests.support.session_harness import UNKNOWN, SessionHarness, carry_over
from tests.support.threads import assert_valid

CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "add", "arguments": {}}]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "x", "name": "add"}
USER = {"role": "user", "content": "a"}


def list_lanes(session: SessionHarness) -> list[tuple[str, str]]:
    return [
        (entry.payload["op_id"], entry.payload["context_ref"])
        for entry in session.thread.filter_by_kind("ai_context_operation")
    ]


def test_an_operation_is_applied_at_once_where_nothing_runs() -> None:
    """The receipt names its entry; a replace changes its own lane and does not switch, a switch switches."""
    session = SessionHarness()
    receipt = session.operate("o-1", lane="draft")
    assert (receipt.status, receipt.seq) == ("applied", 1)
    assert session.state.context_ref == "default"
    session.operate("o-2", "switch", "draft")
    assert session.state.context_ref == "draft"
    session.ask("hello")
    assert [message["content"] for message in session.build_context(session.call).messages] == [
        "told by o-1",
        "hello",
    ]
    assert list_lanes(session) == [("o-1", "draft"), ("o-2", "draft")]


def test_a_fresh_lane_inherits_no_history() -> None:
    session = SessionHarness()
    session.ask("in default")
    session.reply("yes")
    session.operate("o-1", "switch", "fresh")
    session.ask("in fresh")
    assert [message["content"] for message in session.build_context(session.call).messages] == ["in fresh"]


@pytest.mark.parametrize("kind", ["pin", "unpin", "expand"])
def test_an_operation_without_a_lane_means_that_in_which_it_was_accepted(kind: str) -> None:
    """A switch that waits before it does not move it."""
    session = SessionHarness()
    session.ask("one")
    session.reply("two")
    session.operate("o-0", "replace", "default", reason="compaction", base_seq=1)
    session.ask("three")
    session.operate("o-1", "switch", "draft")
    fields: dict[str, Any] = {} if kind == "expand" else {"seqs": [2]}
    session.operate("o-2", kind, **fields)
    session.reply("four")
    assert list_lanes(session) == [("o-0", "default"), ("o-1", "draft"), ("o-2", "default")]
    assert session.state.context_ref == "draft"


def test_while_a_run_is_active_an_operation_waits_for_its_end() -> None:
    """The run's own calls see nothing of it; its outcome is committed first, the operation second."""
    session = SessionHarness()
    session.ask("hello")
    session.reply("", "add")
    assert session.operate("o-1").status == "deferred"
    session.answer_calls("4")
    assert session.build_context(session.call).messages[0]["content"] == "hello"
    session.reply("done")
    assert session.entry_names[-2:] == ["run", "ai_context_operation"]
    assert not session.state.deferred.operations
    session.ask("next")
    assert [message["content"] for message in session.build_context(session.call).messages] == ["told by o-1", "next"]


def test_the_latest_operation_wins() -> None:
    """The one that it supersedes leaves a `superseded` entry that names both, with what the caller had sent."""
    session = SessionHarness()
    session.ask()
    session.operate("o-1")
    session.operate("o-2", "switch", "draft")
    superseded = session.events("superseded")
    assert [(entry["op_id"], entry["kind"]) for entry in superseded] == [("o-1", "modify_context")]
    assert "'o-2'" in superseded[0]["reason"]
    sent = {"type": "replace", "result_context": {"messages": [{"role": "user", "content": "told by o-1"}]}}
    assert json.loads(superseded[0]["content"]) == {"op_id": "o-1", "context_ref": "default", "operation": sent}
    session.reply("done")
    assert list_lanes(session) == [("o-2", "draft")]


def test_an_operation_is_known_by_its_id() -> None:
    """Applied, waiting or superseded: its repetition is a duplicate, and changes and appends nothing."""
    session = SessionHarness()
    session.operate("applied")
    session.ask()
    session.operate("superseded")
    session.operate("waiting")
    state, rev = session.state, session.thread.rev
    for op_id in ("applied", "superseded", "waiting"):
        assert session.operate(op_id).status == "duplicate"
    assert (session.state, session.thread.rev) == (state, rev)
    session.reply("done")
    assert [op_id for op_id, _ in list_lanes(session)] == ["applied", "waiting"]


def test_the_same_id_with_another_operation_is_refused() -> None:
    """Applied, waiting, superseded or carried: another type, lane or content under its id changes nothing."""
    session = SessionHarness()
    session.ask()
    session.reply("done")
    session.operate("applied")
    session.operate("pinned", "pin", seqs=[1])
    session.ask()
    session.operate("superseded")
    session.operate("waiting")
    others: list[tuple[str, dict[str, Any]]] = [
        ("switch", {"lane": "draft"}),
        ("replace", {"lane": "draft"}),
        ("replace", {"result_context": {"messages": [USER]}}),
        ("expand", {}),
        ("pin", {"seqs": [2]}),
        ("unpin", {"seqs": [1]}),
    ]
    for _ in range(2):
        state, rev = session.state, session.thread.rev
        for op_id in ("applied", "pinned", "superseded", "waiting"):
            for kind, fields in others:
                with pytest.raises(RequestReused, match=f"op_id.*'{op_id}'"):
                    session.operate(op_id, kind, **fields)
        assert (session.state, session.thread.rev) == (state, rev)
        assert session.operate("pinned", "pin", seqs=[1]).status == "duplicate"
        if session.effect:
            session.reply("done")
    known = carry_over(session).state.memory
    assert known.is_reused("op_id", "waiting", "another")


def test_the_newest_128_ids_are_known() -> None:
    session = SessionHarness()
    for number in range(MAX_KNOWN_OPS + 1):
        session.operate(f"o-{number}")
    assert session.operate("o-1").status == "duplicate"
    assert session.operate("o-0").status == "applied"


@pytest.mark.parametrize(
    ("kind", "lane", "given", "says"),
    [
        ("replace", None, {"result_context": None}, "needs result_context"),
        ("replace", None, {"base_seq": 2}, "base_seq 2 is not in the thread"),
        ("replace", None, {"seqs": [0]}, "seqs: there is no such field"),
        ("switch", None, {}, "needs context_ref"),
        ("switch", "draft", {"base_seq": 0}, "base_seq: there is no such field"),
        ("pin", None, {"seqs": [0]}, "entry 0 is no message"),
        ("pin", None, {"seqs": [99]}, "entry 99 is no message"),
        ("pin", None, {}, "seqs: Field required"),
        ("pin", None, {"seqs": list(range(65))}, "at most 64"),
        ("unpin", None, {"seqs": []}, "seqs: List should have at least 1"),
        ("unpin", None, {"seqs": [0], "base_seq": 0}, "base_seq: there is no such field"),
        ("expand", None, {}, "nothing of the lane 'default' is compacted"),
        ("expand", None, {"seqs": [0]}, "seqs: there is no such field"),
        ("replace", None, {"result_context": {"messages": [RESULT]}}, "needs its tool call right before"),
        ("replace", None, {"result_context": {"messages": [CALL]}}, "end within tool calls"),
        ("replace", None, {"result_context": {"messages": [CALL, USER]}}, "need their results first"),
        ("replace", None, {"result_context": {"messages": [CALL, RESULT, RESULT]}}, "right before"),
        ("replace", None, {"result_context": {"messages": [CALL, RESULT, CALL, RESULT]}}, "twice"),
    ],
)
def test_an_operation_that_could_not_be_applied_is_refused(kind: str, lane: Any, given: Any, says: str) -> None:
    """Aloud, idle or running, and nothing has changed."""
    for busy in (False, True):
        session = SessionHarness()
        if busy:
            session.ask()
        state, rev = session.state, session.thread.rev
        with pytest.raises(InvalidOperation, match=says):
            session.operate("o", kind, lane, **given)
        assert (session.state, session.thread.rev) == (state, rev)


def test_base_seq_folds_what_lies_before_it() -> None:
    """What has come after it stays, behind the snapshot."""
    session = SessionHarness()
    session.ask("first")
    session.reply("one")
    session.operate("o-1", base_seq=1)
    session.ask("second")
    shown = [message["content"] for message in session.build_context(session.call).messages]
    assert shown == ["told by o-1", "one", "second"]


def test_a_change_of_configuration_is_an_entry() -> None:
    """At once where nothing runs; what it does not name, or names as null, stays."""
    session = SessionHarness(system_prompt="Be brief.", model_options=ModelOptions(seed=1))
    assert session.configure(model_options=ModelOptions(temperature=0), tools=None, on_busy="queue") == (
        commands.Configured()
    )
    config = session.thread[1]
    assert config.kind == "config"
    assert config.payload["model_options"] == {"seed": 1, "temperature": 0}
    assert (config.payload["system_prompt"], len(config.payload["tools"])) == ("Be brief.", 2)
    assert session.state.settings.config.on_busy == "queue"


def test_new_tools_are_resolved_before_they_are_committed() -> None:
    """What is asked meanwhile waits for that, and is served under the new configuration."""
    session = SessionHarness()
    session.configure(tools=("look",))
    assert session.effect == Prepare(model="openai:gpt-4o", tools=("look",), encoding="heuristic")
    session.ask("hello")
    session.answer_preparation(tools=("look",))
    assert session.entry_names == ["config", "config", "user"]
    assert [tool["name"] for tool in session.build_context(session.call).tool_spec] == ["look"]


def test_a_configuration_that_a_worker_does_not_know_fails_what_is_asked() -> None:
    session = SessionHarness()
    session.configure(model="nobody:m")
    request_id = session.ask()
    session.answer_preparation(UNKNOWN)
    assert session.entry_names == ["config", "config", "user", "error", "run"]
    assert session.find_ending(request_id) == ("failed", "unknown_model")


def test_deferred_changes_are_laid_over_each_other() -> None:
    """One `config` entry when the run has ended, field by field, within options, policy and limits too.

    Each change that a later one was laid over leaves its trace.
    """
    session = SessionHarness()
    session.ask()
    for changed in (
        {"model_options": ModelOptions(temperature=1, seed=1), "system_prompt": "A"},
        {"model_options": ModelOptions(temperature=None), "context_policy": ContextPolicy(keep_last_turns=1)},
        {"context_policy": ContextPolicy(max_messages=9), "system_prompt": "B", "steering": None},
    ):
        assert session.configure(**changed) == ConfigureReceipt(status="deferred")
    assert session.entry_names == ["config", "user", "input", "input"]
    merged = session.events("merged")
    assert [entry["kind"] for entry in merged] == ["configure", "configure"]
    assert '"system_prompt":"A"' in merged[0]["content"]
    session.reply("done")
    assert session.entry_names[-2:] == ["run", "config"]
    config = session.thread[-1 + session.thread.rev].payload
    assert (config["model_options"], config["system_prompt"]) == ({"seed": 1}, "B")
    assert (config["context_policy"]["keep_last_turns"], config["context_policy"]["max_messages"]) == (1, 9)


def test_changes_that_cannot_be_made_together_are_refused_when_they_are_asked_for() -> None:
    """Each would do alone. Where the run ends it would be too late to refuse."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=1000, reserve_output_tokens=100))
    session.ask()
    session.configure(context_policy=ContextPolicy(max_input_tokens=500))
    with pytest.raises(InvalidTokenBudget):
        session.configure(context_policy=ContextPolicy(reserve_output_tokens=600))
    session.reply("done")
    assert session.state.settings.policy.max_input_tokens == 500


def test_metadata_are_replaced() -> None:
    """A change names all of them, also one that a later one is merged with."""
    session = SessionHarness(metadata={"a": "1"})
    session.configure(metadata={"b": "2"})
    assert session.state.settings.config.metadata == {"b": "2"}
    session.ask("go")
    session.configure(metadata={"c": "3"})
    session.configure(metadata={"d": "4"}, on_busy="queue")
    session.reply("done")
    assert session.state.settings.config.metadata == {"d": "4"}


def test_metadata_are_bounded_together() -> None:
    """Every tool call that takes a context carries them."""
    with pytest.raises(ValidationError, match="at most 8192"):
        ConfigureInput(metadata={str(number): "x" * 1000 for number in range(9)})


def test_the_operation_comes_before_the_configuration() -> None:
    """And what waited in the queue is served in the lane and with the model that then hold."""
    session = SessionHarness()
    session.ask("one")
    session.ask("two", on_busy="queue")
    session.configure(model="openai:gpt-4.1")
    session.operate("o-1", "switch", "draft")
    session.reply("done")
    assert session.entry_names[-2:] == ["run", "ai_context_operation"]
    session.answer_preparation()
    assert session.entry_names[-2:] == ["config", "user"]
    assert (session.call.context_ref, session.call.model) == ("draft", "openai:gpt-4.1")


def test_what_waits_when_the_session_closes_leaves_a_fact() -> None:
    session = SessionHarness()
    session.ask()
    session.operate("o-1")
    session.configure(system_prompt="Be brief.")
    session.close()
    assert [(entry["kind"], entry["reason"]) for entry in session.events("dropped")] == [
        ("modify_context", "closed"),
        ("configure", "closed"),
    ]
    assert list_lanes(session) == []


def test_a_dropped_operation_is_known_when_the_session_is_opened_again() -> None:
    """It was accepted and left a fact: a repetition after the session was closed is a duplicate."""
    session = SessionHarness()
    session.ask()
    session.operate("o-1")
    session.close()
    session.state = replace(session.state, phase="idle")
    assert session.operate("o-1").status == "duplicate"


def test_a_session_that_is_taken_up_again_applies_operations_at_once() -> None:
    """Its configuration stands, so that none of several operations is superseded while a worker looks at it anew."""
    session = SessionHarness()
    session.state = replace(session.state, phase="preparing")
    assert session.operate("o-1").status == "applied"
    assert session.operate("o-2", "switch", "draft").status == "applied"
    session.answer_preparation()
    assert session.entry_names == ["config", "ai_context_operation", "ai_context_operation"]
    assert session.state.context_ref == "draft"


def test_marks_wait_beside_the_operation_in_order() -> None:
    """Two pins during one run are both applied, and neither takes the place of a `replace` that waits."""
    session = SessionHarness()
    session.ask("first")
    session.reply("one")
    session.ask("second")
    session.operate("p-1", "pin", seqs=[1])
    session.operate("s-1", "switch", "draft")
    session.operate("p-2", "pin", "default", seqs=[4])
    session.operate("s-2", "switch", "other")
    session.operate("u-1", "unpin", "default", seqs=[1])
    assert [waiting.op_id for waiting in session.state.deferred.operations] == ["p-1", "p-2", "s-2", "u-1"]
    assert [event["op_id"] for event in session.events("superseded")] == ["s-1"]
    assert session.operate("p-1", "pin", seqs=[1]).status == "duplicate"
    session.reply("two")
    assert list_lanes(session) == [("p-1", "default"), ("p-2", "default"), ("s-2", "other"), ("u-1", "default")]
    lane = session.thread.get_lane("default")
    assert lane
    assert lane.layers.pinned == (4,)
    assert session.state.context_ref == "other"


def test_no_more_than_64_operations_wait() -> None:
    """The next one is refused; one that takes the place of another is not."""
    session = SessionHarness()
    session.operate("r-1", lane="draft")
    session.ask("first")
    for number in range(MAX_WAITING - 1):
        session.operate(f"u-{number}", "unpin", seqs=[1])
    session.operate("s-1", "switch", "draft")
    with pytest.raises(QueueFull, match="64 context operations wait"):
        session.operate("u-last", "unpin", seqs=[1])
    session.operate("s-2", "switch", "other")
    session.reply("done")
    assert len(list_lanes(session)) == 1 + MAX_WAITING


def test_what_pins_would_hold_together_is_checked_where_they_wait() -> None:
    """Each would fit alone; at the end of the run it would be too late to refuse."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=200, reserve_output_tokens=0))
    for content in ("word " * 50, "word " * 51):
        session.ask(content)
        session.reply("yes")
    session.ask("more")
    session.operate("p-1", "pin", seqs=[1])
    with pytest.raises(InvalidOperation, match="at most half of the budget"):
        session.operate("p-2", "pin", seqs=[4])
    session.operate("u-1", "unpin", seqs=[1])
    assert session.operate("p-3", "pin", seqs=[4]).status == "deferred"


def test_as_many_expands_wait_as_there_are_layers() -> None:
    session = SessionHarness()
    session.ask()
    with pytest.raises(InvalidOperation, match="nothing of the lane"):
        session.operate("x-1", "expand")


def test_operations_are_applied_in_order_while_a_configuration_is_prepared() -> None:
    """A run alone makes them wait: the draft is not lost to the switch that follows it."""
    session = SessionHarness()
    session.configure(model="local:smollm2")
    assert session.state.phase == "preparing"
    assert session.operate("r-1", lane="draft").status == "applied"
    assert session.operate("s-1", "switch", "draft").status == "applied"
    session.answer_preparation()
    session.ask("hello")
    assert [message["content"] for message in session.build_context(session.call).messages] == [
        "told by r-1",
        "hello",
    ]


def test_an_operation_is_not_applied_before_a_message_that_waits_for_a_configuration() -> None:
    """The message was accepted first, and is served in the lane that was active then."""
    session = SessionHarness()
    session.configure(model="local:smollm2")
    session.ask("hello")
    assert session.operate("s-1", "switch", "draft").status == "deferred"
    session.answer_preparation()
    assert session.call.context_ref == "default"


def test_tool_call_ids_of_a_snapshot_are_made_unique() -> None:
    """Those that the session mints may be in it, and in any other snapshot."""
    session = SessionHarness()
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "tool00001", "name": "add", "arguments": {}}]}
    result = {"role": "tool", "content": "4", "tool_call_id": "tool00001", "name": "add"}
    session.operate("r-1", result_context={"messages": [USER, call, result]})
    session.ask("again")
    session.reply("", "add")
    session.answer_calls("5")
    messages = session.build_context(session.call).messages
    assert_valid(messages)
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 2
    assert ids[1] == "tool00001"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", ids[0])


@pytest.mark.parametrize("config", [{"require_approval": ("ad",)}, {"tools": (), "require_approval": ("add",)}])
def test_approval_for_a_tool_that_is_not_there_is_refused(config: Any) -> None:
    """A typo would run the call without approval; at the start, and in a change, together with what waits."""
    with pytest.raises(UnknownTool, match="require_approval names"):
        SessionHarness(prepare=False, **config)
    session = SessionHarness()
    with pytest.raises(UnknownTool, match="require_approval names"):
        session.configure(**config)
    session.ask()
    session.configure(tools=("look",))
    with pytest.raises(UnknownTool, match="its tools are look"):
        session.configure(require_approval=("add",))


def test_a_configuration_is_recorded_whole() -> None:
    """What does not shape a context too: approval, behaviour when busy, limits in time, metadata."""
    session = SessionHarness(metadata={"user": "u-1"}, require_approval=("add",), on_busy="queue", max_iterations=3)
    config = session.thread[0].payload
    assert (config["metadata"], config["require_approval"]) == ({"user": "u-1"}, ["add"])
    assert (config["on_busy"], config["max_iterations"], config["request_timeout_seconds"]) == ("queue", 3, 900)
    session.configure(require_approval=())
    assert session.thread[1].payload["require_approval"] == []
    status = views.answer_status(session.state, session.thread)
    assert status["metadata"] == {"user": "u-1"}
    assert status["config"]["require_approval"] == []


def test_a_pin_of_what_is_known_to_be_no_message_is_refused() -> None:
    """Where all of a lane is held, also of its archived part; an archived message of it can be pinned."""
    session = SessionHarness()
    session.ask("one")
    session.reply("yes")
    first_seq, needs = session.thread.rev, {"default": [session.state.settings.policy]}
    retained = retain(session.thread, first_seq, needs, room=1_000_000)
    session.thread = Thread((), first_seq, retained)
    with pytest.raises(InvalidOperation, match="entry 0 is no message"):
        session.operate("o-1", "pin", seqs=[0])
    assert session.operate("o-2", "pin", seqs=[1]).status == "applied"
    assert session.operate("o-3", "pin", seqs=[1, 2]).status == "applied"
