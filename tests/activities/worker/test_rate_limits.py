"""Rate limits: which settings a worker takes."""

from __future__ import annotations

import httpx
import pytest

from clew_activities.providers import load_providers
from clew_activities.worker import make_worker
from clew_activities.worker.backlog import list_queues
from clew_activities.worker.capacity import read_rate_limits
from tests.support.stack import Stack


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


async def test_a_limit_of_a_provider_that_the_worker_does_not_have_is_refused(stack: Stack) -> None:
    """A typo would leave the provider without a limit. A worker for tools alone has no providers, and may start."""
    providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})
    limits = {"scriptd": 5.0}
    async with httpx.AsyncClient() as http:
        with pytest.raises(ValueError, match=r"^CLEW_RATE_LIMITS names 'scriptd', .* no provider .* \(scripted\)$"):
            make_worker(
                stack.clew.temporal,
                task_queue="limits",
                providers=providers,
                tools={},
                http=http,
                store=stack.store,
                rate_limits=limits,
            )
        make_worker(
            stack.clew.temporal,
            task_queue="limits",
            providers=providers,
            tools={},
            http=http,
            store=stack.store,
            rate_limits=limits,
            serves=["tools"],
        )


def test_the_backlog_of_a_limited_provider_is_reported() -> None:
    """It is where its calls wait."""
    names = [name for name, _ in list_queues("clew", ["models"], {"openai": 5.0})]
    assert names == ["clew-models", "clew-models-openai"]
