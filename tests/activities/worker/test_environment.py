"""The worker's environment variables."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from clew_activities.archive import Store
from clew_activities.providers import Providers, load_providers
from clew_activities.worker import WorkerSettings, make_worker
from clew_activities.worker.environment import (
    GRACE,
    Capacity,
    read_capacity,
    read_deployment,
    read_grace,
    read_rate_limits,
)
from clew_activities.worker.observability import list_queues
from tests.support.stack import Stack


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


def test_limits_are_read_by_provider() -> None:
    """White space and empty parts do not count; without the variable nothing is limited."""
    assert read_rate_limits({"CLEW_RATE_LIMITS": " openai=50, my_server = 0.5,"}) == {"openai": 50, "my_server": 0.5}
    assert read_rate_limits({"CLEW_RATE_LIMITS": ""}) == read_rate_limits({}) == {}


@pytest.mark.parametrize(
    "value", ["openai", "openai=", "=5", "openai=0", "openai=-1", "openai=nan", "openai=inf", "openai=many", "50"]
)
def test_a_limit_is_a_provider_and_a_rate(value: str) -> None:
    """The error names the variable, and says how it is written."""
    with pytest.raises(ValueError, match=r"^CLEW_RATE_LIMITS must be a list of PROVIDER=NUMBER, as in openai=50"):
        read_rate_limits({"CLEW_RATE_LIMITS": f"anthropic=20,{value}"})


def test_a_provider_has_one_limit() -> None:
    """A repeated one is a mistake."""
    with pytest.raises(ValueError, match=r"^CLEW_RATE_LIMITS names 'openai' twice$"):
        read_rate_limits({"CLEW_RATE_LIMITS": "openai=5,openai=6"})


@pytest.mark.slow
async def test_a_limit_of_a_provider_that_the_worker_does_not_have_is_refused(stack: Stack) -> None:
    """A typo would leave the provider without a limit. A worker for tools alone has no providers, and may start."""
    providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})
    limits = {"scriptd": 5.0}
    async with httpx.AsyncClient() as http:
        with pytest.raises(ValueError, match=r"^CLEW_RATE_LIMITS names 'scriptd', .* no provider .* \(scripted\)$"):
            make_worker(
                stack.clew.temporal,
                WorkerSettings(
                    task_queue="limits",
                    providers=providers,
                    store=stack.store,
                    rate_limits=limits,
                ),
                http,
            )
        make_worker(
            stack.clew.temporal,
            WorkerSettings(
                task_queue="limits",
                providers=providers,
                store=stack.store,
                rate_limits=limits,
                serves=["tools"],
            ),
            http,
        )


def test_the_backlog_of_a_limited_provider_is_reported() -> None:
    """It is where its calls wait."""
    settings = WorkerSettings(
        providers=Providers({}), store=Store.from_url("memory://"), serves=["models"], rate_limits={"openai": 5.0}
    )
    names = [name for name, _ in list_queues(settings)]
    assert names == ["clew-models", "clew-models-openai"]
