"""The events of one viewer, made from entries and snapshots: pure, without a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clew.contract.payloads import AssistantMessage
from clew.session.events import Restarted, Retrying, SessionEvent, TextAdded, ToolStarted
from clew.session.events.feed import Feed, Flight, Retry, Snapshot
from clew.session.events.follow import RECENT_ENTRIES, RecentEntries
from clew_workflows.contract.outputs import LiveStatus, PendingCall, ReplyProgress
from clew_workflows.thread.entries import Entry

STATUS = LiveStatus(rev=2, status="awaiting_model", request_id="r", run_id="run-1", call_id="call-1")


def write(text: str, *, attempt: int = 1, offset: int = 0, retry: Retry | None = None) -> Snapshot:
    """Make a snapshot of a reply that a model writes."""
    progress = ReplyProgress(
        request_id="r", run_id="run-1", call_id="call-1", attempt=attempt, iteration=1, offset=offset, text=text
    )
    return Snapshot(2, STATUS, (Flight("1", True, progress, retry),))


def commit(text: str, seq: int = 2) -> Entry:
    """Make the entry of a reply."""
    payload = AssistantMessage(context_ref="default", role="assistant", content=text).as_dict()
    refs = {"request_id": "r", "run_id": "run-1", "call_id": "call-1"}
    return Entry.from_json(
        {"seq": seq, "id": f"e{seq}", "kind": "ai_message", "at": "", "payload": payload, "refs": refs, "tokens": 1}
    )


def read_text(events: list[SessionEvent]) -> str:
    """Put the texts of one reply together, as `TextAdded` says."""
    text = ""
    for event in events:
        if isinstance(event, TextAdded):
            text = text[: event.offset] + event.text
    return text


@given(
    text=st.text(min_size=1, max_size=60),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8),
)
def test_the_texts_of_a_reply_are_its_entry(text: str, cuts: list[tuple[int, int]]) -> None:
    """Whichever states the viewer sees, also old ones, also with gaps, the texts together are what is committed."""
    feed, events = Feed(2), list[SessionEvent]()
    for end, offset in cuts:
        start = min(offset, end)
        events += feed.take_snapshot(write(text[start:end], offset=min(start, len(text[:end]))))
    events += feed.take_entry(commit(text))
    assert read_text(events) == text
    assert feed.next_seq == 3


def test_a_reply_that_is_committed_otherwise_is_replaced() -> None:
    """The text so far is void: the new one begins at its beginning."""
    feed = Feed(2)
    events = [*feed.take_snapshot(write("the secret")), *feed.take_entry(commit("[redacted]"))]
    assert [(event.offset, event.text) for event in events if isinstance(event, TextAdded)] == [
        (0, "the secret"),
        (0, "[redacted]"),
    ]


def test_a_failure_is_said_once_and_a_new_attempt_starts_over() -> None:
    """While it waits, the heartbeat is still that of the attempt before."""
    feed, retry = Feed(2), Retry(2, "overloaded", "too busy", None)
    list(feed.take_snapshot(write("one")))
    (failed,) = feed.take_snapshot(write("one", retry=retry))
    assert isinstance(failed, Retrying)
    assert (failed.attempt, failed.error) == (2, "overloaded")
    assert list(feed.take_snapshot(write("one", retry=retry))) == []
    restarted, text = feed.take_snapshot(write("uno", attempt=2))
    assert isinstance(restarted, Restarted)
    assert isinstance(text, TextAdded)
    assert (text.offset, text.text) == (0, "uno")


def test_an_old_heartbeat_adds_nothing() -> None:
    """The server's description may be of the moment before the reply was committed."""
    feed = Feed(2)
    list(feed.take_snapshot(write("one two")))
    list(feed.take_entry(commit("one two")))
    stale = write("one two")
    idle = LiveStatus(rev=3, status="idle")
    events = list(feed.take_snapshot(Snapshot(3, idle, stale.flights)))
    assert [event.type for event in events] == ["status"]


def test_a_running_call_is_announced_once() -> None:
    """Also to a viewer that has not seen the entry which calls it."""
    call = PendingCall(tool_call_id="tool00001", name="add", arguments={"a": 1})
    status = LiveStatus(rev=3, status="awaiting_tools", request_id="r", run_id="run-1", running_calls=(call,))
    feed = Feed(3)
    events = [*feed.take_snapshot(Snapshot(3, status)), *feed.take_snapshot(Snapshot(3, status))]
    assert [event.type for event in events] == ["status", "tool_started"]
    assert isinstance(events[1], ToolStarted)
    assert events[1].as_dict() == {
        "type": "tool_started",
        "request_id": "r",
        "run_id": "run-1",
        "tool_call_id": "tool00001",
        "name": "add",
        "arguments": {"a": 1},
    }


def test_the_newest_entries_are_kept_within_their_limits() -> None:
    """The oldest are left out first; an entry that is larger than the limit stays alone."""
    recent = RecentEntries()
    assert recent.read(0) is None
    for seq in range(RECENT_ENTRIES + 5):
        recent.add(commit("x", seq))
    assert recent.first_seq == 5
    assert recent.read(4) is None
    assert [entry.seq for entry in recent.read(RECENT_ENTRIES + 3) or ()] == [RECENT_ENTRIES + 3, RECENT_ENTRIES + 4]
    recent.add(commit("x" * 3_000_000, RECENT_ENTRIES + 5))
    assert recent.first_seq == RECENT_ENTRIES + 5
