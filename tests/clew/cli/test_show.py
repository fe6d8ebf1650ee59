"""Text for terminals, and the new text of a growing reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import StreamState
from clew.cli import show
from clew.cli.follow import Growth


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\nin lines, 日本語 and 👩‍🚀", "plain\ttext\nin lines, 日本語 and 👩‍🚀"),
        ("a\x1b[1;31mred\x1b[0m", "ared"),
        ("a\x1b]0;a title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("a\x1bPdevice\x1b\\b\x9b2Jc\x9d0;t\x9cd", "abcd"),
        ("a\x1bcb\x1b(0c\x1b=d", "abcd"),
        ("never closed: \x1b]0;text", "never closed: ]0;text"),
        ("a\r\nb\rc\x08\x00\x7f\x85d", "a\nbcd"),
        ("a\u202eb\u2066c\u2028d\ud800e", "abcde"),
        ("[bold]markup[/] stays", "[bold]markup[/] stays"),
    ],
)
def test_control_sequences_are_taken_out(text: str, expected: str) -> None:
    """Escape sequences and control characters are removed; all other text stays."""
    assert show.strip_controls(text) == expected


@given(st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]()0;mHJ\\\x07\x9c ab\n\u202e")))
def test_no_control_character_survives(text: str) -> None:
    """No control character remains, however sequences are nested or cut."""
    assert not set(show.strip_controls(text)) & set("\x1b\x9b\x9d\x07\x9c\u202e")


def state(text: str, offset: int = 0, *, call: str = "c-1", attempt: int = 1) -> StreamState:
    """Make a state of a stream."""
    return StreamState(
        request_id="r", run_id="run-1", call_id=call, attempt=attempt, iteration=1, offset=offset, text=text
    )


def test_only_what_is_new_is_appended() -> None:
    """Repeated, late or truncated states add no text twice and lose none."""
    growth = Growth()
    states = [state("The "), state("The thr"), state("The "), state("thread le", 4), state("The thread leads.")]
    assert [growth.add(one) for one in states] == [
        ("", "The "),
        (None, "thr"),
        (None, ""),
        (None, "ead le"),
        (None, "ads."),
    ]
    assert growth.add(state("The thread leads.")) == (None, "")


def test_a_reply_that_starts_over_says_so() -> None:
    """A new call begins a line; a new attempt, a gap and a different commit print a note."""
    growth = Growth()
    assert growth.add(state("One")) == ("", "One")
    assert growth.add(state("Two", call="c-2")) == ("", "Two")
    assert growth.add(state("Uno", attempt=2)) == ("[attempt 2: the reply starts over]", "Uno")
    assert growth.add(state("later", 100, attempt=2)) == ("[100 characters before this]", "later")
    assert growth.add(state("Another", attempt=2)) == ("[the whole reply]", "Another")
    assert growth.add(state("Two", call="c-2")) == (None, "")
