"""The URLs and the secrets' names of webhooks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.contract import SessionConfig, Webhook
from clew_workflows.contract.limits import MAX_WEBHOOKS
from clew_workflows.contract.webhooks import find_url_problem


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/",
        "https://hooks.example.com:8443/a/b?token=1%202",
        "http://127.0.0.1:8080/",
        "https://[2001:db8::1]:8443/x",
        "https://xn--bcher-kva.example/",
    ],
)
def test_a_url_is_accepted(url: str) -> None:
    """Whether a worker sends to its host is the worker's to say."""
    assert find_url_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https:example.com",
        "HTTPS//example.com",
        "javascript:alert(1)",
        "https://a@b/",
        "https://example.com:0/",
        "https://example.com:x/",
        "https://bücher.example/",
        "https://example.com/\t",
        "https://[::1%25eth0]/",
        "https://[::1/",
        "https://example.com/#",
        "https://exam_ple.com:",
        "https://a,b/",
    ],
)
def test_a_url_is_refused(url: str) -> None:
    """What programs may read as different hosts, and what has no meaning in a webhook."""
    assert find_url_problem(url) is not None


@given(st.text(max_size=60))
def test_every_text_has_an_answer(text: str) -> None:
    """No text raises an error."""
    find_url_problem(text)
    find_url_problem(f"https://{text}")


@pytest.mark.parametrize("secret", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "Main", "", "a-b", "a" * 41])
def test_a_secret_is_named_and_never_given(secret: str) -> None:
    """A secret in the place of its name is refused."""
    with pytest.raises(ValidationError):
        Webhook(url="https://example.com/", secret=secret)


def test_a_configuration_has_a_few_webhooks() -> None:
    """At most eight, each of them for at least one event."""
    hook = Webhook(url="https://example.com/", secret="main")
    assert SessionConfig(model="a:b", webhooks=(hook,) * MAX_WEBHOOKS).webhooks == (hook,) * MAX_WEBHOOKS
    with pytest.raises(ValidationError):
        SessionConfig(model="a:b", webhooks=(hook,) * (MAX_WEBHOOKS + 1))
    with pytest.raises(ValidationError):
        Webhook(url="https://example.com/", secret="main", events=())
