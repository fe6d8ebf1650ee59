"""Heads: where a session's archive stands, its only object that changes."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clew.model.canonical import canonicalize, compute_digest
from clew_activities.archive.errors import ObjectDamaged


class Head(BaseModel):
    """Where a session's archive stands.

    `family` is the session that it and its siblings come from by forking. `root` names the archived thread, whose
    last entry is `last_seq` (-1: nothing is archived). `state` names what else the session carries. `run_id` is the
    workflow run that wrote it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    session_id: str
    family: str
    root: str | None = None
    last_seq: int = -1
    state: str | None = None
    status: Literal["live", "closed"] = "live"
    run_id: str | None = None

    def encode(self) -> bytes:
        """The head as it is stored, with a checksum."""
        fields = self.model_dump(mode="json")
        return canonicalize({**fields, "digest": compute_digest(fields)})

    @classmethod
    def decode(cls, data: bytes, session_id: str, name: str) -> Head:
        """The stored head of a session.

        Raises:
            ObjectDamaged: the bytes are no head, or not this session's; says which object.
        """
        try:
            fields = json.loads(data)
            if fields.pop("digest") != compute_digest(fields):
                raise ObjectDamaged(name, "its checksum does not match")
            head = cls.model_validate(fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ObjectDamaged(name, f"it is no head of version 1: {why}") from None
        # A file system that takes upper and lower case for the same gives one session another's head.
        if head.session_id != session_id:
            raise ObjectDamaged(name, f"it is the head of {head.session_id!r}")
        return head
