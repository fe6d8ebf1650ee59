"""Summaries, which a model writes."""

from __future__ import annotations

from clew.outcomes import Usage
from clew_workflows.protocol._value import ReportedUsage, Value


class Summarize(Value):
    """Summarize a range of a lane, by reference: the activity reads the entries from the session or the archive.

    Attributes:
        summary_id: The summary.
        context_ref: The lane.
        model: The model that writes the summary, `provider:model`.
        encoding: The encoding that both limits are counted under.
        max_input_tokens: The model's window, for a worker that does not know it.
        max_output_tokens: The longest summary.
        learned_budget: The longest prompt that the model is known to take, in tokens of `encoding`; None: not known.
        token_ratio: The provider's token counts divided by ours; None where it counts no more than we do.
        compacts: The summary replaces the lane's context, as a snapshot.
        from_seq: The first entry; None until the range is determined.
        to_seq: The last entry; None until the range is determined.
        builds_on: The seq of the summary or the snapshot that stands for the entries before `from_seq`, if any.
        pinned: The seqs of pinned messages, which are not summarized.
        withdrawn: Pairs of seqs between which the user's messages were withdrawn, which are not summarized.
    """

    summary_id: str
    context_ref: str
    model: str
    encoding: str
    max_input_tokens: int
    max_output_tokens: int
    learned_budget: int | None = None
    token_ratio: float | None = None
    compacts: bool = False
    from_seq: int | None = None
    to_seq: int | None = None
    builds_on: int | None = None
    pinned: tuple[int, ...] = ()
    withdrawn: tuple[tuple[int, int], ...] = ()


class WrittenSummary(Value):
    """A summary as a model has written it.

    Attributes:
        content: The text.
        source_digest: The SHA-256 over the seqs and ids of the summarized entries.
        source_tokens: The tokens of the summarized entries.
        usage: The tokens and the cost of all model calls.
        tokens: The tokens of the summary's message. None: the session counts them.
    """

    content: str
    source_digest: str
    source_tokens: int
    usage: ReportedUsage = Usage()
    tokens: int | None = None


class Summarized(Value):
    """The result of `Summarize`.

    Attributes:
        effect: The effect, with its range.
        summary: The summary.
        system_prompt: The system prompt of the snapshot under the lane; None where there is none in force.
        system_prompt_tokens: The tokens of that prompt.
    """

    effect: Summarize
    summary: WrittenSummary
    system_prompt: str | None = None
    system_prompt_tokens: int = 0
