"""What is asked of a session: requests with settings of their own, inputs for the run in progress, cancellations."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import MessageInput, ModelOptions, SubmitInput
from clew.contract.policy import ContextPolicy
from clew.errors import Busy, Idle, InvalidInput, QueueFull, RequestMismatch
from clew.outcomes import Usage
from clew_workflows.core import outcomes, requests
from clew_workflows.core.state import MAX_WAITING, MAX_WAITING_BYTES
from clew_workflows.protocol import ToolAnswered, ToolReturned
from tests.support.session_harness import SessionHarness


def test_a_request_may_bring_settings_of_its_own() -> None:
    """Model, options, iterations, time and policy are the request's where it names them, and no one else's."""
    session = SessionHarness(
        model_options=ModelOptions(temperature=1, seed=1), max_iterations=3, request_timeout_seconds=100
    )
    session.ask(
        model="anthropic:claude-sonnet-4-5",
        model_options=ModelOptions(temperature=0),
        max_iterations=1,
        timeout_seconds=7,
    )
    call = session.call
    assert call.model == "anthropic:claude-sonnet-4-5"
    assert (call.options.temperature, call.options.seed) == (0, 1)
    assert session.state.run is not None
    assert session.state.run.deadline == 7
    session.reply("", "add")
    assert session.thread[-1 + session.thread.rev].payload["termination_reason"] == "max_iterations"
    session.ask("plain")
    assert session.call.model == "openai:gpt-4o"
    assert (session.call.options.temperature, session.call.context_policy) == (1, None)
    assert session.state.run.deadline == 100


def test_max_output_tokens_is_always_set() -> None:
    """By the request, the session, or what the policy in force reserves for the output."""
    policy = ContextPolicy(reserve_output_tokens=1000)
    session = SessionHarness(context_policy=policy)
    session.ask()
    assert session.call.options.max_output_tokens == 1000
    session.reply("hi")
    session.ask(context_policy=ContextPolicy(reserve_output_tokens=500))
    assert session.call.options.max_output_tokens == 500
    session.reply("hi")
    session.ask(context_policy=ContextPolicy(reserve_output_tokens=0))
    assert session.call.options.max_output_tokens == requests.DEFAULT_OUTPUT_TOKENS
    session.reply("hi")
    session.ask(model_options=ModelOptions(max_output_tokens=9))
    assert session.call.options.max_output_tokens == 9


def test_a_request_with_another_model_gets_the_policy_for_that_model() -> None:
    """Where the agent has chosen none: the window of the session's model says nothing about another's."""
    session = SessionHarness(table=True, model="openai:gpt-4o")
    session.ask(model="local:smollm2", context_policy=ContextPolicy(keep_last_turns=1))
    policy = session.call.context_policy
    assert policy is not None
    assert (policy.max_input_tokens, policy.keep_last_turns) == (8192, 1)
    assert session.build_context(session.call).meta.policy_hash == policy.hash


def test_a_policy_that_the_agent_chose_holds_for_every_model() -> None:
    """Only the request's own policy stands above it: a request's model says nothing about it."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=3000, include_kinds=("message",)))
    session.ask(model="openai:gpt-4.1")
    assert session.call.context_policy is None
    assert session.build_context(session.call).meta.policy_hash == session.state.policy.hash


def test_the_policy_of_a_request_overlays_the_sessions_field_by_field() -> None:
    """What the request does not name stays as the session has it."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=3000, keep_last_turns=7))
    session.ask(context_policy=ContextPolicy(keep_last_turns=1))
    expected = session.state.policy.model_copy(update={"keep_last_turns": 1})
    assert session.build_context(session.call).meta.policy_hash == expected.hash


def test_a_terminal_input_is_read_after_the_answer() -> None:
    """The answer stays in context and the run goes on; only an empty buffer lets it complete."""
    session = SessionHarness()
    request_id = session.ask("hello")
    session.steer("only the last one", "i-1")
    session.reply("", "add")
    session.answer_calls("4")
    assert session.user_texts == ["hello"]
    session.reply("first answer")
    assert session.entry_names[-2:] == ["assistant", "user"]
    steered = session.thread[session.thread.last_seq]
    assert (steered.payload["input_id"], steered.payload["source"]) == ("i-1", "steer")
    assert (steered.refs["request_id"], steered.refs["call_id"]) == (request_id, session.call.call_id)
    assert session.call.at_seq == session.thread.last_seq
    session.reply("second answer")
    assert session.thread[session.find_outcome(request_id)["answer_seq"]].payload["content"] == "second answer"
    assert session.entry_names.count("run") == 1


def test_a_step_input_is_read_before_the_next_call() -> None:
    """Behind the results of the round, never within it; what is terminal waits on."""
    session = SessionHarness()
    session.ask("hello")
    session.reply("", "add")
    session.steer("later", at="terminal")
    session.steer("now", at="step")
    session.answer_calls("4")
    assert session.entry_names[2:] == ["assistant", "tool", "user"]
    assert session.user_texts == ["hello", "now"]
    assert len(session.state.inbox) == 1


def test_a_session_may_steer_by_the_step() -> None:
    """Where an input does not say, the configuration does."""
    session = SessionHarness(steering="step")
    session.ask("hello")
    session.reply("", "add")
    session.steer("now")
    session.steer("later", at="terminal")
    session.answer_calls("4")
    assert session.user_texts == ["hello", "now"]


def test_inputs_are_read_in_their_order_one_message_each() -> None:
    session = SessionHarness()
    session.ask("hello")
    for number in range(5):
        receipt = session.steer(f"n{number}", kind="inject" if number % 2 else "steer")
        assert receipt.position == number + 1
    session.reply("done")
    assert session.user_texts == ["hello", "n0", "n1", "n2", "n3", "n4"]


def test_an_idle_session_takes_no_input() -> None:
    """Loudly: before its first request, and after its last."""
    session = SessionHarness()
    for _ in range(2):
        with pytest.raises(Idle):
            session.steer()
        session.ask()
        session.reply("done")


def test_an_input_may_say_which_request_it_is_for() -> None:
    session = SessionHarness()
    session.ask(request_id="r-1")
    with pytest.raises(RequestMismatch, match="'r-1' is running, not 'r-0'"):
        session.steer(expected_request_id="r-0")
    assert session.steer(expected_request_id="r-1").request_id == "r-1"


def test_an_input_may_be_for_a_request_that_has_joined_the_run() -> None:
    """It is that run which reads it; a request that waits for its turn is not meant."""
    session = SessionHarness()
    session.ask(request_id="r-1")
    session.ask("too", "r-2", on_busy="steer")
    session.ask("later", "r-3", on_busy="queue")
    session.steer("both", expected_request_id="r-2")
    with pytest.raises(RequestMismatch, match="'r-1' is running, not 'r-3'"):
        session.steer(expected_request_id="r-3")
    session.reply("one")
    assert session.user_texts == ["hello", "too", "both"]


@pytest.mark.parametrize(("size", "count"), [(1, MAX_WAITING), (MAX_WAITING_BYTES // 4 - 500, 4)])
@pytest.mark.parametrize("what", ["inputs", "joining messages", "queued messages"])
def test_what_waits_has_a_limit(what: str, size: int, count: int) -> None:
    """64, or 512 KiB with all that a message brings, and one more is `queue_full`."""
    session = SessionHarness()
    session.ask()
    content = "é" * (size // 2) or "x"

    def one_more() -> None:
        if what == "inputs":
            session.steer(content)
        else:
            session.do(MessageInput(content=content, on_busy="steer" if what == "joining messages" else "queue"), "r")

    for number in range(count):
        if what == "inputs":
            session.steer(content)
        else:
            session.ask(content, f"r-{number}", on_busy="steer" if what == "joining messages" else "queue")
    state = session.state
    with pytest.raises(QueueFull):
        one_more()
    assert session.state is state


def test_messages_that_cannot_join_are_limited_as_the_queue_is() -> None:
    """Before anything runs there is nothing to join: `steer` queues."""
    session = SessionHarness(prepare=False, on_busy="steer")
    for number in range(MAX_WAITING):
        session.ask("x", f"r-{number}")
    with pytest.raises(QueueFull):
        session.ask("x", "one more")


def test_a_repeated_input_is_answered_as_the_first_time() -> None:
    """Also after it was read, and when the session is idle again."""
    session = SessionHarness()
    session.ask()
    session.steer("a", "i-0")
    first = session.steer("b", "i-1")
    assert session.steer("b", "i-1") == first
    session.reply("one")
    assert session.steer("b", "i-1") == first
    session.reply("two")
    assert session.steer("b", "i-1") == first
    assert session.user_texts == ["hello", "a", "b"]


@pytest.mark.parametrize("end", ["failure", "max_iterations", "tools at max_iterations"])
def test_what_a_run_has_not_read_is_answered_by_a_follow_up(end: str) -> None:
    """One run for all of it, behind the outcome; what may be dropped is, with a fact."""
    session = SessionHarness(max_iterations=1)
    session.ask(request_id="r-1")
    session.steer("a", "i-1")
    session.steer("b", "i-2", on_failure="drop")
    session.steer("c", "i-3", kind="inject")
    match end:
        case "failure":
            session.fail()
        case "max_iterations":
            session.reply("well")
        case _:
            session.reply("", "add")
    assert session.entry_names[-4:] == ["input", "run", "user", "user"]
    dropped = session.events("dropped")
    assert [(entry["input_id"], entry["kind"], entry["content"]) for entry in dropped] == [("i-2", "steer", "b")]
    assert session.user_texts == ["hello", "a", "c"]
    assert session.call.request_id == session.state.request_id == "followup:run-1"
    session.reply("done")
    assert session.find_ending("followup:run-1") == ("completed", "final_answer")


def test_after_a_cancel_inputs_are_dropped() -> None:
    """Stop means stop, unless who cancels says otherwise."""
    for left, facts in (("drop", ["input", "run"]), ("follow_up", ["run", "user"])):
        session = SessionHarness()
        session.ask(request_id="r-1")
        session.steer("a", "i-1")
        assert session.cancel(inputs=left).cancelled
        assert session.entry_names[2:] == facts
        assert session.find_ending("r-1") == ("cancelled", "cancelled")


def test_the_terminal_transition_has_its_order() -> None:
    """Open calls, dropped inputs, outcome; operation, configuration; then who interrupts, and later the queue."""
    session = SessionHarness()
    session.ask("one", "r-1")
    session.reply("", "add")
    session.ask("queued", "r-2", on_busy="queue")
    session.steer("a")
    session.operate("o-1")
    session.configure(system_prompt="Be brief.")
    session.ask("now", "r-3", on_busy="interrupt")
    assert session.entry_names[3:] == ["tool", "input", "run", "ai_context_operation", "config", "user"]
    assert (session.user_texts[-1], session.call.request_id) == ("now", "r-3")
    assert session.find_ending("r-1") == ("cancelled", "interrupted")
    session.steer("b", "i-2")
    session.fail()
    assert session.call.request_id == "followup:run-2"
    session.reply("done")
    assert session.call.request_id == "r-2"


def test_a_busy_session_rejects_unless_it_is_told_otherwise() -> None:
    """The message's own word goes before the session's."""
    session = SessionHarness()
    session.ask()
    with pytest.raises(Busy):
        session.ask("another", "r-2")
    assert session.ask("another", "r-2", on_busy="queue") == "r-2"
    session = SessionHarness(on_busy="queue")
    session.ask()
    session.ask("another", "r-2")
    with pytest.raises(Busy):
        session.ask("another", "r-3", on_busy="reject")
    session.reply("done")
    assert session.call.request_id == "r-2"


def test_a_message_that_joins_shares_the_outcome() -> None:
    """It is read as an input is, under a request id of its own; what was used stands with one of them."""
    session = SessionHarness(on_busy="steer")
    session.ask("one", "r-1")
    session.ask("two", "r-2")
    assert session.state.unfinished == ("r-1", "r-2")
    session.reply("first", usage=Usage(input_tokens=10, output_tokens=1))
    assert session.thread[session.thread.last_seq].refs["request_id"] == "r-2"
    running = outcomes.make_running_outcome(session.state, session.thread, "r-2")
    assert running.usage == Usage(shared_with="r-1")
    session.reply("both", usage=Usage(input_tokens=20, output_tokens=2))
    first, second = session.find_outcome("r-1"), session.find_outcome("r-2")
    own = {"request_id": 0, "last_seq": 0, "usage": 0}
    assert first | own == second | own
    assert second["usage"] == Usage(shared_with="r-1").model_dump()
    used = Usage.model_validate(first["usage"]).plus(Usage.model_validate(second["usage"]))
    assert used == session.state.usage == Usage(input_tokens=30, output_tokens=3, model_calls=2)


OWN_SETTINGS: dict[str, Any] = {
    "model": "local:smollm2",
    "model_options": ModelOptions(temperature=0),
    "context_policy": ContextPolicy(keep_last_turns=1),
    "max_iterations": 3,
    "timeout_seconds": 7,
    "output_schema": {},
}


@pytest.mark.parametrize("name", OWN_SETTINGS)
@pytest.mark.parametrize("sessions", [True, False], ids=["the session's word", "the message's word"])
def test_a_message_that_would_join_brings_no_settings(name: str, sessions: bool) -> None:
    """The run has its own: refused with what to do, and nothing has changed. One that opens a run keeps them."""
    session = SessionHarness(on_busy="steer" if sessions else "reject")
    own = {name: OWN_SETTINGS[name]} | ({} if sessions else {"on_busy": "steer"})
    session.ask("one", "r-1", **own)
    assert session.state.run is not None
    assert getattr(session.state.run.request.message, name) == OWN_SETTINGS[name]
    state = session.state
    with pytest.raises(InvalidInput, match=f"^{name}: .*leave them out, or send it with on_busy 'queue'"):
        session.ask("two", "r-2", **own)
    assert session.state is state
    session.ask("two", "r-2", **own | {"on_busy": "queue"})


def test_a_message_that_waits_because_nothing_runs_keeps_its_settings() -> None:
    """Before the first run there is none to join."""
    session = SessionHarness(on_busy="steer")
    session.configure(tools=())
    session.ask("one", "r-1")
    session.ask("two", "r-2", max_iterations=3)
    session.answer_preparation(tools=())
    session.reply("done")
    assert session.state.run is not None
    assert session.state.run.request.max_iterations == 3


def test_the_metadata_of_a_message_that_joins_is_on_its_entry() -> None:
    """Also where it is asked anew, because the run has not read it."""
    for unread in (False, True):
        session = SessionHarness(on_busy="steer")
        session.ask("one", "r-1")
        session.ask("two", "r-2", metadata={"ticket": "7"})
        session.fail() if unread else session.reply("first")
        joined = session.thread[session.thread.last_seq]
        assert (joined.refs["request_id"], joined.payload["metadata"]) == ("r-2", {"ticket": "7"})


def test_what_waits_is_counted_with_its_metadata() -> None:
    session = SessionHarness(on_busy="steer")
    session.ask("one")
    metadata = {f"{number}": "x" * 2000 for number in range(64)}
    for number in range(MAX_WAITING_BYTES // (64 * 2010)):
        session.ask("two", f"r-{number}", metadata=metadata)
    with pytest.raises(QueueFull):
        session.ask("two", "one more", metadata=metadata)


def test_a_message_that_joined_and_was_not_read_is_asked_anew() -> None:
    """Its request gets an outcome of its own; after a cancel it is cancelled with the run."""
    session = SessionHarness(on_busy="steer")
    session.ask("one", "r-1")
    session.ask("two", "r-2")
    session.fail()
    assert (session.user_texts, session.call.request_id) == (["one", "two"], "r-2")
    session.ask("three", "r-3")
    session.cancel("r-3")
    assert [session.find_ending(f"r-{n}")[0] for n in (1, 2, 3)] == ["failed", "cancelled", "cancelled"]
    assert [entry["request_id"] for entry in session.events("dropped")] == ["r-3"]


def test_a_request_that_waits_can_be_cancelled() -> None:
    """It never runs, and leaves its outcome and what it asked; the one that runs goes on."""
    session = SessionHarness(on_busy="queue")
    session.ask("one", "r-1")
    session.ask("two", "r-2")
    call = session.call
    assert session.cancel("r-2").cancelled
    assert session.find_ending("r-2") == ("cancelled", "cancelled")
    assert session.events("dropped")[0]["request_id"] == "r-2"
    assert session.call is call
    assert not session.cancel("r-2").cancelled
    with pytest.raises(RequestMismatch):
        session.cancel("r-9")
    session.reply("done")
    with pytest.raises(Idle):
        session.cancel()


def test_inputs_of_a_request_that_never_ran_go_as_those_of_a_run() -> None:
    """None is left behind for a stranger to read."""
    session = SessionHarness(on_busy="queue")
    session.configure(tools=())
    session.ask("one", "r-1")
    session.ask("two", "r-2")
    session.steer("a", "i-1")
    session.cancel("r-1", inputs="follow_up")
    session.answer_preparation(tools=())
    assert session.user_texts == ["a"]
    session.reply("done")
    assert session.user_texts == ["a", "two"]


def test_every_input_of_a_follow_up_that_never_ran_leaves_a_fact() -> None:
    session = SessionHarness()
    session.ask()
    session.configure(tools=())
    session.steer("a", "i-1")
    session.steer("b", "i-2")
    session.fail()
    assert session.state.phase == "preparing"
    session.close()
    dropped = [(entry.get("input_id"), entry.get("request_id")) for entry in session.events("dropped")]
    assert dropped == [(None, None), ("i-1", "followup:run-1"), ("i-2", "followup:run-1")], "the configuration first"
    assert session.find_ending("followup:run-1") == ("cancelled", "closed")


def test_the_sessions_own_request_ids_cannot_be_forged() -> None:
    """Not even by the id of the update."""
    session = SessionHarness()
    with pytest.raises(InvalidInput, match="followup:"):
        session.do(MessageInput(content="hello"), "followup:run-1")


@pytest.mark.parametrize("minted", [True, False])
def test_the_sessions_own_input_ids_cannot_be_taken(minted: bool) -> None:
    """Neither before nor after they are given, nor by the id of the update; others may look alike."""
    session = SessionHarness()
    session.ask()
    if minted:
        assert session.steer().input_id == "input-1"
    state = session.state
    for taken in ("input-1", "input-0007"):
        with pytest.raises(InvalidInput, match="input-<number>"):
            session.steer("another", taken)
        with pytest.raises(InvalidInput, match="input-<number>"):
            session.do(SubmitInput(kind="steer", content="another"), taken)
    assert session.state is state
    for free in ("input-", "input-1a", "my-input-1", "input-\u0661"):
        assert session.steer("another", free).input_id == free


def test_an_answer_of_another_form_is_repaired_within_the_model_calls_of_the_run() -> None:
    """Each turn says what is wrong; after the last model call of the run it fails with `invalid_output`."""
    for last, end in (("{}", ("completed", "final_answer")), ("no", ("failed", "invalid_output"))):
        session = SessionHarness(max_iterations=3)
        request_id = session.ask(output_schema={"type": "object"})
        assert session.build_context(session.call).output_schema == {"type": "object"}
        for problem in ("it is not JSON", "a.0: 1 is not of type string"):
            session.reply("no", schema_problem=problem)
            assert problem in session.user_texts[-1]
            assert session.thread[session.thread.last_seq].payload["source"] == "repair"
        session.reply(last, schema_problem=None if last == "{}" else "b: it is missing")
        assert session.find_ending(request_id) == end
    assert "b: it is missing" in session.find_outcome(request_id)["error"]["message"]


def test_a_result_in_doubt_says_so() -> None:
    session = SessionHarness()
    session.ask()
    session.reply("", "add")
    answer = ToolAnswered(content="in doubt", is_error=True, in_doubt=True)
    session.take_event(ToolReturned(tool_call_id="tool-1", answer=answer))
    assert session.thread[3].payload["in_doubt"] is True


def test_a_follow_up_runs_under_the_configuration_in_force() -> None:
    """What was configured while the failing run went on, and not what that run's caller had chosen."""
    session = SessionHarness()
    session.ask("one", model="local:smollm2", timeout_seconds=7, max_iterations=2)
    session.steer("and this")
    session.configure(system_prompt="Be kind.", model_options=ModelOptions(seed=5))
    session.configure(model="openai:gpt-4.1")
    session.fail()
    assert session.entry_names[-1] == "run"
    session.answer_preparation()
    call, run = session.call, session.state.run
    assert run is not None
    assert (call.request_id, call.model) == ("followup:run-1", "openai:gpt-4.1")
    assert call.options.seed == 5
    assert (run.deadline, run.request.max_iterations) == (900, 10)
    assert session.build_context(call).messages[0]["content"] == "Be kind."


def test_a_joined_message_that_asks_again_runs_under_its_own_settings() -> None:
    """Those of the session, with its own metadata; the other caller's model and time were for the other request."""
    session = SessionHarness(on_busy="steer")
    session.ask("one", "r-1", model="local:smollm2", timeout_seconds=7)
    session.ask("two", "r-2", metadata={"user": "u-2"})
    session.fail()
    run = session.state.run
    assert run is not None
    assert (run.request.request_id, session.call.model, run.deadline) == ("r-2", "openai:gpt-4o", 900)
    assert session.thread[session.call.at_seq].payload["metadata"] == {"user": "u-2"}


def test_what_a_message_sets_for_its_run_is_in_its_entry() -> None:
    """Beside what the call's recipe holds: how long it may take, how many calls it may make."""
    session = SessionHarness()
    session.ask("one", timeout_seconds=7, max_iterations=2, on_busy="queue")
    assert session.thread[1].payload["settings"] == {"timeout_seconds": 7, "max_iterations": 2, "on_busy": "queue"}


def test_the_reason_of_a_cancellation_is_recorded() -> None:
    """In the outcome of what ran, and of what waited."""
    session = SessionHarness(on_busy="queue")
    running, waiting = session.ask(), session.ask()
    session.cancel(waiting, reason="not needed")
    session.cancel(reason="changed my mind")
    assert session.find_outcome(running)["reason"] == "changed my mind"
    assert session.find_outcome(waiting)["reason"] == "not needed"
