"""The head of a session's archive, its only mutable object."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clew_activities.archive.errors import ObjectDamaged
from clew_workflows.contract.lists import SessionSummary
from clew_workflows.contract.messages import canonicalize, compute_digest
from clew_workflows.values import Format

FORMAT = Format("archive head")


class Head(BaseModel):
    """The head of a session's archive.

    Attributes:
        version: The format.
        session_id: The session.
        family: The session that this one and its siblings were forked from, directly or not; itself if none.
        root: Digest of the root of the archived thread; None: nothing is archived.
        last_seq: Seq of the last archived entry; -1: nothing is archived.
        state: Digest of the session's state; None: there is none.
        status: `closed`: the session ended in good order and all of it is archived; `live`: it has not.
        run_id: Id of the workflow execution that wrote the head.
        summary: What lists show of the session; None: it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = FORMAT.version
    session_id: str
    family: str
    root: str | None = None
    last_seq: int = -1
    state: str | None = None
    status: Literal["live", "closed"] = "live"
    run_id: str | None = None
    summary: SessionSummary | None = None

    def encode(self) -> bytes:
        """Encode the head for the store, with a checksum."""
        fields = self.model_dump(mode="json")
        return canonicalize({**fields, "digest": compute_digest(fields)})

    @classmethod
    def decode(cls, data: bytes, session_id: str, name: str) -> Head:
        """Decode the stored head of a session.

        In every version the checksum is that of the other fields.

        Raises:
            NewerVersion: A newer version of Clew has written the head.
            ObjectDamaged: The bytes are not a head, or the head of another session.
        """
        try:
            fields = json.loads(data)
            if fields.pop("digest") != compute_digest(fields):
                raise ObjectDamaged(name, "its checksum does not match")
            fields = FORMAT.upgrade(fields, FORMAT.check(fields["version"], name))
            head = cls.model_validate({**fields, "version": FORMAT.version})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ObjectDamaged(name, f"it is not a head: {why}") from None
        # A file system that ignores case may return the head of another session.
        if head.session_id != session_id:
            raise ObjectDamaged(name, f"it is the head of {head.session_id!r}")
        return head
