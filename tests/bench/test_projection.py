"""The benchmark of the projection runs; what it measures is for people to read."""

from __future__ import annotations

import pytest

from bench.projection import main


def test_it_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A short run compares both threads, follows a session, and ends with langchain-core or how to get it."""
    assert main(["--small", "200", "--messages", "300", "--large", "400", "--rounds", "2"]) in (0, 1)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line.strip("│ ").split("  ")[0].split(" │")[0] for line in lines if " ms" in line][:9] == [
        *("default policy", "short_context", "40 messages", "at a seq half-way"),
        *("after a summary", "after a replace", "reading all messages"),
        *("sliding", "epoch"),
    ]
    assert "The largest ratio of a projection is" in out
    assert "next call" in out or "pip install --target .venv/langchain" in out
