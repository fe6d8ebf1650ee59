"""The measurement of fairness, with few tenants for a short time."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.fairness import Load, measure, show


@pytest.mark.slow
@pytest.mark.long
async def test_every_phase_is_measured_and_shown() -> None:
    """Quiet tenants send all their messages; only the phases with a flood have its turns."""
    load = Load(quiet=3, messages=2, flood=4, slots=1, call_seconds=0.05, seconds=2)
    phases = await measure(load)
    assert [len(phase.turns) for phase in phases] == [6, 6, 6]
    assert [phase.flooded > 0 for phase in phases] == [False, True, True]
    text = io.StringIO()
    show(load, phases, Console(file=text, width=200))
    assert all(phase.name in text.getvalue() for phase in phases)
