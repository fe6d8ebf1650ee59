"""Reads the environment variables that configure providers. Errors name the variable and never repeat its value."""

from __future__ import annotations

import re
from collections.abc import Mapping

import httpx


def read_key(environ: Mapping[str, str], variable: str) -> str | None:
    """Read a key, without surrounding white space; None: the variable is not set or empty.

    Raises:
        ValueError: The value cannot be a header's value.
    """
    key = environ.get(variable, "").strip()
    if key and not re.fullmatch(r"[!-~]+", key):
        raise ValueError(f"{variable} holds white space or characters that no key has: set it again")
    return key or None


def read_url(environ: Mapping[str, str], variable: str) -> str | None:
    """Read a base URL, without a slash at its end; None: the variable is not set or empty.

    Raises:
        ValueError: The value is not valid as `Provider.base_url`.
    """
    url = environ.get(variable, "").strip()
    if problem := url and find_url_problem(url):
        raise ValueError(f"{variable} {problem}")
    return url.rstrip("/") or None


def find_url_problem(text: str) -> str | None:
    """Describe why a text cannot be a base URL, as the end of a sentence; None: it can."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return "is not a URL"
    if url.scheme not in ("http", "https") or not url.host:
        return "must be an http:// or https:// URL with a host"
    if url.userinfo:
        return "must not hold a user or a password: set the key in its own variable"
    if url.query or url.fragment:
        return "must not hold a query or a fragment: a path is added to it"
    return None
