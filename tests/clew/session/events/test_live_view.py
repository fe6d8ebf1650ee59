"""What viewers make of the live channel's items: each word once, also if they come twice, late or not at all."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clew.session.events.feed import Flight
from clew.session.events.live_view import SILENT_SECONDS, LiveDecisions, LiveFlights
from clew.session.live.channel import Said
from clew_workflows.contract.outputs import ReplyProgress
from clew_workflows.host.local_runs import Decided

TEXT = "The lamp is on, and the door is open."


def make_said(start: int, end: int, attempt: int = 1, text: str = TEXT) -> Said:
    """Make an item with a part of the text."""
    progress = ReplyProgress(
        request_id="r-1",
        run_id="run-1",
        call_id="call-1",
        attempt=attempt,
        iteration=1,
        offset=start,
        text=text[start:end],
    )
    return Said("run", "7", attempt, progress)


def read(live: LiveFlights, *described: Flight) -> str | None:
    """Read the text of the only call; None: nothing is known of it."""
    flights = live.merge(described)
    assert len(flights) <= 1
    if not flights or not isinstance(flights[0].progress, ReplyProgress):
        return None
    assert flights[0].progress.offset == 0
    return flights[0].progress.text


@st.composite
def make_stream(draw: st.DrawFn) -> list[Said]:
    """Make the items of a reply: deltas, and now and then all of it."""
    cuts = [*sorted(draw(st.sets(st.integers(1, len(TEXT) - 1)))), len(TEXT)]
    items, start = [make_said(0, 0)], 0
    for cut in cuts:
        items.append(make_said(0 if draw(st.booleans()) else start, cut))
        start = cut
    return items


@given(make_stream(), st.data())
def test_each_character_is_there_once(items: list[Said], data: st.DataObject) -> None:
    """Items are lost, come twice, and from the beginning again: what is shown is always how the reply begins."""
    live, longest = LiveFlights(), ""
    for at, item in enumerate(items):
        came = [item] if data.draw(st.booleans()) else []
        if data.draw(st.booleans()):
            came = [*items[data.draw(st.integers(0, at)) : at + 1], *came]
        live.take(came, 0.0)
        if (text := read(live)) is not None:
            assert TEXT.startswith(text)
            assert len(text) >= len(longest), "it does not become shorter"
            longest = text
    live.take([make_said(0, len(TEXT))], 0.0)
    assert read(live) == TEXT


@given(make_stream(), st.integers(0, len(TEXT)))
def test_heartbeats_and_items_complete_each_other(items: list[Said], heard: int) -> None:
    """The longer one counts."""
    live = LiveFlights()
    live.take(items[:1], 0.0)
    beat = Flight("7", is_model_call=True, progress=make_said(0, heard).progress, retry=None)
    assert read(live, beat) == TEXT[:heard]
    live.take(items[1:], 0.0)
    assert read(live, beat) == TEXT


def test_an_attempt_that_was_thought_dead_is_not_heard() -> None:
    """Its items come between those of its successor."""
    live = LiveFlights()
    live.take([make_said(0, 9), make_said(0, 4, 2, "another"), make_said(9, 12), make_said(4, 7, 2, "another")], 0.0)
    assert read(live) == "another"
    late = Flight("7", is_model_call=True, progress=make_said(0, 20).progress, retry=None)
    assert read(live, late) == "another"


def test_a_call_that_is_not_heard_is_silent() -> None:
    """From the moment in which it was seen to run; one that has just ended is not."""
    live = LiveFlights()
    assert not live.find_silent(["7"], 0.0)
    live.take([make_said(0, 3)], 2.0)
    assert not live.find_silent(["7"], SILENT_SECONDS + 1)
    assert live.find_silent(["7"], 2.1 + SILENT_SECONDS)
    live.take([replace(make_said(0, 3), has_ended=True)], 5.0)
    assert not live.find_silent(["7"], 5.1)
    assert not live.is_heard("7")


def make_decided(event_id: int, rev: int, started_at: int = 1) -> Decided:
    """Make what a task has decided."""
    return Decided("s-1", "run", event_id, started_at, {"entries": [], "status": {"rev": rev, "status": "idle"}})


def test_only_what_the_history_has_counts() -> None:
    """The server has refused a task, and given its event to another one."""
    decisions = LiveDecisions()
    decisions.take([make_decided(3, 1), make_decided(3, 2, started_at=2)])
    decisions.confirm([(3, 2)])
    assert decisions.confirmed == [(3, 2)]
    page = decisions.use((3, 2))
    assert page is not None
    assert page.status is not None
    assert page.status.rev == 2
    decisions.confirm([(3, 2)])
    assert decisions.confirmed == [], "used"


def test_what_a_task_decides_later_is_used_too() -> None:
    """A task may be told of more than once, each time with all that it has decided."""
    decisions = LiveDecisions()
    decisions.take([make_decided(3, 1)])
    decisions.confirm([(3, 1)])
    decisions.use((3, 1))
    decisions.take([make_decided(3, 2)])
    assert decisions.confirmed == [(3, 1)]
    page = decisions.use((3, 1))
    assert page is not None
    assert page.status is not None
    assert page.status.rev == 2
