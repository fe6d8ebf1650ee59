"""How much is tried: all generated examples, half of them, or a tenth of them and some cases of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings


def register_profiles() -> None:
    """Register the profiles `all` and `few`, and load the first."""
    # How long an example takes says more about the machine than about the code.
    settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
    settings.register_profile("few", settings.get_profile("all"), max_examples=10)
    settings.load_profile("all")


def examples(count: int) -> settings:
    """Generate `count` examples, and the profile's share of them. Without it a test has 100 at most."""
    return settings(max_examples=count * settings().max_examples // 100)


def mark_slow_except(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark the cases of a table slow that are not quick: each proves the same once more.

    A tuple has a value for each parameter.
    """
    chosen = list(quick)
    return [
        case
        if case in chosen
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
