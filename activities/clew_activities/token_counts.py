"""Counting tokens in activities, so that no workflow task has to: all sessions share a processor."""

from __future__ import annotations

from typing import TypeVar

from pydantic_core import to_json

from clew_activities.heartbeats import offload
from clew_workflows.contract.payloads import Payload
from clew_workflows.contract.tokens import load_encoding

P = TypeVar("P", bound=Payload)


async def count_tokens(payload: P, encoding: str) -> tuple[P, int]:
    """Count the tokens of an entry with this payload, as committing it would.

    The answer is the payload, which records the tokens of its parts, and the tokens of the entry.
    """
    return await offload(len(to_json(payload.as_dict())), payload.count, load_encoding(encoding))
