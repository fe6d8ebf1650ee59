"""Histories of sessions, realistic and hostile: their steps, the threads that they make, and Hypothesis strategies.

A step is data, so that a failing history is readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from clew.contract.payloads import EntryKind
from clew_workflows.contract.content import Part, append_text, get_text
from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ClearMedia, ClearToolResults, ContextPolicy
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.thread import Thread
from tests.support.threads import (
    OTHER_PAYLOADS,
    Writer,
    assistant_calls,
    assistant_says,
    system_says,
    tool_returns,
    user_says,
)


class Turn(NamedTuple):
    """A complete run: the user's message, the number of calls of each round of tools, and perhaps an answer.

    The answer may be interrupted.
    """

    lane: str
    text: str
    rounds: list[int]
    answer: str | None
    interrupted: bool = False


class Steered(NamedTuple):
    """A user's message in the run that is in progress."""

    lane: str
    text: str


class LooseMessage(NamedTuple):
    """A message outside any run."""

    lane: str
    message: Message


class LargeRound(NamedTuple):
    """A round of tools in the run that is in progress, with results of these sizes, and perhaps an answer."""

    lane: str
    sizes: list[int]
    text: str
    answer: str | None


class Shown(NamedTuple):
    """Parts in a run: a user's message, an assistant's, or the results of a round, all with the same parts."""

    lane: str
    parts: list[Part]
    role: str
    results: int = 1


class OpenCalls(NamedTuple):
    """An assistant's tool calls without results."""

    lane: str
    number: int
    blocks_of: str | None


class Result(NamedTuple):
    """A result for the call that many calls back (duplicates, late ones, another lane's), or for no call at all.

    `mark` says that it is in doubt, or late.
    """

    lane: str
    back: int | None
    text: str
    mark: str | None = None


class DoubtfulRound(NamedTuple):
    """A round that ended in doubt, and perhaps the results that arrived after it, all but the first."""

    number: int
    settled: bool


class Replaced(NamedTuple):
    """A snapshot: its own messages, and the lane's last `verbatim` ones as they were `back` entries ago."""

    lane: str
    messages: list[Message]
    verbatim: int
    back: int | None
    reason: str = "manual"


class Pinned(NamedTuple):
    """Entries pinned or unpinned: those so many entries ago, messages of the lane or not."""

    lane: str
    kind: str
    backs: list[int]


class Expanded(NamedTuple):
    """The latest compaction undone, where there is one."""

    lane: str


class Withdrawn(NamedTuple):
    """A run's messages that are withdrawn before any reply; if not `sent`, entries that no context shows instead."""

    lane: str
    number: int
    sent: bool


class Corrected(NamedTuple):
    """A run whose wrong answers leave the contexts at its end; if not `sent`, entries that no context shows instead.

    Each answer has some parts. What may come before its correction: an entry that no context shows, or a late result.
    """

    lane: str
    parts: list[int]
    between: str
    answer: str | None
    sent: bool = True


class Summarized(NamedTuple):
    """A summary up to so many entries ago."""

    lane: str
    back: int
    text: str


class Switched(NamedTuple):
    """A change of the active lane."""

    lane: str


class Other(NamedTuple):
    """An entry that no context shows."""

    kind: EntryKind


Talk = Turn | Steered | LargeRound | LooseMessage | Shown | OpenCalls | Result | DoubtfulRound
Operation = Replaced | Summarized | Pinned | Expanded | Withdrawn | Corrected | Switched | Other
Step = Talk | Operation


def write(steps: Sequence[Step], name: str = "heuristic") -> Thread:
    """Write the thread of a history. Every message's text ends with its seq, so that no two are equal."""
    player = _Player(Writer(name))
    for step in steps:
        match step:
            case Turn() | Steered() | LargeRound() | LooseMessage() | OpenCalls() | Result() | DoubtfulRound():
                player.play(step)
            case Shown():
                player.show(step)
            case _:
                player.operate(step)
    return player.writer.thread


def _is_left_out(entry: Entry) -> bool:
    return get_text(entry.message["content"]).startswith(("withdrawn [", "wrong [", "correct it ["))


class _Player:
    """Commits the steps of a history to a writer."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.calls: list[str] = []
        self.runs = 0

    def play(self, step: Turn | Steered | LargeRound | LooseMessage | OpenCalls | Result | DoubtfulRound) -> None:
        match step:
            case Turn(lane, text, rounds, answer, interrupted):
                self.runs += 1
                run = f"run-{self.runs}"
                self._speak(lane, user_says(text), run)
                for count in rounds:
                    call_ids = self._new_calls(count)
                    self._speak(lane, assistant_calls(*call_ids), run)
                    for call_id in call_ids:
                        self._speak(lane, tool_returns(call_id, text), run)
                if answer is not None:
                    self._speak(lane, assistant_says(answer), run, interrupted=interrupted)
            case Steered(lane, text):
                self._speak(lane, user_says(text), f"run-{self.runs}")
            case LargeRound(lane, sizes, text, answer):
                run, call_ids = f"run-{self.runs}", self._new_calls(len(sizes))
                self._speak(lane, assistant_calls(*call_ids), run)
                for call_id, size in zip(call_ids, sizes, strict=True):
                    self._speak(lane, tool_returns(call_id, (text * size)[:size]), run)
                if answer is not None:
                    self._speak(lane, assistant_says(answer), run)
            case LooseMessage(lane, message):
                self._speak(lane, message)
            case OpenCalls():
                self._call(step)
            case Result(lane, back, text, mark):
                known = back is not None and back <= len(self.calls)
                call_id = self.calls[-back] if back and known else "unknown"
                self._speak(lane, tool_returns(call_id, text), in_doubt=mark == "in_doubt", late=mark == "late")
            case DoubtfulRound(number, settled):
                self._doubt(number, settled)

    def show(self, step: Shown) -> None:
        parts = list(step.parts)
        if step.role == "user":
            self.runs += 1
        run = f"run-{self.runs}"
        if step.role != "tool":
            self._speak(step.lane, {"role": step.role, "content": parts}, run)  # type: ignore[typeddict-item]
            return
        call_ids = self._new_calls(step.results)
        self._speak(step.lane, assistant_calls(*call_ids), run)
        for call_id in call_ids:
            self._speak(step.lane, {**tool_returns(call_id), "content": parts}, run)

    def _call(self, step: OpenCalls) -> None:
        message = assistant_calls(*self._new_calls(step.number))
        if step.blocks_of:
            message["provider_data"] = {"provider": step.blocks_of, "blocks": [{"signature": "c2ln" * 4}]}
        self._speak(step.lane, message)

    def _doubt(self, number: int, settled: bool) -> None:
        lane, call_ids = DEFAULT_LANE, self._new_calls(number)
        self._speak(lane, assistant_calls(*call_ids))
        for call_id in reversed(call_ids):
            self._speak(lane, tool_returns(call_id, "in doubt " * 10), in_doubt=True)
        self._speak(lane, user_says("and now?"))
        for call_id in call_ids[1:] if settled else ():
            self._speak(lane, tool_returns(call_id, "x"), late=True)

    def operate(self, step: Operation) -> None:
        thread = self.writer.thread
        match step:
            case Replaced(lane, messages, verbatim, back, reason):
                base_seq = None if back is None else max(thread.last_seq - back, -1)
                upto = thread.last_seq if base_seq is None else base_seq
                talk = [entry for entry in thread.slice(0, upto) if entry.kind == "ai_message"]
                own = [entry.message for entry in talk if entry.lane == lane and not _is_left_out(entry)]
                own = own[len(own) - min(verbatim, len(own)) :]
                self.writer.replace([*messages, *own], lane, base_seq, reason=reason)
            case Pinned(lane, kind, backs):
                self.writer.operate(kind, lane, seqs=[max(thread.last_seq - back, 0) for back in backs])
            case Expanded(lane):
                self.writer.expand(lane)
            case Withdrawn(lane, number, sent):
                self._withdraw(lane, number, sent=sent)
            case Corrected():
                self._correct(step)
            case Summarized(lane, back, text):
                self.writer.summary(max(thread.last_seq - back, -1), text, lane)
            case Switched(lane):
                self.writer.switch(lane)
            case Other("config"):
                self.writer.config()
            case Other(kind):
                self.writer.commit(kind, OTHER_PAYLOADS[kind], request_id="request-1")

    def _withdraw(self, lane: str, number: int, *, sent: bool) -> None:
        self.runs += 1
        for _ in range(number):
            if sent:
                self._speak(lane, user_says("withdrawn"), f"run-{self.runs}")
            else:
                self.writer.commit("error", OTHER_PAYLOADS["error"])
        if sent:
            self.writer.operate("withdraw", lane, from_seq=self.writer.thread.rev - number)
        else:
            self.writer.commit("error", OTHER_PAYLOADS["error"])

    def _correct(self, step: Corrected) -> None:
        self.runs += 1
        run, pairs = f"run-{self.runs}", list[tuple[int, int]]()
        self._speak(step.lane, user_says("typed"), run)
        for parts in step.parts:
            first = self.writer.thread.rev
            for _ in range(parts):
                self._say_or_not(step, assistant_says("wrong"), run)
            if step.between == "late" and self.calls:
                self._speak(step.lane, tool_returns(self.calls[-1], "x"), late=True)
            elif step.between == "entry":
                self.writer.commit("error", OTHER_PAYLOADS["error"])
            pairs.append((first, self.writer.thread.rev))
            self._say_or_not(step, user_says("correct it"), run)
        if step.answer is not None:
            self._speak(step.lane, assistant_says(step.answer), run)
        for first, last in pairs:
            if step.sent:
                self.writer.operate("corrected", step.lane, from_seq=first, to_seq=last)
            else:
                self.writer.commit("error", OTHER_PAYLOADS["error"])

    def _say_or_not(self, step: Corrected, message: Message, run: str) -> None:
        if step.sent:
            self._speak(step.lane, message, run)
        else:
            self.writer.commit("error", OTHER_PAYLOADS["error"])

    def _speak(
        self,
        lane: str,
        message: Message,
        run: str | None = None,
        *,
        in_doubt: bool = False,
        late: bool = False,
        interrupted: bool = False,
    ) -> None:
        content = append_text(message["content"], f" [{self.writer.thread.rev}]")
        marks = {"in_doubt": in_doubt, "late": late, "interrupted": interrupted}
        marked = {name: True for name, is_marked in marks.items() if is_marked}
        self.writer.message({**message, "content": content, **marked}, lane, run)  # type: ignore[typeddict-item]

    def _new_calls(self, count: int) -> list[str]:
        ids = [f"call-{len(self.calls) + number}" for number in range(count)]
        self.calls += ids
        return ids


LANES = (DEFAULT_LANE, "draft", "side")
PROVIDERS = (None, "anthropic", "openai")

_lanes = st.sampled_from((DEFAULT_LANE,) * 7 + ("draft",) * 2 + ("side",))
_TEXTS = ("", "ok", "What is 2+2?", "word " * 40, "x" * 300, "🧵" * 9, " " * 600, '"\\\n\u2028', "日本語" * 30)


def _choose_text(index: int) -> str:
    return _TEXTS[index]


_texts = st.one_of(
    st.integers(0, len(_TEXTS) - 1).map(_choose_text),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


def make_part(kind: str, number: int = 0, **details: object) -> Part:
    """Make a part that names a blob, whose digest is made of a number."""
    media_types = {"image": "image/png", "audio": "audio/wav", "file": "application/pdf"}
    blob = {"digest": f"{number:064x}", "media_type": media_types[kind], "bytes": 1000, **details}
    return {"type": kind, "blob": blob}  # type: ignore[misc,return-value]


def _say_parts(parts: list[Part]) -> Message:
    return {"role": "user", "content": parts}


def _return_parts(parts: list[Part]) -> Message:
    return {**tool_returns("s1"), "content": parts}


_PARTS: tuple[Part, ...] = (
    {"type": "text", "text": "see"},
    {"type": "text", "text": "word " * 300},
    {"type": "image", "url": "https://example.org/a.png"},
    *(make_part("image", side, width=side, height=side, name=f"{side}.png") for side in (10, 300, 500, 1000, 2000)),
    make_part("image", 6),
    make_part("audio", 7, seconds=0.5),
    make_part("audio", 7, seconds=10.0),
    make_part("file", 8, pages=1),
    make_part("file", 9, pages=3, name="日本語.pdf"),
)
_parts = st.lists(st.integers(0, len(_PARTS) - 1), min_size=1, max_size=4).map(
    lambda indexes: [_PARTS[index] for index in indexes]
)
_snapshot_messages: st.SearchStrategy[Message] = st.one_of(
    _texts.map(user_says),
    _texts.map(assistant_says),
    _texts.map(system_says),
    st.sampled_from(("s1", "s2")).map(assistant_calls),
    st.just(assistant_calls("s1", "s2")),
    st.sampled_from(("s1", "s2", "unknown")).map(tool_returns),
    _parts.map(_say_parts),
    _parts.map(_return_parts),
)
_turns = st.builds(
    Turn,
    _lanes,
    _texts,
    st.lists(st.integers(1, 3), max_size=3),
    st.none() | _texts,
    st.sampled_from((False, False, False, True)),
)
_rounds = st.builds(
    LargeRound,
    _lanes,
    st.lists(st.sampled_from((0, 200, 300, 700, 1500, 4000, 12_000)), min_size=1, max_size=4),
    st.sampled_from(("x", "word ", "日本語\n", "0123456789", "🧵 ")),
    st.none() | _texts,
)
_talk: list[st.SearchStrategy[Step]] = [
    _turns,
    _turns,
    st.builds(Steered, _lanes, _texts),
    _rounds,
    _rounds,
    st.builds(LooseMessage, _lanes, _texts.map(user_says) | _texts.map(assistant_says)),
    st.builds(OpenCalls, _lanes, st.integers(1, 3), st.sampled_from(PROVIDERS)),
    st.builds(Result, _lanes, st.none() | st.integers(1, 4), _texts, st.sampled_from((None, "in_doubt", "late"))),
    st.builds(DoubtfulRound, st.integers(1, 3), st.booleans()),
    st.builds(
        Shown, _lanes, _parts, st.sampled_from(("user", "user", "tool", "tool", "assistant")), st.integers(1, 3)
    ),
    st.builds(Shown, _lanes, _parts, st.just("tool"), st.integers(1, 2)),
    st.builds(Switched, _lanes),
    st.builds(Other, st.sampled_from(("config", "error", "run", "input", "approval", "fork"))),
]
_cuts: list[st.SearchStrategy[Step]] = [
    st.builds(
        Replaced,
        _lanes,
        st.lists(_snapshot_messages, max_size=4),
        st.integers(0, 3),
        st.none() | st.integers(-2, 12),
        st.sampled_from(("manual", "compaction", "compaction")),
    ),
    st.builds(Pinned, _lanes, st.sampled_from(("pin", "pin", "unpin")), st.lists(st.integers(0, 12), max_size=3)),
    st.builds(Expanded, _lanes),
    st.builds(Summarized, _lanes, st.integers(1, 12), _texts),
    st.builds(
        Corrected,
        _lanes,
        st.lists(st.integers(1, 2), min_size=1, max_size=3),
        st.sampled_from(("", "entry", "late")),
        st.none() | _texts,
    ),
]
# Deferred, because Hypothesis would write all of it out in each failure.
conversations = st.deferred(lambda: st.lists(st.one_of(_talk), min_size=4, max_size=16))
histories = st.deferred(lambda: st.lists(st.one_of(_talk + _cuts + _cuts), min_size=4, max_size=16))
policies = st.builds(
    ContextPolicy,
    max_input_tokens=st.sampled_from((100, 200, 400, 800, 1600, 8000)),
    reserve_output_tokens=st.sampled_from((0, 20)),
    max_messages=st.sampled_from((0, 0, 0, 1, 2, 3, 5, 8)),
    keep_last_turns=st.integers(0, 4),
    summarization=st.sampled_from(("none", "use_existing", "request_new")),
    summary_role=st.sampled_from(("system", "user")),
    include_kinds=st.sampled_from(
        (
            ("message", "tool_call", "tool_result", "summary"),
            ("message", "tool_call", "tool_result", "summary"),
            ("message", "tool_call", "tool_result"),
            ("message", "tool_call", "summary"),
            ("message", "tool_result"),
            ("message",),
            ("tool_call", "tool_result"),
        )
    ),
    window=st.sampled_from(("sliding", "sliding", "epoch")),
    low_water=st.sampled_from((0.1, 0.5, 0.9)),
    token_estimator=st.sampled_from(("exact", "exact", "heuristic")),
    summarize_threshold=st.none() | st.integers(1, 12),
    max_thread_tokens=st.none() | st.integers(1, 500),
    clear_tool_results=st.none()
    | st.builds(
        ClearToolResults,
        keep=st.integers(0, 4),
        min_tokens=st.sampled_from((0, 1, 50, 200)),
        exclude_tools=st.sampled_from(((), (), ("calculator",), ("nobody's",))),
    ),
    clear_media=st.none()
    | st.builds(ClearMedia, keep=st.integers(0, 4), min_tokens=st.sampled_from((0, 1, 300, 2000))),
).map(lambda policy: policy if policy.window == "sliding" else policy.model_copy(update={"token_estimator": "exact"}))
