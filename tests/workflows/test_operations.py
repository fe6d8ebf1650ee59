"""What changes a context: operations and configuration, at once or when the run has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clew.answers import ConfigureReceipt
from clew.contract import ModelOptions
from clew.errors import InvalidOperation, InvalidTokenBudget
from clew.policy import ContextPolicy
from tests.workflows.paper import UNKNOWN, Session
from workflows import commands
from workflows.effects import Prepare
from workflows.state import REMEMBERED_OPS

CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "add", "arguments": {}}]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "x", "name": "add"}
USER = {"role": "user", "content": "a"}


def lanes(session: Session) -> list[tuple[str, str]]:
    return [
        (entry.payload["op_id"], entry.payload["context_ref"])
        for entry in session.thread.filter_by_kind("ai_context_operation")
    ]


def test_an_operation_is_applied_at_once_where_nothing_runs() -> None:
    """The receipt names its entry; a replace changes its own lane and does not switch, a switch switches."""
    session = Session()
    receipt = session.operate("o-1", lane="draft")
    assert (receipt.status, receipt.seq) == ("applied", 1)
    assert session.state.context_ref == "default"
    session.operate("o-2", "switch", "draft")
    assert session.state.context_ref == "draft"
    session.ask("hello")
    assert [message["content"] for message in session.shown(session.call).messages] == ["told by o-1", "hello"]
    assert lanes(session) == [("o-1", "draft"), ("o-2", "draft")]


def test_a_fresh_lane_inherits_no_history() -> None:
    session = Session()
    session.ask("in default")
    session.reply("yes")
    session.operate("o-1", "switch", "fresh")
    session.ask("in fresh")
    assert [message["content"] for message in session.shown(session.call).messages] == ["in fresh"]


def test_while_a_run_is_active_an_operation_waits_for_its_end() -> None:
    """The run's own calls see nothing of it; its outcome is committed first, the operation second."""
    session = Session()
    session.ask("hello")
    session.reply("", "add")
    assert session.operate("o-1").status == "deferred"
    session.results("4")
    assert session.shown(session.call).messages[0]["content"] == "hello"
    session.reply("done")
    assert session.facts[-2:] == ["run", "ai_context_operation"]
    assert session.state.pending_op is None
    session.ask("next")
    assert [message["content"] for message in session.shown(session.call).messages] == ["told by o-1", "next"]


def test_the_latest_operation_wins() -> None:
    """The one that it overtakes leaves a `superseded` entry that names both."""
    session = Session()
    session.ask()
    session.operate("o-1")
    session.operate("o-2", "switch", "draft")
    overtaken = session.events("superseded")
    assert [(entry["op_id"], entry["kind"]) for entry in overtaken] == [("o-1", "modify_context")]
    assert "'o-2'" in overtaken[0]["reason"]
    session.reply("done")
    assert lanes(session) == [("o-2", "draft")]


def test_an_operation_is_known_by_its_id() -> None:
    """Applied, waiting or overtaken: its repetition is a duplicate, and changes and appends nothing."""
    session = Session()
    session.operate("applied")
    session.ask()
    session.operate("overtaken")
    session.operate("waiting")
    state, rev = session.state, session.thread.rev
    for op_id in ("applied", "overtaken", "waiting"):
        assert session.operate(op_id).status == "duplicate"
    assert (session.state, session.thread.rev) == (state, rev)
    session.reply("done")
    assert [op_id for op_id, _ in lanes(session)] == ["applied", "waiting"]


def test_the_newest_128_ids_are_known() -> None:
    session = Session()
    for number in range(REMEMBERED_OPS + 1):
        session.operate(f"o-{number}")
    assert session.operate("o-1").status == "duplicate"
    assert session.operate("o-0").status == "applied"


@pytest.mark.parametrize(
    ("kind", "lane", "given", "says"),
    [
        ("replace", None, {"result_context": None}, "needs result_context"),
        ("replace", None, {"base_seq": 2}, "base_seq 2 is not in the thread"),
        ("replace", None, {"seqs": [0]}, "takes no seqs"),
        ("switch", None, {}, "needs context_ref"),
        ("switch", "draft", {"base_seq": 0}, "takes no context"),
        ("pin", None, {"seqs": [0]}, "entry 0 is no message"),
        ("pin", None, {"seqs": [99]}, "entry 99 is no message"),
        ("pin", None, {}, "needs seqs"),
        ("pin", None, {"seqs": list(range(65))}, "at most 64"),
        ("unpin", None, {"seqs": []}, "needs seqs"),
        ("unpin", None, {"seqs": [0], "base_seq": 0}, "takes no context"),
        ("expand", None, {}, "nothing of the lane 'default' is compacted"),
        ("expand", None, {"seqs": [0]}, "takes no seqs"),
        ("replace", None, {"result_context": {"messages": [RESULT]}}, "needs its tool call right before"),
        ("replace", None, {"result_context": {"messages": [CALL]}}, "ends within tool calls"),
        ("replace", None, {"result_context": {"messages": [CALL, USER]}}, "need their results first"),
        ("replace", None, {"result_context": {"messages": [CALL, RESULT, RESULT]}}, "right before"),
        ("replace", None, {"result_context": {"messages": [CALL, RESULT, CALL, RESULT]}}, "twice"),
    ],
)
def test_an_operation_that_could_not_be_applied_is_refused(kind: str, lane: Any, given: Any, says: str) -> None:
    """Aloud, idle or running, and nothing has changed."""
    for busy in (False, True):
        session = Session()
        if busy:
            session.ask()
        state, rev = session.state, session.thread.rev
        with pytest.raises(InvalidOperation, match=says):
            session.operate("o", kind, lane, **given)
        assert (session.state, session.thread.rev) == (state, rev)


def test_base_seq_folds_what_lies_before_it() -> None:
    """What has come after it stays, behind the snapshot."""
    session = Session()
    session.ask("first")
    session.reply("one")
    session.operate("o-1", base_seq=1)
    session.ask("second")
    shown = [message["content"] for message in session.shown(session.call).messages]
    assert shown == ["told by o-1", "one", "second"]


def test_a_change_of_configuration_is_an_entry() -> None:
    """At once where nothing runs; what it does not name, or names as null, stays."""
    session = Session(system_prompt="Be brief.", model_options=ModelOptions(seed=1))
    assert session.configure(model_options=ModelOptions(temperature=0), tools=None, on_busy="queue") == (
        commands.Configured()
    )
    config = session.thread[1]
    assert config.kind == "config"
    assert config.payload["model_options"] == {"seed": 1, "temperature": 0}
    assert (config.payload["system_prompt"], len(config.payload["tools"])) == ("Be brief.", 2)
    assert session.state.config.on_busy == "queue"


def test_new_tools_are_resolved_before_they_are_committed() -> None:
    """What is asked meanwhile waits for that, and is served under the new configuration."""
    session = Session()
    session.configure(tools=("look",))
    assert session.effect == Prepare(model="openai:gpt-4o", tools=("look",))
    session.ask("hello")
    session.prepared(tools=("look",))
    assert session.facts == ["config", "config", "user"]
    assert [tool["name"] for tool in session.shown(session.call).tool_spec] == ["look"]


def test_a_configuration_that_a_worker_does_not_know_fails_what_is_asked() -> None:
    session = Session()
    session.configure(model="nobody:m")
    request_id = session.ask()
    session.prepared(UNKNOWN)
    assert session.facts == ["config", "config", "user", "error", "run"]
    assert session.ended(request_id) == ("failed", "unknown_model")


def test_deferred_changes_are_laid_over_each_other() -> None:
    """One entry when the run has ended, field by field, within options, policy and limits too."""
    session = Session()
    session.ask()
    for changed in (
        {"model_options": ModelOptions(temperature=1, seed=1), "system_prompt": "A"},
        {"model_options": ModelOptions(temperature=None), "context_policy": ContextPolicy(keep_last_turns=1)},
        {"context_policy": ContextPolicy(max_messages=9), "system_prompt": "B", "steering": None},
    ):
        assert session.configure(**changed) == ConfigureReceipt(status="deferred")
    assert session.facts == ["config", "user"]
    session.reply("done")
    assert session.facts[-2:] == ["run", "config"]
    config = session.thread[-1 + session.thread.rev].payload
    assert (config["model_options"], config["system_prompt"]) == ({"seed": 1}, "B")
    assert (config["context_policy"]["keep_last_turns"], config["context_policy"]["max_messages"]) == (1, 9)


def test_changes_that_cannot_be_made_together_are_refused_when_they_are_asked_for() -> None:
    """Each would do alone. Where the run ends it would be too late to refuse."""
    session = Session(context_policy=ContextPolicy(max_input_tokens=1000, reserve_output_tokens=100))
    session.ask()
    session.configure(context_policy=ContextPolicy(max_input_tokens=500))
    with pytest.raises(InvalidTokenBudget):
        session.configure(context_policy=ContextPolicy(reserve_output_tokens=600))
    session.reply("done")
    assert session.state.policy.max_input_tokens == 500


def test_the_operation_comes_before_the_configuration() -> None:
    """And what waited in the queue is served in the lane and with the model that then hold."""
    session = Session()
    session.ask("one")
    session.ask("two", on_busy="queue")
    session.configure(model="openai:gpt-4.1")
    session.operate("o-1", "switch", "draft")
    session.reply("done")
    assert session.facts[-2:] == ["run", "ai_context_operation"]
    session.prepared()
    assert session.facts[-2:] == ["config", "user"]
    assert (session.call.context_ref, session.call.model) == ("draft", "openai:gpt-4.1")


def test_what_waits_when_the_session_closes_leaves_a_fact() -> None:
    session = Session()
    session.ask()
    session.operate("o-1")
    session.configure(system_prompt="Be brief.")
    session.close()
    assert [(entry["kind"], entry["reason"]) for entry in session.events("dropped")] == [
        ("modify_context", "closed"),
        ("configure", "closed"),
    ]
    assert lanes(session) == []


def test_a_session_that_is_taken_up_again_applies_operations_at_once() -> None:
    """Its configuration stands, so that none of several operations is overtaken while a worker looks at it anew."""
    session = Session()
    session.state = replace(session.state, phase="preparing")
    assert session.operate("o-1").status == "applied"
    assert session.operate("o-2", "switch", "draft").status == "applied"
    session.prepared()
    assert session.facts == ["config", "ai_context_operation", "ai_context_operation"]
    assert session.state.context_ref == "draft"
