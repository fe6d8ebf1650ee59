"""A summary that is to be written, and what was written."""

from __future__ import annotations

from clew.outcomes import Usage
from clew_workflows.protocol._value import Value


class Summarize(Value):
    """Sum a lane up, by reference: the activity reads the entries from `from_seq` to `to_seq` where they are.

    What is before them is in the entry `builds_on`, a summary or a snapshot, where there is such a one. What is
    `pinned` stays as it is. A worker that does not know the model's window takes `max_input_tokens` for it. The
    summary has at most `max_output_tokens`; both are counted under `encoding`.
    """

    summary_id: str
    context_ref: str
    model: str
    encoding: str
    max_input_tokens: int
    max_output_tokens: int
    compacts: bool = False
    from_seq: int | None = None
    to_seq: int | None = None
    builds_on: int | None = None
    pinned: tuple[int, ...] = ()


class WrittenSummary(Value):
    """A summary, with a SHA-256 over the seqs and ids of the entries that it sums up, and their tokens."""

    content: str
    source_digest: str
    source_tokens: int
    usage: Usage = Usage()


class Summarized(Value):
    """The effect, with the range that it came to, and what was written.

    `system_prompt` is that of the snapshot under the lane, where it was in force.
    """

    effect: Summarize
    summary: WrittenSummary
    system_prompt: str | None = None
