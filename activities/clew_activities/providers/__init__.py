"""Model providers: pure encoders and decoders around one HTTP boundary.

providers = providers_from_env(os.environ)
provider = providers.get("openai")
decoder = Screened(provider.decoder(), providers.redaction)
reply = await stream(client, provider, request, decoder)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from clew_activities.providers.anthropic import Anthropic
from clew_activities.providers.base import Decoder, ModelRequest, Provider
from clew_activities.providers.errors import ProviderError, UnknownModel
from clew_activities.providers.http import http_client, stream
from clew_activities.providers.openai import OpenAI
from clew_activities.providers.redaction import Redaction, secrets_from_env
from clew_activities.providers.screened import Screened

__all__ = [
    "Decoder",
    "ModelRequest",
    "Provider",
    "ProviderError",
    "Providers",
    "Redaction",
    "Screened",
    "http_client",
    "providers_from_env",
    "stream",
]

_OPENAI_URL = "https://api.openai.com/v1"
_ANTHROPIC_URL = "https://api.anthropic.com"
_OFFICIAL_HOSTS = (".openai.com", ".openai.azure.com")

_NAMED = re.compile(r"CLEW_PROVIDER_([A-Z0-9_]+)_(BASE_URL|API_KEY)")


@dataclass(frozen=True)
class Providers:
    """The providers of this worker, by name."""

    _by_name: Mapping[str, Provider]
    redaction: Redaction = field(default_factory=Redaction)
    """Of every secret that the worker has, not only the one of the provider that is called."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(sorted(self._by_name))

    def get(self, name: str) -> Provider:
        """The provider of that name.

        Raises:
            UnknownModel: this worker has none; the message says which variable would give it one.
        """
        provider = self._by_name.get(name)
        if provider is None:
            here = ", ".join(self.names) or "none"
            raise UnknownModel(f"no provider {name[:100]!r} on this worker ({here}): {_remedy(name)}")
        return provider


def providers_from_env(environ: Mapping[str, str]) -> Providers:
    """The providers that the environment configures.

    `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` as the official clients read
    them: the key or the URL is enough. `CLEW_PROVIDER_<NAME>_BASE_URL`, with `CLEW_PROVIDER_<NAME>_API_KEY` where
    the server wants a key, adds an OpenAI-compatible server under the name in lower case. The worker's other
    secrets in the environment are redacted along with the keys.

    Raises:
        ValueError: a variable's value cannot be used; the message names the variable, never the value.
    """
    by_name: dict[str, Provider] = {}
    settings = {name: value.strip() for name, value in environ.items() if value.strip()}
    key, url = _key(settings, "OPENAI_API_KEY"), _url(settings, "OPENAI_BASE_URL")
    if key or url:
        by_name["openai"] = _openai("openai", url or _OPENAI_URL, key)
    key, url = _key(settings, "ANTHROPIC_API_KEY"), _url(settings, "ANTHROPIC_BASE_URL")
    if key or url:
        by_name["anthropic"] = Anthropic("anthropic", url or _ANTHROPIC_URL, key)
    for prefix in sorted({match[1] for name in settings if (match := _NAMED.fullmatch(name))}):
        name, variable = prefix.lower(), f"CLEW_PROVIDER_{prefix}"
        url = _url(settings, f"{variable}_BASE_URL")
        if name in ("openai", "anthropic"):
            raise ValueError(f"{variable}_BASE_URL: {name} is configured with {prefix}_BASE_URL and {prefix}_API_KEY")
        if url is None:
            raise ValueError(f"{variable}_API_KEY is set and {variable}_BASE_URL is not: set the URL too")
        by_name[name] = _openai(name, url, _key(settings, f"{variable}_API_KEY"))
    secrets = [secret for provider in by_name.values() for secret in provider.secrets]
    return Providers(by_name, Redaction([*secrets, *secrets_from_env(environ)]))


def _openai(name: str, url: str, key: str | None) -> OpenAI:
    official = f".{httpx.URL(url).host}".endswith(_OFFICIAL_HOSTS)
    return OpenAI(name, url, official, key)


def _key(settings: Mapping[str, str], variable: str) -> str | None:
    key = settings.get(variable)
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise ValueError(f"{variable} holds white space or characters that no key has: set it again")
    return key


def _url(settings: Mapping[str, str], variable: str) -> str | None:
    value = settings.get(variable)
    if value is None:
        return None
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        raise ValueError(f"{variable} is not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{variable} must be an http:// or https:// URL with a host")
    if url.userinfo:
        raise ValueError(f"{variable} must not hold a user or a password: set the key in its own variable")
    if url.query or url.fragment:
        raise ValueError(f"{variable} must not hold a query or a fragment: a path is added to it")
    return value.rstrip("/")


def _remedy(name: str) -> str:
    if name in ("openai", "anthropic"):
        return f"set {name.upper()}_API_KEY"
    if re.fullmatch(r"[a-z0-9_]{1,100}", name):
        return f"set CLEW_PROVIDER_{name.upper()}_BASE_URL to add an OpenAI-compatible server of that name"
    return "a provider's name has lower-case letters, digits and _"
