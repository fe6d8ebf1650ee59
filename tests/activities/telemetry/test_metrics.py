"""The metrics of activities."""

from __future__ import annotations

from clew_activities.telemetry.metrics import BoundedLabels


def test_a_label_has_a_limited_number_of_values() -> None:
    """Callers choose names of models: those beyond the limit are counted together."""
    labels = BoundedLabels(limit=2)
    names = ("a", "b", "c", "a", "d")
    assert [labels.limit(model=name)["model"] for name in names] == ["a", "b", "other", "a", "other"]
    assert labels.limit(tool="c") == {"tool": "c"}
