"""The rules of the service, of webhooks and of schedules find what callers and receivers must not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks

from clew.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    ClewError,
    Closed,
    NotFound,
    ServerUnreachable,
    ThreadMismatch,
)
from clew.session.events import EntryCommitted, SessionEvent, StatusChanged, TextAdded
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.thread.entries import Entry
from tests.chaos.last_cases import check_head
from tests.chaos.offspring import check_gone
from tests.chaos.receiver import Delivery, check_deliveries, check_signature
from tests.chaos.test_rules import change, is_message, is_outcome, make_thread
from tests.chaos.timed import Firing, check_firings
from tests.chaos.web import check_posted, check_stranger, check_upload, read_event
from tests.support.webhooks import SECRET

URL = "http://127.0.0.1:9/hook"
SCHEDULED = "clew-service-scheduled-timed-1-2026-01-01T00:00:20Z"


# Streams.


@pytest.mark.parametrize(
    "event",
    [
        TextAdded(call_id="call-1", attempt=1, offset=0, text="a ball"),
        StatusChanged(status="idle", request_id="r-1"),
        EntryCommitted(seq=0, entry=make_thread("say")[0]),
    ],
)
def test_an_event_is_read_as_it_was_sent(event: SessionEvent) -> None:
    """Viewers over HTTP keep the rules of those in Python."""
    assert read_event(event.to_json()) == event


# Requests over HTTP.


def test_the_answers_to_a_repeated_message_are_its_one_outcome() -> None:
    """Another outcome, or another request's, is a violation; a request that still runs is none."""
    outcome = RequestOutcome(request_id="r-1", status="completed", answer_seq=2, last_seq=3)
    told = {"request_id": "r-1", "status": "completed", "answer_seq": 2, "last_seq": 3}
    assert check_posted(told, outcome) is None
    assert check_posted({"request_id": "r-1", "status": "running"}, outcome) is None
    assert "the outcome is" in str(check_posted({**told, "last_seq": 7}, outcome))
    assert "the outcome is" in str(check_posted({**told, "status": "failed"}, outcome))


def test_uploaded_bytes_are_read_again() -> None:
    """Other bytes, and a digest of others, are violations."""
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert check_upload(b"abc", digest, b"abc") is None
    assert "are read" in str(check_upload(b"abc", digest, b"abd"))
    assert "are read" in str(check_upload(b"abc", digest[::-1], b"abc"))


@pytest.mark.parametrize(
    ("answer", "is_violation"),
    [
        (NotFound("none"), False),
        (ServerUnreachable("later"), False),
        (Closed("it is closed"), True),
        ({"rev": 3}, True),
        ("a report", True),
    ],
)
def test_a_deleted_session_is_not_there_at_any_door(answer: object, is_violation: bool) -> None:
    """A door that answers, or says that the session has ended, is a violation; one that is not served is none."""
    assert bool(check_gone("GET /", answer)) is is_violation


@pytest.mark.parametrize(
    ("answer", "is_violation"),
    [
        (NotFound("none"), False),
        (ClewError("later"), False),
        (ArchiveUnavailable("later"), False),
        (Closed("it is closed"), True),
        ("a thread", True),
    ],
)
def test_another_tenant_reads_nothing(answer: object, is_violation: bool) -> None:
    """An answer, and an error that says that the session is there, are violations."""
    assert bool(check_stranger("/v1/sessions/web-1", answer)) is is_violation


@pytest.mark.parametrize(
    ("answer", "is_violation"), [(ArchiveDamaged("lost"), False), (ThreadMismatch("old"), False), ("opened", True)]
)
def test_a_session_is_not_opened_from_a_lost_or_old_head(answer: object, is_violation: bool) -> None:
    """It would begin again, or go on from what it was."""
    assert bool(list(check_head("old", answer))) is is_violation


# Webhooks.


def make_told_thread() -> list[Entry]:
    return change(
        make_thread("fine"), lambda entry: entry.kind == "config", webhooks=[{"url": URL, "secret": "main"}]
    )


def tell(entries: Sequence[Entry], **changes: Any) -> Delivery:
    """The delivery of a thread's last outcome, with other data."""
    entry = entries[-1]
    data = {"session_id": "s-1", "request_id": entry.refs["request_id"], "seq": entry.seq, "status": "completed"}
    fields = {"id": "msg-1", "is_taken": True, "type": "request.ended", **changes}
    data |= {name: fields.pop(name) for name in tuple(fields) if name in {*data, "tool_calls"}}
    return Delivery(fields["id"], {"type": fields["type"], "data": data}, fields["is_taken"])


def list_told(entries: Sequence[Entry], *deliveries: Delivery, gone: Sequence[str] = ()) -> str:
    threads = {"s-1": entries}
    return "\n".join(problem for _, problem in check_deliveries(deliveries, threads, URL, {}, gone))


def test_each_outcome_is_told_once_it_has_happened() -> None:
    """An outcome that no receiver was told of, or has taken, is a violation; one that is told twice is none."""
    entries = make_told_thread()
    assert list_told(entries, tell(entries), tell(entries)) == ""
    assert "no webhook was told of the outcome" in list_told(entries)
    assert "no webhook was told of the outcome" in list_told(entries, tell(entries, is_taken=False))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status": "failed"}, "is failed, but"),
        ({"request_id": "r-9"}, "r-9 is completed, but"),
        ({"seq": 1}, "there is no outcome at 1"),
        ({"seq": 99}, "there is no outcome at 99"),
        ({"session_id": "s-9"}, "there is no such session"),
        ({"type": "approval.wanted", "tool_calls": [{"tool_call_id": "c-9"}]}, "no reply has the calls ['c-9']"),
    ],
)
def test_what_has_not_happened_is_told_nobody(changes: dict[str, Any], expected: str) -> None:
    """Another outcome, request, place, session or call is a violation."""
    entries = make_told_thread()
    assert expected in list_told(entries, tell(entries), tell(entries, id="msg-2", **changes))


def test_an_event_has_one_id_and_a_receiver_that_was_not_named_is_told_nothing() -> None:
    """Two ids of one event, and the event of a session without that webhook, are violations."""
    entries = make_told_thread()
    assert "was told with the ids" in list_told(entries, tell(entries), tell(entries, id="msg-2"))
    plain = make_thread("fine")
    assert "the session has no such webhook" in list_told(plain, tell(plain))
    assert list_told(plain, tell(plain), gone=["s-1"]) == ""


def test_a_message_without_a_valid_signature_is_a_violation() -> None:
    """Its time may be wrong, as that of a worker whose clock has jumped."""
    at = datetime(2020, 1, 1, tzinfo=UTC)
    signature = standardwebhooks.Webhook(SECRET).sign("msg-1", at, "{}")
    headers = {"webhook-id": "msg-1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    assert check_signature(headers, b"{}") is None
    assert "none is right" in str(check_signature(headers, b"{ }"))
    assert "a request without" in str(check_signature({}, b"{}"))


# Schedules.


def make_scheduled_thread() -> list[Entry]:
    entries = make_thread("fine")
    return [
        replace(one, refs={**one.refs, "request_id": SCHEDULED}) if "request_id" in one.refs else one
        for one in entries
    ]


def test_each_time_of_a_schedule_is_one_message() -> None:
    """A time without its message, with two, or with another outcome, and a message without a time are violations."""
    entries, firing = make_scheduled_thread(), Firing(SCHEDULED, "timed-1", is_completed=True)
    assert list(check_firings([firing], entries)) == []
    assert "with 0 messages" in "".join(check_firings([firing], entries[:1]))
    assert "that did not start it" in "".join(check_firings([], entries))
    twice = [copy for entry in entries for copy in [entry] * (1 + is_message(entry))]
    assert "with 2 messages" in "".join(check_firings([firing], twice))
    failed = change(entries, is_outcome, status="failed")
    assert "the outcomes ['failed']" in "".join(check_firings([firing], failed))
    assert list(check_firings([replace(firing, is_completed=False)], failed)) == []
