"""A providers module: Gemini's own API once more, at another URL and under another name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clew_activities.providers.google.provider import Google
from clew_activities.providers.loading import read_key, read_url

URL, KEY = "SECOND_GOOGLE_BASE_URL", "SECOND_GOOGLE_API_KEY"


def make_providers(environ: Mapping[str, str]) -> Iterable[Google]:
    """Make the provider `second_google`, if it is configured."""
    if url := read_url(environ, URL):
        yield Google("second_google", url, api_key=read_key(environ, KEY))
