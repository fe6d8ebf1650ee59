"""What `summary` entries hold."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from clew.contract.payloads.base import EntryKind, Payload, Usage, stored
from clew.model.messages import Message
from clew.model.tokens import Encoding


@stored
class SummaryPayload(Payload):
    """A summary of a lane up to a seq.

    Attributes:
        context_ref: The lane.
        content: The summary's text.
        format: The format of the text: `text`.
        from_seq: The first entry that the model read; the summary before covers earlier ones.
        to_seq: The last entry that the summary covers; it covers everything before, too.
        model: The model that wrote it, as `provider:model`.
        source_digest: SHA-256 over the seqs and ids of the entries that the model read.
        source_tokens: The tokens of those entries.
        pinned: The seqs of the entries that were pinned then; contexts still have them verbatim.
        usage: The usage of the model call that wrote the summary.
    """

    entry_kind: ClassVar[EntryKind] = "summary"

    context_ref: str
    content: str
    format: str
    from_seq: int
    to_seq: int
    model: str
    source_digest: str | None = None
    source_tokens: int | None = None
    pinned: tuple[int, ...] | None = None
    usage: Usage | None = None

    def make_message(self, role: Literal["system", "user"]) -> Message:
        """Make the message of the summary in a context."""
        return {"role": role, "content": f"Summary of earlier conversation:\n{self.content}"}

    @property
    def provenance(self) -> dict[str, Any]:
        """The fields that describe how the summary was made, for a compaction's `meta`."""
        value = self.as_dict()
        return {name: value[name] for name in value if name not in ("context_ref", "content", "format")}

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the summary's message."""
        return self, encoding.count_message(self.make_message("system"))
