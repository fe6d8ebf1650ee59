"""Rate limits: how many calls all workers of a task queue together begin in a second. The server enforces them."""

from __future__ import annotations

from collections.abc import Mapping

RATE_LIMITS = "CLEW_RATE_LIMITS"
MIN_RATE = 0.001
MAX_RATE = 100_000.0
"""Least and largest rate, in calls a second."""
_FORM = f"PROVIDER=NUMBER, as in openai=50,anthropic=20, with numbers from {MIN_RATE} to {MAX_RATE:.0f}"


def read_rate_limits(environ: Mapping[str, str]) -> Mapping[str, float]:
    """Read `CLEW_RATE_LIMITS`: the most model calls in a second, by provider.

    Raises:
        ValueError: The value is not a list of providers with their rates, or names a provider twice.
    """
    limits: dict[str, float] = {}
    for part in filter(None, map(str.strip, environ.get(RATE_LIMITS, "").split(","))):
        provider, _, number = map(str.strip, part.partition("="))
        rate = parse_rate(number)
        if not provider or rate is None:
            raise ValueError(f"{RATE_LIMITS} must be a list of {_FORM}, not {part[:50]!r}")
        if provider in limits:
            raise ValueError(f"{RATE_LIMITS} names {provider[:50]!r} twice")
        limits[provider] = rate
    return limits


def parse_rate(text: str) -> float | None:
    """Parse a rate; None: it is not a number from `MIN_RATE` to `MAX_RATE`."""
    try:
        rate = float(text)
    except ValueError:
        return None
    # Temporal takes 0 for no limit.
    return rate if MIN_RATE <= rate <= MAX_RATE else None
