"""The benchmark of the projection runs; what it measures is for people to read."""

from __future__ import annotations

import pytest

from bench.projection import main


def test_it_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A short run compares both threads on every row, and ends with the largest ratio."""
    assert main(["--small", "200", "--large", "400", "--rounds", "2"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if "x" in line and " ms" in line] == [
        *("default policy", "short_context", "40 messages", "at a seq half-way"),
        *("after a summary", "after a replace", "folding everything"),
    ]
    assert lines[-1].startswith("The largest ratio of a projection is")
