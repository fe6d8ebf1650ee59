"""What is asked of a session: requests with settings of their own, inputs for the run in progress, cancellations."""

from __future__ import annotations

from typing import Literal

import pytest

from clew.contract import ContextPolicy, MessageInput, ModelOptions, SubmitInput
from clew.errors import Idle, InvalidInput, QueueFull, RequestMismatch, RequestReused
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import ToolAnswered, ToolReturned
from clew_workflows.session.state import MAX_WAITING, MAX_WAITING_BYTES
from tests.support.session_harness import SessionHarness
from tests.support.tokenizing import record_tokenizing


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
@pytest.mark.parametrize("what", ["inputs", "inputs of parts", "joining messages", "queued messages"])
def test_what_waits_has_a_limit(what: str, size: int, count: int) -> None:
    """64, or 512 KiB with all that a message brings, and one more is `queue_full`."""
    session = SessionHarness()
    session.ask()
    content = "é" * (size // 2) or "x"

    def send(number: int) -> None:
        match what:
            case "inputs":
                session.steer(content)
            case "inputs of parts":
                session.do(SubmitInput(kind="steer", content=[{"type": "text", "text": content}]))
            case _:
                session.ask(content, f"r-{number}", on_busy="steer" if what == "joining messages" else "queue")

    for number in range(count):
        send(number)
    state = session.state
    with pytest.raises(QueueFull):
        send(count)
    assert session.state is state


def test_the_metadata_of_a_message_that_joins_take_room() -> None:
    """Without them it fits."""
    session, content = SessionHarness(), "x" * (MAX_WAITING_BYTES // 4)
    session.ask()
    for number in range(3):
        session.ask(content, f"r-{number}", on_busy="steer")
    with pytest.raises(QueueFull):
        session.ask(content, "r-3", on_busy="steer", metadata={"a": "b"})
    session.ask(content, "r-3", on_busy="steer")


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


def test_an_id_names_one_input() -> None:
    """Another one under the same id is refused, also when the first was read."""
    session = SessionHarness()
    session.ask()
    session.steer("a", "i-1")
    for _ in range(2):
        with pytest.raises(RequestReused):
            session.steer("b", "i-1")
        session.reply("fine")
    assert session.user_texts == ["hello", "a"]


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


@pytest.mark.parametrize("phase", ["model", "tools", "approval"])
def test_a_cancelled_request_that_has_joined_a_run_is_not_answered_later(phase: str) -> None:
    """Its unread message is dropped, whatever the caller wants of the other inputs."""
    session = SessionHarness()
    session.ask("one", "r-1")
    if phase != "model":
        session.reply("", "add" if phase == "tools" else "ask_first")
    session.ask("two", "r-2", on_busy="steer")
    session.ask("three", "r-3", on_busy="steer")
    session.steer("a", "i-1")
    assert session.cancel("r-2", inputs="follow_up").cancelled
    assert session.find_ending("r-2") == ("cancelled", "cancelled")
    assert [(entry["request_id"], entry["content"]) for entry in session.events("dropped")] == [("r-2", "two")]
    session.reply("done")
    session.reply("done")
    assert session.user_texts == ["one", "a", "three"]
    assert session.find_ending("r-3") == ("completed", "final_answer")
    assert session.state.phase == "idle"


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


FORM = {"type": "object"}


def test_an_answer_that_never_fits_is_corrected_three_times() -> None:
    """Then the request fails, however many model calls it might make. The next request has its own three."""
    session = SessionHarness(max_iterations=100)
    for _ in range(2):
        request_id = session.ask(output_schema=FORM)
        for _ in range(4):
            session.reply("no", schema_problem="it is not JSON")
        assert session.find_ending(request_id) == ("failed", "invalid_output")
        assert session.find_outcome(request_id)["iterations"] == 4


def _list_contents(session: SessionHarness) -> list[str]:
    return [str(message["content"]) for message in session.build_context(session.call).messages]


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_corrections_leave_the_contexts_of_later_runs(window: Literal["sliding", "epoch"]) -> None:
    """Within the run each call sees them; later ones see the question and its last answer. The thread keeps all."""
    policy = ContextPolicy(window=window, max_input_tokens=6000, reserve_output_tokens=0)
    session = SessionHarness(max_iterations=100, context_policy=policy)
    for number, last in (("one", "{}"), ("two", "never")):
        session.ask(number, output_schema=FORM)
        for failed in range(3):
            session.reply(f"no {failed}", schema_problem="it is not JSON")
        assert [text for text in _list_contents(session) if text.startswith("no")] == ["no 0", "no 1", "no 2"]
        session.reply(last, schema_problem=None if last == "{}" else "it is not JSON")
        session.ask("and?")
        contents = _list_contents(session)
        assert contents[-3:] == [number, last, "and?"]
        session.reply("well")
    assert _list_contents_of_thread(session).count("no 1") == 2


def _list_contents_of_thread(session: SessionHarness) -> list[str]:
    return [str(entry.payload["content"]) for entry in session.thread if entry.kind == "ai_message"]


def test_all_parts_of_a_corrected_answer_leave_and_what_was_said_in_between_stays() -> None:
    """A paused reply is a part of the answer. A message that was steered in, and a round of tools, are not."""
    session = SessionHarness(max_iterations=100)
    session.ask("q", output_schema=FORM)
    session.reply("part one", stop_reason="paused")
    session.reply("part two", schema_problem="it is not JSON")
    session.steer("in metres")
    session.reply("beside", "add")
    session.answer_calls("4")
    session.reply("{}")
    session.reply("{}")
    session.ask("and?")
    contents = _list_contents(session)
    assert not any(text.startswith(("part", "Your answer is not")) for text in contents)
    assert "in metres" in contents
    assert "q" in contents


def test_a_wrong_answer_fails_the_run_although_a_steer_waits() -> None:
    """A follow-up run answers the steer."""
    session = SessionHarness(max_iterations=1)
    request_id = session.ask(output_schema=FORM)
    session.steer("and this")
    session.reply("no json at all", schema_problem="it is not JSON")
    assert session.find_ending(request_id) == ("failed", "invalid_output")
    assert session.user_texts[-1] == "and this"


def test_text_beside_tool_calls_is_no_answer_of_a_form() -> None:
    """No worker has validated it."""
    session = SessionHarness(max_iterations=1)
    request_id = session.ask(output_schema=FORM)
    session.reply("let me look", "look")
    assert session.find_ending(request_id) == ("failed", "invalid_output")
    assert session.find_outcome(request_id)["answer_seq"] is None


@pytest.mark.parametrize(("problem", "end"), [(None, "completed"), ("it is not JSON", "failed")])
def test_a_run_out_of_model_calls_has_its_newest_answer(problem: str | None, end: str) -> None:
    """A steer and tool calls follow it. The run completes if that answer has the form, and fails otherwise."""
    session = SessionHarness(max_iterations=2)
    request_id = session.ask(output_schema=FORM)
    session.steer("are you sure?")
    session.reply("{}", schema_problem=problem)
    answer_seq = session.thread.last_seq - 1
    session.reply("let me look", "look")
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["answer_seq"]) == (end, answer_seq)


def test_joined_requests_fail_with_the_form_of_their_run() -> None:
    """They share its outcome."""
    session = SessionHarness(max_iterations=1)
    first = session.ask(output_schema=FORM)
    session.ask("also", "joined", on_busy="steer")
    session.reply("no", schema_problem="it is not JSON")
    assert session.find_ending(first) == ("failed", "invalid_output")


def test_a_result_in_doubt_says_so() -> None:
    session = SessionHarness()
    session.ask()
    session.reply("", "add")
    answer = ToolAnswered(content="in doubt", is_error=True, in_doubt=True)
    session.take_event(ToolReturned(tool_call_id="tool00001", answer=answer))
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
    assert (run.clock.deadline, run.request.max_iterations) == (900, 10)
    assert session.build_context(call).messages[0]["content"] == "Be kind."


def test_the_reason_of_a_cancellation_is_recorded() -> None:
    """In the outcome of what ran, and of what waited."""
    session = SessionHarness(on_busy="queue")
    running, waiting = session.ask(), session.ask()
    session.cancel(waiting, reason="not needed")
    session.cancel(reason="changed my mind")
    assert session.find_outcome(running)["reason"] == "changed my mind"
    assert session.find_outcome(waiting)["reason"] == "not needed"


def test_what_waits_is_tokenized_when_it_begins_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that fail one after the other commit all that waits at once, and tokenize next to nothing."""
    session = SessionHarness(limits={"max_total_tokens": 1}, encoding="o200k_base")
    session.ask()
    for number in range(60):
        session.ask("ab c" * 2000, f"waiting-{number}", on_busy="queue")
    session.steer("ab c" * 2000)
    tokenized = record_tokenizing(monkeypatch)
    session.reply("fine", usage=Usage(input_tokens=9))
    assert session.find_ending("waiting-59") == ("failed", "token_limit")
    assert tokenized.total < 4096
    written = session.thread.filter_by_kind("ai_message")
    encoding = load_encoding("o200k_base")
    assert [entry.tokens for entry in written] == [encoding.count_message(entry.message) for entry in written]


def test_a_paused_reply_goes_on_at_once_and_costs_an_iteration() -> None:
    """The next call follows the paused reply directly; without an iteration left, the run ends."""
    session = SessionHarness(max_iterations=2)
    request_id = session.ask("search")
    session.reply("I look.", stop_reason="paused")
    assert session.entry_names[1:] == ["user", "assistant"]
    assert (session.call.iteration, session.call.at_seq) == (2, session.thread.last_seq)
    session.reply("Still looking.", stop_reason="paused")
    assert session.find_ending(request_id) == ("completed", "max_iterations")
    assert session.find_outcome(request_id)["iterations"] == 2


def test_a_step_input_waits_until_a_paused_reply_has_gone_on() -> None:
    """No message stands between the parts of a reply."""
    session = SessionHarness()
    session.ask("search")
    session.steer("in French", at="step")
    session.reply("I look.", stop_reason="paused")
    assert session.user_texts == ["search"]
    session.reply("", "add")
    session.answer_calls("4")
    assert session.entry_names[1:] == ["user", "assistant", "assistant", "tool", "user"]
    assert session.user_texts == ["search", "in French"]
