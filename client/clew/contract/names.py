"""Names on the wire: workflow types, the default task queue, and the forms of ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError, to_json

from clew.contract.sizes import MAX_METADATA_BYTES, MAX_METADATA_NAMES

WORKFLOW_TYPE = "AgentSession"
RESTORE_WORKFLOW = "RestoreSession"
READ_WORKFLOW = "ReadThread"
READ_CONTEXT_WORKFLOW = "ReadContext"
FORK_WORKFLOW = "ForkSession"
DELETE_WORKFLOW = "DeleteSession"
LIST_WORKFLOW = "ListSessions"
TASK_QUEUE = "clew"
READ_RESULT = "read_result"
"""The tool that every session with tools has: the model reads large tool results with it."""

SessionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,200}$")]
Id = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
PROVIDER_NAME = r"[a-z0-9_-]{1,64}"
"""The pattern of a provider's name."""
ModelName = Annotated[str, StringConstraints(pattern=rf"^{PROVIDER_NAME}:[^\s\x00-\x1f/][^\s\x00-\x1f]{{0,199}}$")]
"""`provider:model`. A session can name a provider, but no address of one."""
AgentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Seq = Annotated[int, Field(ge=0)]


def _check_size(metadata: dict[str, str]) -> dict[str, str]:
    size = len(to_json(metadata))
    if size > MAX_METADATA_BYTES:
        raise PydanticCustomError(
            "too_large",
            "it has {size} bytes of JSON, at most {limit} are taken",
            {"size": size, "limit": MAX_METADATA_BYTES},
        )
    return metadata


Metadata = Annotated[
    dict[Id, Annotated[str, StringConstraints(max_length=2000)]],
    Field(max_length=MAX_METADATA_NAMES),
    AfterValidator(_check_size),
]
"""Names and values of a caller's own; at most `MAX_METADATA_BYTES` of JSON together."""
OwnRefs = Annotated[dict[Id, Annotated[str, StringConstraints(max_length=200)]], Field(max_length=16)]
"""Refs of a caller's own, by name: ids of what a message belongs to in other systems."""
