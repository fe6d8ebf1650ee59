"""Chaos: many callers and faults at once, real processes, and an oracle that knows what callers were promised.

`python -m tests.chaos` runs it; `docs/testing.md` describes it.
"""
