"""A user adds a provider by naming a module; a fault in it is reported before the worker serves."""

from __future__ import annotations

import ast
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from clew_activities.providers import ProvidersUnusable, interface, load_providers
from clew_activities.providers.loading import BUILT_IN
from tests.support import parrot

PARROT = {"CLEW_PROVIDERS": "tests.support.parrot", "PARROT_URL": "http://localhost:1", "PARROT_KEY": "polly-1234"}
FOR_AUTHORS = set(re.findall(r"(?m)^\| `(\w+)` \|", interface.__doc__ or ""))


class Made:
    """A provider; tests take members away or change them."""

    name = "made"
    base_url = "http://localhost:1"
    secrets = ("hunter2hunter2",)
    secret_headers = ("x-made",)
    encode = make_decoder = read_error = None


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module `users_own`, empty."""
    made = types.ModuleType("users_own")
    monkeypatch.setitem(sys.modules, "users_own", made)
    return made


def get_refusal(**environ: str) -> str:
    with pytest.raises(ProvidersUnusable) as caught:
        load_providers({"CLEW_PROVIDERS": "users_own"} | environ)
    assert "'users_own'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


def test_a_module_that_is_named_makes_providers_beside_the_built_in_ones() -> None:
    """White space, empty names and repetitions do no harm."""
    environ = PARROT | {"OPENAI_API_KEY": "sk-1", "CLEW_PROVIDERS": " tests.support.parrot,, tests.support.parrot"}
    providers = load_providers(environ)
    assert providers.names == ("openai", "openai-chat", "parrot")
    assert providers.get("parrot") == parrot.Parrot("parrot", "http://localhost:1", "polly-1234")


def test_its_secrets_and_headers_are_redacted_whichever_provider_is_called() -> None:
    redaction = load_providers(PARROT).redaction
    assert redaction.redact_text("it is polly-1234!") == "it is [redacted]!"
    assert redaction.hide_headers("X-Parrot-Token: another") == "X-Parrot-Token: [redacted]"


@pytest.mark.parametrize("name", ["no_such_package.providers", "tests.support.no_such_module"])
def test_a_module_that_cannot_be_imported_is_named(name: str) -> None:
    with pytest.raises(ProvidersUnusable, match=f"'{name}' cannot be imported: ModuleNotFoundError"):
        load_providers({"CLEW_PROVIDERS": name})


def test_a_module_without_the_function_is_told_which(module: types.ModuleType) -> None:
    assert "defines no function make_providers(environ)" in get_refusal()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("X_URL is not a URL"), "cannot use the environment: X_URL"),
        (KeyError("X"), "failed: KeyError: 'X'"),
    ],
)
def test_a_function_that_fails_is_told_with_its_reason(module: Any, error: Exception, said: str) -> None:
    def make_providers(environ: object) -> None:
        raise error

    module.make_providers = make_providers
    assert said in get_refusal()


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("name", "My Provider", "its name must have 1 to 64"),
        ("name", 3, "its name must have 1 to 64"),
        ("base_url", "ftp://x", "its base_url must be an http"),
        ("base_url", "https://me:hunter2@x", "its base_url must not hold a user"),
        ("base_url", "https://x/", "its base_url ends in a slash"),
        ("base_url", None, "its base_url is not a string"),
        ("secrets", "hunter2hunter2", "its secrets are not a tuple"),
        ("secrets", (None,), "its secrets are not a tuple"),
        ("secret_headers", ["x"], "its secret_headers are not a tuple"),
    ],
)
def test_a_provider_that_breaks_the_interface_is_refused(module: Any, member: str, value: Any, said: str) -> None:
    """The error names the provider's class and the problem, and never a value."""
    provider = Made()
    setattr(provider, member, value)
    module.make_providers = lambda environ: [provider]
    refused = get_refusal()
    assert "makes a Made that is not a provider" in refused
    assert said in refused


def test_an_object_that_is_no_provider_is_told_what_it_lacks(module: Any) -> None:
    module.make_providers = lambda environ: [object()]
    assert "it has no base_url, encode, make_decoder, name, read_error, secret_headers, secrets" in get_refusal()


def test_two_providers_of_one_name_are_refused_with_both_modules(module: Any) -> None:
    module.make_providers = lambda environ: [parrot.Parrot("openai", "http://localhost:1")]
    assert f"makes a provider 'openai', and so does {BUILT_IN[-1]!r}" in get_refusal(OPENAI_API_KEY="sk-1")


PACKAGE = "clew_activities.providers"
PARTS = sorted(
    f"{PACKAGE}.{path.parent.name}.{path.stem}" for path in Path(interface.__file__ or "").parent.glob("*/[a-z]*.py")
)
"""The modules of each API, among them the built-in ones."""
SHARED = {f"{PACKAGE}.{name}" for name in (*FOR_AUTHORS, "aws")}
"""What they may import beside each other: what the interface lists for authors, and AWS's signatures."""


@pytest.mark.parametrize("name", [*PARTS, f"{PACKAGE}.aws", "tests.support.parrot"])
def test_every_provider_is_built_of_what_users_have(name: str) -> None:
    """The built-in ones import nothing of the worker but the modules that the interface lists for authors."""
    file = Path(sys.modules[name].__file__ or "")
    imported = {
        node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)
    }
    own = {module for module in imported if module.startswith("clew_activities.")}
    assert own <= SHARED.union(PARTS)


def test_the_built_in_modules_are_among_the_parts() -> None:
    """The test above reads every module that makes providers."""
    assert set(BUILT_IN) <= set(PARTS)
