"""The providers of servers that have one of OpenAI's APIs, and which of them each has.

`OPENAI_API_KEY` and `OPENAI_BASE_URL` are read as the official client reads them: the key or the URL is enough.
`CLEW_PROVIDER_<NAME>_BASE_URL` adds a compatible server under the name in lower case; `CLEW_PROVIDER_<NAME>_API_KEY`
sets its key, if it needs one, `CLEW_PROVIDER_<NAME>_DIALECT` its dialect, and `CLEW_PROVIDER_<NAME>_HEADERS` further
headers of its requests. `CLEW_PROVIDER_OPENAI_DIALECT` and `CLEW_PROVIDER_OPENAI_HEADERS` are those of `openai`.

A server whose URL ends in `/anthropic` has Anthropic's Messages API, and so has one with the dialect `anthropic`, or
`anthropic-<server>` for what a certain server takes of it.

The dialect `responses` makes any of them a server of `responses`, which is another API. Without a dialect, `openai`
is one if its URL is OpenAI's own. `openai-chat` is the same server, always with Chat Completions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.dialects import RESPONSES, find_dialect, find_messages_dialect
from clew_activities.providers.loading import read_headers, read_key, read_url
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.responses import Responses

_OFFICIAL_URL = "https://api.openai.com/v1"
_VARIABLE = re.compile(r"CLEW_PROVIDER_([A-Z0-9_]+)_(BASE_URL|API_KEY|DIALECT|HEADERS)")


def make_providers(environ: Mapping[str, str]) -> Iterable[OpenAI | Responses | Anthropic]:
    """Make `openai` and `openai-chat`, if they are configured, and one for each server that a variable names.

    Raises:
        ValueError: A variable's value cannot be used.
    """
    key, url = read_key(environ, "OPENAI_API_KEY"), read_url(environ, "OPENAI_BASE_URL")
    configured = (name for name, value in environ.items() if value.strip())
    prefixes = sorted({match[1] for name in configured if (match := _VARIABLE.fullmatch(name))})
    if key or url:
        yield _make_server("openai", url or _OFFICIAL_URL, key, environ)
        yield _make_chat_server(url or _OFFICIAL_URL, key, environ)
    for prefix in prefixes:
        name, variable = prefix.lower(), f"CLEW_PROVIDER_{prefix}"
        url = read_url(environ, f"{variable}_BASE_URL")
        if name == "google":
            if not any(environ.get(f"{variable}_{each}", "").strip() for each in ("BASE_URL", "API_KEY", "DIALECT")):
                keys = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_ACCESS_TOKEN", "GOOGLE_BASE_URL")
                if any(environ.get(each, "").strip() for each in keys):
                    continue
                raise ValueError(f"{variable}_HEADERS has no effect: set GEMINI_API_KEY or GOOGLE_BASE_URL too")
            raise ValueError(
                f"{variable}_BASE_URL: google is Gemini's own API, which is configured with GEMINI_API_KEY and "
                "GOOGLE_BASE_URL; give an OpenAI-compatible server another name, such as gemini"
            )
        if name in ("openai", "anthropic"):
            if url or read_key(environ, f"{variable}_API_KEY"):
                raise ValueError(
                    f"{variable}_BASE_URL: {name} is configured with {prefix}_BASE_URL and {prefix}_API_KEY"
                )
            if any(environ.get(f"{prefix}_{each}", "").strip() for each in ("API_KEY", "BASE_URL")):
                continue
            other = next(each for each in ("DIALECT", "HEADERS") if environ.get(f"{variable}_{each}", "").strip())
            raise ValueError(f"{variable}_{other} has no effect: set {prefix}_API_KEY or {prefix}_BASE_URL too")
        if url is None:
            others = ("API_KEY", "DIALECT", "HEADERS")
            other = next(each for each in others if environ.get(f"{variable}_{each}", "").strip())
            raise ValueError(f"{variable}_{other} is set and {variable}_BASE_URL is not: set the URL too")
        yield _make_server(name, url, read_key(environ, f"{variable}_API_KEY"), environ)


def _make_server(name: str, url: str, key: str | None, environ: Mapping[str, str]) -> OpenAI | Responses | Anthropic:
    variable = f"CLEW_PROVIDER_{name.upper()}_DIALECT"
    configured = _read_dialect(environ, variable)
    custom = read_headers(environ, f"CLEW_PROVIDER_{name.upper()}_HEADERS")
    if (configured or "").startswith("anthropic") or (
        configured is None and urlsplit(url).path.rstrip("/").endswith("/anthropic")
    ):
        try:
            # Of `anthropic` alone the server's host or name says more.
            given = None if configured == "anthropic" else configured
            dialect = find_messages_dialect(name, url, given) if given else None
            return Anthropic(name, url, api_key=key, custom=custom, dialect=dialect)
        except ValueError as error:
            raise ValueError(f"{variable}: {error}") from None
    if configured == RESPONSES.name or (name == "openai" and configured is None and _is_official(url)):
        return Responses(name, url, api_key=key, custom=custom)
    try:
        return OpenAI(name, url, find_dialect(name, url, configured), api_key=key, custom=custom)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def _make_chat_server(url: str, key: str | None, environ: Mapping[str, str]) -> OpenAI:
    configured = _read_dialect(environ, "CLEW_PROVIDER_OPENAI_DIALECT")
    dialect = find_dialect("openai", url, None if configured == RESPONSES.name else configured)
    custom = read_headers(environ, "CLEW_PROVIDER_OPENAI_HEADERS")
    return OpenAI("openai-chat", url, dialect, api_key=key, custom=custom)


def _read_dialect(environ: Mapping[str, str], variable: str) -> str | None:
    return environ.get(variable, "").strip().lower() or None


def _is_official(url: str) -> bool:
    return f".{urlsplit(url).hostname or ''}".endswith(".openai.com")
