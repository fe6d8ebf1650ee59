"""The worker's environment variables."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew_activities.worker.assembly import GRACE
from clew_activities.worker.environment import read_deployment, read_grace


@pytest.mark.parametrize("value", ["-1", "long", "1.5", "86401", "9" * 5000, "\u0663"])
def test_the_grace_is_a_number_of_seconds(value: str) -> None:
    """The error names the variable."""
    with pytest.raises(ValueError, match=r"^CLEW_GRACE_SECONDS must be a number from 0 to 86400"):
        read_grace({"CLEW_GRACE_SECONDS": value})


@pytest.mark.parametrize(("value", "grace"), [("", GRACE), ("0", timedelta(0)), ("960", timedelta(minutes=16))])
def test_the_grace_is_read_from_the_environment(value: str, grace: timedelta) -> None:
    """A variable that is unset or empty has its default."""
    assert read_grace({}) == GRACE
    assert read_grace({"CLEW_GRACE_SECONDS": value}) == grace


def make_version(name: str, build_id: str) -> dict[str, str]:
    return {"TEMPORAL_DEPLOYMENT_NAME": name, "TEMPORAL_WORKER_BUILD_ID": build_id}


def test_the_version_is_read_from_the_environment() -> None:
    """Without the variables, or with empty ones, a worker has no version."""
    assert read_deployment({}) is None
    assert read_deployment(make_version("", "")) is None
    deployment = read_deployment(make_version("clew", "1.4.0+3f2a"))
    assert deployment is not None
    assert deployment.use_worker_versioning
    assert deployment.version.to_canonical_string() == "clew.1.4.0+3f2a"


@pytest.mark.parametrize(
    ("name", "build_id", "error"),
    [
        ("clew", "", "set both"),
        ("", "1", "set both"),
        ("cl.ew", "1", "TEMPORAL_DEPLOYMENT_NAME"),
        ("cl:ew", "1", "TEMPORAL_DEPLOYMENT_NAME"),
        ("__clew", "1", "TEMPORAL_DEPLOYMENT_NAME"),
        ("clew", "__1", "TEMPORAL_WORKER_BUILD_ID"),
        ("clew", "1 2", "TEMPORAL_WORKER_BUILD_ID"),
        ("clew", "1" * 201, "TEMPORAL_WORKER_BUILD_ID"),
    ],
)
def test_a_version_that_the_server_does_not_take_is_refused(name: str, build_id: str, error: str) -> None:
    """The error names the variable."""
    with pytest.raises(ValueError, match=error):
        read_deployment(make_version(name, build_id))
