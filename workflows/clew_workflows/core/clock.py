"""The clock of a request: it stands still while the run waits for nothing but people, or results from outside."""

from __future__ import annotations

from dataclasses import replace

from clew_workflows.core.run import Run
from clew_workflows.core.state import Moment


def stop_clock(run: Run, at: Moment) -> Run:
    """Stop the request's clock, if it does not stand still already."""
    return run if run.paused_at is not None else replace(run, paused_at=at.time)


def resume_clock(run: Run, at: Moment) -> Run:
    """Let the request's clock go on: the time in which it stood still does not count, but for a subagent's work."""
    if run.paused_at is None:
        return replace(run, worked_seconds=0.0)
    waited = max(at.time - run.paused_at - run.worked_seconds, 0.0)
    return replace(run, deadline=run.deadline + waited, paused_at=None, worked_seconds=0.0)
