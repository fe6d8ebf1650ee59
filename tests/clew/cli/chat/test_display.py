"""The status line of a chat."""

from __future__ import annotations

from typing import Any

from clew.cli.chat.display import Meter, format_count
from clew.contract.payloads import AssistantMessage
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import SessionStatus
from clew_workflows.contract.payloads import Recipe
from clew_workflows.thread.entries import Entry

STATUS = SessionStatus(
    session_id="support-4711",
    status="idle",
    active_context_ref="draft",
    rev=5,
    projection_cursor_seq=4,
    usage=Usage(input_tokens=12_300, output_tokens=400, cost_usd=0.01, model_calls=3),
    model="openai:gpt-4o",
    config={"context_policy": {"max_input_tokens": 8000, "reserve_output_tokens": 2000}},
)


def make_reply(seq: int, tokens: int, lane: str = "draft") -> Entry:
    """Make the entry of a reply whose context had so many tokens."""
    usage = Usage(input_tokens=tokens, output_tokens=10, cost_usd=0.005)
    fields: dict[str, Any] = {"policy_hash": "x", "digest": "x", "attempt": 1, "stop_reason": "stop"}
    recipe = Recipe(
        context_ref=lane, basis_seq=0, model="a:b", model_options={}, input_tokens=tokens, usage=usage, **fields
    )
    message = AssistantMessage(context_ref=lane, role="assistant", content="", recipe=recipe)
    return Entry(
        seq=seq,
        id="e",
        at="2026-01-01T00:00:00.000Z",
        kind="ai_message",
        tokens=0,
        payload=message.as_dict(),
        refs={},
    )


def test_the_line_counts_each_reply_once() -> None:
    """Replies before the status are in its usage; later ones are added; other lanes' contexts are not shown."""
    meter = Meter()
    assert meter.format_line("starting", 80) == "starting"
    meter.take_status(STATUS)
    meter.take_entry(make_reply(4, 900))
    meter.take_entry(make_reply(5, 1500))
    meter.take_entry(make_reply(6, 90, "default"))
    assert meter.format_line("idle", 120) == (
        "support-4711 · lane draft · openai:gpt-4o · idle · context 1 500/6 000 (25%) · 13.9k → 420 tokens · $0.0200"
    )


def test_a_narrow_line_keeps_the_numbers() -> None:
    """What can be looked up goes first."""
    meter = Meter()
    meter.take_status(STATUS)
    meter.take_entry(make_reply(4, 900))
    assert meter.format_line("idle", 62) == "idle · context 900/6 000 (15%) · 12.3k → 400 tokens · $0.0100"
    assert len(meter.format_line("idle", 5)) == 5


def test_counts_are_short() -> None:
    """Large counts take few characters."""
    assert [format_count(number) for number in (9_999, 12_345, 123_456, 2_500_000)] == [
        *("9 999", "12.3k", "123k", "2.5M")
    ]
