"""How much a worker does at once."""

from __future__ import annotations

import pytest

from clew_activities.worker.capacity import Capacity, read_capacity


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "100001", "9" * 5000, "\u0663"])
@pytest.mark.parametrize("variable", ["CLEW_MODEL_CALLS", "CLEW_TOOL_CALLS", "CLEW_STORE_CALLS", "CLEW_CALLER_CALLS"])
def test_how_much_it_does_at_once_is_a_number(variable: str, value: str) -> None:
    """The error names the variable."""
    with pytest.raises(ValueError, match=f"^{variable} must be a number from 1 to 100000"):
        read_capacity({variable: value})


def test_how_much_it_does_at_once_is_read_from_the_environment() -> None:
    """A variable that is unset or empty has its default."""
    assert read_capacity({}) == Capacity()
    environ = {"CLEW_MODEL_CALLS": "3000", "CLEW_TOOL_CALLS": "", "CLEW_STORE_CALLS": "7", "CLEW_OTHER": "x"}
    assert read_capacity(environ) == Capacity(model_calls=3000, store_calls=7)
