"""The settings of the service."""

from __future__ import annotations

import pytest

from clew.errors import InvalidInput
from clew.serve import ServeSettings


def test_settings_of_the_environment() -> None:
    """A number of MCP sessions that is none is refused by its name."""
    environ = {"CLEW_SERVE_MCP_SESSIONS": "0", "CLEW_SERVE_CORS_ORIGINS": "https://a.example, https://b.example"}
    settings = ServeSettings.from_environ(environ)
    assert (settings.max_mcp_sessions, settings.cors_origins) == (0, ("https://a.example", "https://b.example"))
    assert ServeSettings.from_environ({}) == ServeSettings()
    for name, value in (("CLEW_SERVE_MCP_SESSIONS", "many"), ("CLEW_SERVE_CORS_ORIGINS", "*")):
        with pytest.raises(InvalidInput, match=name):
            ServeSettings.from_environ({name: value})
