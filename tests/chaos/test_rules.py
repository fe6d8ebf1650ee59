"""Each rule accepts a thread that is as it should be, and finds what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from clew_workflows.contract.outcomes import OutcomeError, RequestOutcome
from clew_workflows.thread.entries import Entry
from tests.chaos.hooks import is_refused, is_refused_call
from tests.chaos.model import FIRST, SECRET, SPARE, Verdict
from tests.chaos.rules import (
    Span,
    check_answers,
    check_hooks,
    check_images,
    check_models,
    check_subagents,
    find_lost_signals,
)
from tests.support.session_harness import SessionHarness

SUBAGENT = "s-1.tool00001"


def make_thread(*texts: str) -> list[Entry]:
    """A request for each text, whose answer is the text."""
    session = SessionHarness()
    for number, text in enumerate(texts):
        session.ask(f"r-{number}: say it", f"r-{number}")
        session.reply(text)
    return list(session.thread)


def change(entries: Sequence[Entry], matches: Callable[[Entry], bool], **payload: Any) -> list[Entry]:
    """Change the payloads of some entries."""
    changed = [replace(entry, payload={**entry.payload, **payload}) if matches(entry) else entry for entry in entries]
    assert changed != list(entries)
    return changed


def is_reply(entry: Entry) -> bool:
    return entry.payload.get("role") == "assistant"


def is_message(entry: Entry) -> bool:
    return entry.payload.get("role") == "user"


def is_outcome(entry: Entry) -> bool:
    return entry.kind == "run"


def change_model(entries: Sequence[Entry], model: str, *, last: bool = False) -> list[Entry]:
    """Change the model in the recipe of all replies, or of the last one."""
    replies = [entry for entry in entries if is_reply(entry)][-1 if last else 0 :]
    recipe = {**replies[0].payload["recipe"], "model": model}
    return change(entries, lambda entry: entry in replies, recipe=recipe)


def test_a_message_that_hooks_refuse_is_a_violation() -> None:
    """A refused message has no place in a thread, also if no model has answered it."""
    entries = make_thread("fine")
    assert list(check_hooks(entries)) == []
    assert is_refused("r-0: rude words")
    rude = change(entries, is_message, content="r-0: rude words")
    answered, committed = check_hooks(rude)
    assert answered == "the model has answered the message at 1, which the hooks refuse"
    assert committed == "the message at 1 is one that the hooks refuse"
    assert list(check_hooks(rude[:2])) == [committed]


def test_an_answer_that_hooks_refuse_is_a_violation() -> None:
    """A completed request does not have a refused answer; a failed one may."""
    entries = make_thread(f"here is {SECRET}")
    assert list(check_hooks(entries)) == ["the answer at 2 is one that the hooks refuse"]
    assert list(check_hooks(change(entries, is_outcome, status="failed"))) == []


def test_hooks_refuse_some_charges_only() -> None:
    """The rule of charges knows their arguments."""
    assert is_refused_call("charge", {"cents": 8})
    assert not is_refused_call("charge", {"cents": 7})
    assert not is_refused_call("note", {"cents": 8})
    assert not is_refused_call("charge", {"cents": "eight"})


def test_a_reply_by_another_model_is_a_violation() -> None:
    """The recipe of a reply names the model that has written it."""
    entries = change_model(make_thread("fine (by first)"), FIRST)
    assert list(check_models(entries)) == []
    assert "is by first, but its recipe names" in next(check_models(change_model(entries, SPARE)))


def test_a_run_that_leaves_its_fallback_is_a_violation() -> None:
    """After a reply of the fallback no other model writes one in that run, and the outcome names the fallback."""
    session = SessionHarness(tools=("charge",))
    session.ask("r-0: charge it", "r-0")
    session.reply("", "charge")
    session.answer_calls("charged")
    session.reply("fine")
    spare = change_model(list(session.thread), SPARE)
    assert list(check_models(change(spare, is_outcome, fallback=SPARE))) == []
    assert "names the fallback None" in "".join(check_models(spare))
    left = change_model(spare, FIRST, last=True)
    assert "had a fallback already" in "".join(check_models(left))


def test_an_outcome_with_a_fallback_that_wrote_nothing_is_a_violation() -> None:
    """An outcome names no fallback if the model itself has answered."""
    entries = change(change_model(make_thread("fine"), FIRST), is_outcome, fallback=SPARE)
    assert f"names the fallback {SPARE}" in "".join(check_models(entries))


def test_an_image_that_the_message_does_not_have_is_a_violation() -> None:
    """What the model was shown is the image of the message that the reply names; another message's image is none."""
    digest = "d" * 64
    image = {"type": "image", "blob": {"digest": digest, "media_type": "image/png", "bytes": 70}}
    entries, look = make_thread(f"r-0 shows {digest} (by first)", "fine"), {"type": "text", "text": "r-0: look"}
    entries = change(
        entries, lambda entry: is_message(entry) and entry.refs["request_id"] == "r-0", content=[look, image]
    )
    assert list(check_images(entries)) == []
    for text in ("r-0 shows None (by first)", f"r-0 shows {'e' * 64} (by first)", f"r-1 shows {digest} (by first)"):
        assert "no image of r-" in "".join(check_images(change(entries, is_reply, content=text)))


def check_request(arguments: dict[str, Any], outcome: RequestOutcome, *texts: str) -> Iterator[str]:
    return check_answers({"r-0": arguments}, {"r-0": outcome}, make_thread(*texts))


def test_an_answer_of_another_form_is_a_violation() -> None:
    """The answer to a request with a schema meets it."""
    schema = {"output_schema": Verdict.model_json_schema()}
    outcome = RequestOutcome(request_id="r-0", status="completed", answer_seq=2, last_seq=3)
    assert list(check_request(schema, outcome, '{"read": 3, "by": "me"}')) == []
    assert "is not of the form asked for" in "".join(check_request(schema, outcome, "never"))
    assert list(check_request({}, outcome, "never")) == []


def test_an_outage_that_a_fallback_does_not_end_is_a_violation() -> None:
    """A request with a fallback does not fail for an outage."""
    failed = RequestOutcome(request_id="r-0", status="failed", last_seq=3)
    outage = failed.model_copy(update={"error": OutcomeError(type="overloaded", message="no", retryable=True)})
    assert f"though {SPARE} was there" in "".join(check_request({"fallbacks": [SPARE]}, outage, "fine"))
    assert list(check_request({}, outage, "fine")) == []
    timeout = OutcomeError(type="timeout", message="no", retryable=True)
    late = failed.model_copy(update={"error": timeout})
    assert list(check_request({"fallbacks": [SPARE]}, late, "fine")) == []


@pytest.fixture(name="family")
def make_family() -> dict[str, list[Entry]]:
    """The threads of a session and of its subagent."""
    session = SessionHarness(tools=("charge",))
    session.ask("r-0: delegate it", "r-0")
    session.reply("", "charge")
    session.answer_calls("done")
    session.reply("fine")
    calls = [{"id": "tool00001", "name": "helper", "arguments": {"task": "r-0: say it"}}]
    parent = change(session.thread.slice(0, 3), lambda entry: "tool_calls" in entry.payload, tool_calls=calls)
    named = {"session_id": SUBAGENT, "agent": "helper"}
    parent = change(parent, lambda entry: entry.payload.get("role") == "tool", subagent=named)
    return {"s-1": parent, SUBAGENT: make_thread("done")}


def test_the_result_of_a_subagent_is_its_answer(family: dict[str, list[Entry]]) -> None:
    """A subagent was asked the task of its call, and the result of the call is its answer."""
    assert list(check_subagents(family, {})) == []
    asked = {**family, SUBAGENT: change(family[SUBAGENT], is_message, content="another task")}
    assert [problem for _, problem in check_subagents(asked, {})] == [
        f"the subagent {SUBAGENT} was to do 'r-0: say it', and was asked 'another task'"
    ]
    answered = {**family, SUBAGENT: change(family[SUBAGENT], is_reply, content="undone")}
    assert "answered ['undone'], but its call has 'done'" in next(check_subagents(answered, {}))[1]
    failed = {**family, SUBAGENT: change(family[SUBAGENT], is_outcome, status="failed")}
    assert "answered []" in next(check_subagents(failed, {}))[1]


def test_the_subagents_of_a_fork_are_those_of_its_parent(family: dict[str, list[Entry]]) -> None:
    """A fork's inherited results are checked in its parent."""
    assert list(check_subagents({"fork": family["s-1"]}, {"fork": 3})) == []
    assert list(check_subagents({"fork": family["s-1"]}, {}))


def close_at(entries: Sequence[Entry], moment: str) -> list[Entry]:
    """A thread that ends with a close, an hour after its other entries."""
    last = entries[-1]
    closed = replace(last, seq=last.seq + 1, kind="session", at=moment, payload={"event": "closed"}, refs={})
    later = replace(last, seq=last.seq + 2, at=moment.replace("T10:00", "T11:00"))
    return [*(replace(entry, at=moment.replace("T10", "T09")) for entry in entries), closed, later]


def test_only_signals_around_a_close_may_be_lost() -> None:
    """A signal that was sent long before the close, or once the session was open again, must have its entry."""
    noon = datetime.fromisoformat("2026-01-01T10:00:00.000Z").timestamp()
    entries = close_at(make_thread("fine"), "2026-01-01T10:00:00.000Z")
    signals = {
        name: Span(noon + seconds, noon + seconds + 0.1)
        for name, seconds in (("before", -60), ("around", -1), ("closed", 1800), ("after", 3700))
    }
    assert list(find_lost_signals(signals, (), entries)) == ["around", "closed"]
    assert list(find_lost_signals(signals, (), make_thread("fine"))) == []


def test_a_close_without_an_entry_excuses_the_signals_between_the_entries_around_it() -> None:
    """A workflow that was closed before it had begun has committed nothing: it lived between two entries."""
    noon = datetime.fromisoformat("2026-01-01T10:00:00.000Z").timestamp()
    entries = [
        entry for entry in close_at(make_thread("fine"), "2026-01-01T10:00:00.000Z") if entry.kind != "session"
    ]
    signals = {"between": Span(noon - 1, noon), "before": Span(noon - 7200, noon - 7100)}
    assert list(find_lost_signals(signals, [Span(noon + 5, noon + 6)], entries)) == ["between"]
