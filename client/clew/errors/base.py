"""The base of every error."""

from __future__ import annotations


class ClewError(Exception):
    """The base of every error that Clew raises. Its message says what to do."""
