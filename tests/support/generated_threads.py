"""Hypothesis strategies for histories, which `thread_steps.write` makes threads of, and for context policies."""

from __future__ import annotations

from hypothesis import strategies as st

from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ClearToolResults, ContextPolicy
from clew_workflows.thread.entries import DEFAULT_LANE
from tests.support.thread_steps import (
    DoubtfulRound,
    Expanded,
    LargeRound,
    LooseMessage,
    OpenCalls,
    Other,
    Pinned,
    Replaced,
    Result,
    Steered,
    Step,
    Summarized,
    Switched,
    Turn,
)
from tests.support.threads import assistant_calls, assistant_says, system_says, tool_returns, user_says

LANES = (DEFAULT_LANE, "draft", "side")
PROVIDERS = (None, "anthropic", "openai")

_lanes = st.sampled_from((DEFAULT_LANE,) * 7 + ("draft",) * 2 + ("side",))
_texts = st.one_of(
    st.sampled_from(
        ("", "ok", "What is 2+2?", "word " * 40, "x" * 300, "🧵" * 9, " " * 600, '"\\\n\u2028', "日本語" * 30)
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
_snapshot_messages: st.SearchStrategy[Message] = st.one_of(
    _texts.map(user_says),
    _texts.map(assistant_says),
    _texts.map(system_says),
    st.sampled_from(("s1", "s2")).map(assistant_calls),
    st.just(assistant_calls("s1", "s2")),
    st.sampled_from(("s1", "s2", "unknown")).map(tool_returns),
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
).map(lambda policy: policy if policy.window == "sliding" else policy.model_copy(update={"token_estimator": "exact"}))
