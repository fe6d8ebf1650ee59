"""Errors of MCP servers."""

from __future__ import annotations


class McpUnavailable(Exception):
    """A server cannot be used at present."""


class UnknownMcpTool(Exception):
    """A name means no tool of the worker's servers. The message names it and says what to do."""
