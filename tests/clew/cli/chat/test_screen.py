"""What a terminal shows of a session's events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from clew.cli.chat.painting import (
    Block,
    Live,
    NoteBlock,
    Painter,
    ReplyBlock,
    RunningTool,
    SourcesBlock,
    ToolBlock,
    UserBlock,
    WaitingBlock,
)
from clew.cli.chat.screen import Screen
from clew.contract.payloads import AssistantMessage, InputPayload, Payload, RunPayload, ToolMessage, UserMessage
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    Retrying,
    SessionEvent,
    StatusChanged,
    TextAdded,
    ThinkingAdded,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
)
from clew.session.session_reads import WaitingCall
from clew_workflows.contract.messages import Citation, ProviderCall
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import PendingCall
from clew_workflows.thread.entries import Entry, Refs

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def commit(payload: Payload, **refs: Any) -> EntryCommitted:
    """Make the event of an entry."""
    entry = Entry(
        seq=1,
        id="e-1",
        at="2026-01-01T00:00:00.000Z",
        kind=payload.entry_kind,
        tokens=0,
        payload=payload.as_dict(),
        refs=Refs(**refs),  # type: ignore[typeddict-item]
    )
    return EntryCommitted(seq=1, entry=entry)


def say(role: str, content: str, **fields: Any) -> EntryCommitted:
    """Make the event of a message."""
    types: dict[str, type[Any]] = {"user": UserMessage, "assistant": AssistantMessage, "tool": ToolMessage}
    return commit(types[role](context_ref="default", role=role, content=content, **fields), call_id="c-1")


def end(status: Any = "completed", why: str = "final_answer", **fields: Any) -> EntryCommitted:
    """Make the event of a request's outcome."""
    run = RunPayload(event="finished", status=status, termination_reason=why, usage=Usage(), iterations=1, **fields)
    return commit(run, request_id="r-1")


def add_text(text: str, offset: int = 0, *, call: str = "c-1", attempt: int = 1) -> TextAdded:
    """Make the event of more text."""
    return TextAdded(call_id=call, attempt=attempt, offset=offset, text=text)


def show(screen: Screen, *events: SessionEvent) -> list[Block]:
    """Show events; returns all blocks."""
    return [block for event in events for block in screen.take(event)]


def test_finished_blocks_are_printed_once_and_the_rest_is_live() -> None:
    """A paragraph is printed when it is finished; its entry prints only what is left."""
    screen = Screen()
    assert show(screen, add_text("One.\n\nTw")) == [ReplyBlock("One.\n\n")]
    assert screen.live.markdown == "Tw"
    assert show(screen, add_text("o.", 8)) == []
    assert show(screen, say("assistant", "One.\n\nTwo."), end()) == [ReplyBlock("Two.")]
    assert screen.live == Live()


def test_a_reply_that_starts_over() -> None:
    """What was not printed is dropped in silence; what was printed stays, and a note says so."""
    screen = Screen()
    assert show(screen, add_text("Unfinished"), Restarted(call_id="c-1", attempt=2)) == []
    assert show(screen, add_text("One.\n\nTwo", attempt=2)) == [ReplyBlock("One.\n\n")]
    (note,) = show(screen, Restarted(call_id="c-1", attempt=3))
    assert note == NoteBlock("[attempt 3: the reply starts over]", "warning")
    assert screen.live.markdown == ""


def test_text_that_is_missing_or_replaced_is_noted() -> None:
    """A gap and a replaced beginning leave a note; a replaced end that is still live leaves none."""
    screen = Screen()
    assert show(screen, add_text("One."), add_text("later", 100)) == [
        ReplyBlock("One."),
        NoteBlock("[96 characters are missing here]"),
    ]
    screen = Screen()
    assert show(screen, add_text("One.\n\nTwo"), add_text("Three", 6)) == [ReplyBlock("One.\n\n")]
    assert screen.live.markdown == "Three"
    assert show(screen, add_text("Uno", 0)) == [NoteBlock("[the reply is replaced]")]
    assert screen.live.markdown == "Uno"


def test_own_messages_are_not_printed_twice_and_steers_say_when_they_are_read() -> None:
    """Texts of this chat are printed when they are sent, those of other callers when they are committed."""
    screen = Screen()
    assert screen.send("r-1", "hello", is_steer=False) == UserBlock("hello")
    screen.accept("r-1", "hello", is_steer=False)
    assert screen.is_active
    assert show(screen, say("user", "hello", request_id="r-1")) == []
    screen.send("i-1", "shorter", is_steer=True)
    screen.accept("i-1", "shorter", is_steer=True)
    assert screen.live.inputs == ("shorter",)
    assert show(screen, say("user", "shorter", input_id="i-1")) == [NoteBlock("read: shorter")]
    assert not screen.live.inputs
    assert show(screen, say("user", "moved", input_id="i-2", source="tracking")) == [
        UserBlock("moved", "tracking", is_steer=True)
    ]
    show(screen, end())
    assert not screen.is_active


def test_a_receipt_after_the_entry_changes_nothing() -> None:
    """An input may be read before its receipt arrives."""
    screen = Screen()
    screen.send("i-1", "shorter", is_steer=True)
    show(screen, say("user", "shorter", input_id="i-1"))
    screen.accept("i-1", "shorter", is_steer=True)
    assert not screen.live.inputs


def test_an_input_that_is_not_read_says_why() -> None:
    """A dropped input leaves the live part with a note."""
    screen = Screen()
    screen.send("i-1", "shorter", is_steer=True)
    screen.accept("i-1", "shorter", is_steer=True)
    dropped = InputPayload(event="dropped", kind="steer", reason="run cancelled", content="sho", input_id="i-1")
    assert show(screen, commit(dropped)) == [NoteBlock("not read (dropped: run cancelled): shorter", "warning")]
    assert not screen.live.inputs


def test_tools_run_in_the_live_part_and_are_printed_with_their_results() -> None:
    """A call is live with its newest report; its result prints both."""
    screen = Screen()
    calls = [{"id": "t-1", "name": "add", "arguments": {"a": 1}}]
    show(screen, say("assistant", "", tool_calls=calls))
    show(screen, ToolStarted(tool_call_id="t-1", name="add", arguments={"a": 1}))
    show(screen, ToolProgressed(tool_call_id="t-1", name="add", text="half", fraction=0.5))
    assert screen.live.tools == (RunningTool("add", {"a": 1}, "half", 0.5),)
    assert show(screen, ToolFinished(tool_call_id="t-1", name="add")) == []
    assert not screen.live.tools
    assert show(screen, say("tool", "1", tool_call_id="t-1")) == [ToolBlock("add", {"a": 1}, "1")]


def test_an_approval_is_asked_until_it_is_decided() -> None:
    """The call is printed with its arguments, and the question stays until the call runs."""
    screen = Screen()
    waiting = WaitingBlock("t-1", "pay", {"sum": 3}, "approval")
    assert show(screen, ApprovalRequired(tool_call_id="t-1", name="pay", arguments={"sum": 3})) == [waiting]
    assert screen.waiting_calls == (waiting,)
    show(screen, ToolStarted(tool_call_id="t-1", name="pay", arguments={"sum": 3}))
    assert not screen.waiting_calls


def test_a_retry_says_why_and_when() -> None:
    """The note has the reason; the live part counts down until text comes."""
    screen = Screen()
    retrying = Retrying(
        call_id="c-1", attempt=2, error="rate_limited", message="slow down", next_at="2026-01-01T00:00:04.000Z"
    )
    assert show(screen, retrying) == [NoteBlock("attempt 2 follows: slow down", "warning")]
    assert Painter(80).paint_live(screen.live, rows=5, tick=0, now=NOW) == "⠋ waiting for attempt 2 in 4 s"
    show(screen, ThinkingAdded(call_id="c-1", attempt=2, offset=0, text="hm"))
    assert screen.live.activity == "thinking: hm"


def test_ends_of_requests() -> None:
    """A cancelled reply keeps its text on the screen; failures say why, and once."""
    screen = Screen()
    assert show(screen, add_text("Half a"), end("cancelled", "cancelled", reason="too long")) == [
        ReplyBlock("Half a"),
        NoteBlock("cancelled: too long", "warning"),
    ]
    assert show(screen, end("completed", "max_iterations")) == [NoteBlock("ended: max_iterations", "warning")]
    assert show(screen, StatusChanged(status="hibernated")) == [
        NoteBlock("the session hibernates: a message wakes it")
    ]
    assert screen.ended == "hibernated"


def test_nothing_of_a_text_controls_the_terminal() -> None:
    """Escape sequences in any text are removed, also where pieces split them."""
    evil = "a\x1b[2J\x1b]0;t\x07\x9b31m\u202eb"
    blocks: list[Block] = [
        UserBlock(evil, evil),
        ReplyBlock(f"# {evil} &#x202e;&#27;[2J\n\n`{evil}` [x](http://{evil})\n\n```{evil}\n{evil}\n```"),
        ToolBlock(evil, {evil: evil}, evil),
        WaitingBlock(evil, evil, {evil: evil}, "approval"),
        NoteBlock(evil),
    ]
    painter = Painter(80)
    live = Live(
        evil, (RunningTool(evil, {}, evil),), evil, None, (evil,), (WaitingBlock(evil, evil, {}, "approval"),)
    )
    painted = [painter.paint_block(block) for block in blocks] + [painter.paint_live(live, rows=20, tick=0, now=NOW)]
    for text in painted:
        assert not [sign for sign in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e") if sign in text]
    screen = Screen()
    show(screen, add_text("x\x1b"), add_text("[2Jy", 2))
    (block,) = show(screen, end())
    assert "\x1b[2J" not in painter.paint_block(block)


def test_the_live_part_fits_its_rows_and_columns() -> None:
    """However much is live, its newest lines are shown."""
    tools = tuple(RunningTool(f"tool{number}", {"text": "x" * 500}) for number in range(30))
    live = Live("- word\n" * 1000, tools, "thinking: " + "y" * 500, None, ("z" * 500,))
    lines = Painter(40).paint_live(live, rows=8, tick=3, now=NOW).split("\n")
    assert len(lines) == 8
    assert max(map(len, lines)) <= 40


def test_html_is_shown_as_text() -> None:
    """A reply loses none of its text to Markdown's HTML."""
    painter = Painter(80)
    assert painter.paint_block(ReplyBlock("<div>\nin **it**\n</div>")) == "\n<div>\nin it\n</div>\n"


def test_a_block_has_one_empty_line_before_it() -> None:
    """Neither filled lines nor empty ones of tables and code stand around it."""
    block = ReplyBlock("| a |\n|---|\n| 1 |\n\n")
    assert Painter(80, "truecolor").paint_block(block).split("\n")[0] == ""
    assert Painter(80).paint_block(block) == "\n a\n ─\n 1\n"


def test_sources_follow_the_reply() -> None:
    """The calls of the provider and the pages, after the last block of the text and before the tools' results."""
    screen = Screen()
    shown = screen.take(TextAdded(call_id="c-1", attempt=1, offset=0, text="Tea."))
    calls: list[ProviderCall] = [{"tool": "web_search", "input": "tea"}]
    citations: list[Citation] = [{"url": "https://a.example", "title": "A\x1b[31m"}]
    shown += screen.take(say("assistant", "Tea.", provider_calls=calls, citations=citations))
    assert shown == [ReplyBlock("Tea."), SourcesBlock(tuple(calls), tuple(citations))]
    assert Painter(80).paint_block(shown[-1]) == "↗ web_search: tea\n[1] A — https://a.example\n"


def test_calls_that_wait_in_subagents_are_told_once() -> None:
    """Approvals, which a key decides, and results, for which the command is told."""
    screen = Screen()
    call = PendingCall(tool_call_id="t-1", name="pay", arguments={})
    calls = [WaitingCall("s.t-0", "approval", call), WaitingCall("s.t-9", "result", call)]
    asked, wanted = screen.take_calls_of_subagents(calls)
    assert screen.take_calls_of_subagents(calls) == []
    assert screen.waiting_calls == (asked,)
    assert isinstance(wanted, WaitingBlock)
    assert (wanted.needs, wanted.session_id) == ("result", "s.t-9")
    assert "clew submit s.t-9 t-1" in Painter(80).paint_block(wanted)
