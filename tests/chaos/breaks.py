"""Mechanisms that are broken on purpose, to see that a round notices it: `python -m tests.chaos --break NAME`.

A break changes the process that calls it. Workers and the process of the round call the same one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from clew_activities.archive import Archive
from clew_audit import exports
from clew_workflows.session import commands, requests

BREAKS_VARIABLE = "CHAOS_BREAKS"
"""The environment variable with the names of a worker's breaks."""


def forget_fallbacks(stack: ExitStack) -> None:
    """No request has a fallback."""
    make = requests.make_request

    def make_alone(*arguments: Any, **named: Any) -> Any:
        return replace(make(*arguments, **named), fallbacks=())

    for module in (requests, commands):
        stack.enter_context(patch.object(module, "make_request", make_alone))


def import_no_blobs(stack: ExitStack) -> None:
    """An import leaves out images."""
    store = exports._store

    async def store_no_blobs(archive: Any, blobs: Any, family: str, piece: Any) -> None:
        await store(archive, blobs, family, replace(piece, blobs=[]))

    stack.enter_context(patch.object(exports, "_store", store_no_blobs))


def rekey_no_segments(stack: ExitStack) -> None:
    """A rotation of the keys passes over segments."""
    rekey = Archive.rekey

    async def rekey_others(archive: Archive, path: str) -> bool:
        return False if "/segments/" in path else await rekey(archive, path)

    stack.enter_context(patch.object(Archive, "rekey", rekey_others))


def delete_no_unneeded(stack: ExitStack) -> None:
    """The deletion of a fork leaves its objects."""

    async def find_nothing(*_arguments: Any) -> list[str]:
        return []

    stack.enter_context(patch.object(Archive, "_find_unneeded", find_nothing))


BREAKS: Mapping[str, Callable[[ExitStack], None]] = {
    "fallback": forget_fallbacks,
    "import": import_no_blobs,
    "rekey": rekey_no_segments,
    "deletion": delete_no_unneeded,
}
"""The breaks, by name."""


def break_mechanisms(names: Iterable[str]) -> ExitStack:
    """Break mechanisms of this process until the stack ends."""
    stack = ExitStack()
    for name in names:
        BREAKS[name](stack)
    return stack


def read_breaks() -> list[str]:
    """Read the names of the breaks of this process."""
    return [name for name in os.environ.get(BREAKS_VARIABLE, "").split(",") if name]
