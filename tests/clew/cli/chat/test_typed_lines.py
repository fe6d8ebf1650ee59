"""Lines that are typed in a chat."""

from __future__ import annotations

import pytest

from clew.cli.chat.typed_lines import (
    COMMANDS,
    Decision,
    Kind,
    Message,
    Mistake,
    Typed,
    complete,
    format_help,
    parse_decision,
    parse_line,
)


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("hello /status", Message("hello /status")),
        ("/etc/passwd is a file", Message("/etc/passwd is a file")),
        ("//status is a command", Message("/status is a command")),
        ("/", Message("/")),
        ("/status", Typed("status")),
        ("/exit", Typed("quit")),
        ("/steer only\nthe last", Typed("steer", "only\nthe last")),
        ("/cancel", Typed("cancel")),
        ("/cancel too long", Typed("cancel", "too long")),
        ("/submit call-1 sold out", Typed("submit", "call-1 sold out")),
        ("/steer", Mistake("/steer needs TEXT")),
        ("/submit call-1", Mistake("/submit needs ID TEXT")),
        ("/status now", Mistake("/status takes no argument")),
    ],
)
def test_a_line_is_a_message_or_a_command(line: str, parsed: object) -> None:
    """A slash and a word begin a command, whose argument is checked; other lines are messages."""
    assert parse_line(line) == parsed


@pytest.mark.parametrize("line", ["/statsu", "/bogus with words"])
def test_an_unknown_command_is_said_to_be_one(line: str) -> None:
    """It is never sent to the model."""
    parsed = parse_line(line)
    assert isinstance(parsed, Mistake)
    assert parsed.reason.startswith(f"unknown command {line.split(maxsplit=1)[0]}:")


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("y", Decision("approve")),
        ("Yes", Decision("approve")),
        ("n", Decision("deny")),
        ("no too dear", Decision("deny", "too dear")),
        ("e", Decision("edit")),
        ("yes, but only the last", None),
        ("nothing", None),
    ],
)
def test_answers_to_an_approval(line: str, decision: Decision | None) -> None:
    """Only a bare yes approves; other lines steer."""
    assert parse_decision(line) == decision


def test_help_has_every_command() -> None:
    """The help is made from the table."""
    lines = format_help(keys=True).splitlines()
    assert [line.split()[0] for line in lines[: len(COMMANDS)]] == [f"/{name}" for name in COMMANDS]
    assert any(line.startswith("Ctrl-D") for line in lines)


def test_completion() -> None:
    """Commands by their beginning, then the names that the command's argument takes."""
    names = complete("/s", {})
    assert [name for name, _, _ in names] == ["/status", "/steer", "/submit", "/switch"]
    assert {replaced for _, replaced, _ in names} == {2}
    assert complete("/switch dr", {"lane": ["default", "draft"]}) == [("draft", 2, "")]
    calls: dict[Kind, list[str]] = {"approval": ["tool00001"], "external": ["tool00002"]}
    assert complete("/approve ", calls) == complete("/deny ", calls) == [("tool00001", 0, "")]
    assert complete("/submit tool", calls) == [("tool00002", 4, "")]
    assert complete("/deny tool00001 t", calls) == []
    assert complete("a /s", {}) == complete("/steer a", {}) == complete("//s", {}) == []
