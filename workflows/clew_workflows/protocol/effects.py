"""What the session asks of the world, and what the world answers: effects as data.

The decisions in `workflows` name an effect, an activity of the same name carries it out. Inputs are
references, never conversations, so that the history grows by what is new and not by what is old.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from clew.contract import ModelOptions
from clew.contract.policy import ContextPolicy
from clew.model.messages import ProviderData, ToolSpec
from clew.model.tokens import EncodingName
from clew.outcomes import Usage
from clew.thread.layers import Ground
from clew_workflows.protocol.packed import Packed


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Prepare(_Value):
    """Resolve a configuration against what the worker has: its providers and its registered tools.

    With `look`, the id of the workflow execution that asks, also whether there is an archive of the session: it is
    then to go on from there. `archived` says that the session has one, which its model may read from, `clears` that
    its policy clears tool results, which its model may read again.
    """

    model: str
    tools: tuple[str, ...]
    look: str | None = None
    archived: bool = False
    clears: bool = False


class Prepared(_Value):
    """Every tool's schema as the worker resolved it, in the order asked for, or what it does not know.

    `defaults` are absent where a worker of an earlier release has answered.
    `archive` is where the session's thread is kept. `state` names what a session goes on from that was archived
    whole, `mismatch` says why it cannot go on.
    """

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None
    defaults: Defaults | None = None
    archive: ArchiveRef | None = None
    state: str | None = None
    mismatch: str | None = None


class Defaults(_Value):
    """What a worker's catalog, of the `edition`, chooses for a model where the configuration leaves it open."""

    model: str
    policy: ContextPolicy
    encoding: EncodingName
    edition: int


class Thresholds(_Value):
    """When a run of the workflow gives way to the next one; beyond three times as much it takes no new message.

    Temporal ends a run at 51 200 events, 50 MB, 2 000 updates and 10 000 signals. A worker that takes a session over
    replays its run, at some 0.4 ms of CPU an event: that is what keeps a run short.
    """

    events: int = Field(default=4_000, ge=50, le=15_000)
    bytes: int = Field(default=4_000_000, ge=50_000, le=15_000_000)
    updates: int = Field(default=350, ge=5, le=600)
    signals: int = Field(default=2_500, ge=5, le=3_000)


class ArchiveRef(_Value):
    """Where a thread's older entries are: those up to `upto` hang on the index node `root` of the family.

    `execution` is the workflow execution that writes there, all its runs together.
    """

    execution: str
    family: str
    root: str | None = None
    upto: int = -1
    thresholds: Thresholds = Thresholds()


class Archiving(_Value):
    """Write to the archive all that the session has said, and what it needs to go on from there.

    `closed`: it goes on no more in this execution.
    """

    archive: ArchiveRef
    closed: bool = False


class Thaw(_Value):
    """Fetch what a session that was archived whole goes on from."""

    archive: ArchiveRef
    state: str


class Fork(_Value):
    """Make a new session of another one's thread up to and with an entry, and tell the other one of it.

    `at` and `entry_ids` are those of the two entries that say so, the new session's and the other one's.
    """

    session_id: str
    at_seq: int
    new_session_id: str
    metadata: dict[str, str] | None = None
    at: str
    entry_ids: tuple[str, str]


class Recall(_Value):
    """Fetch of a lane what contexts under some policies need and the session does not hold: what is before a seq.

    `ground` is what the lane stands upon, where the session knows: there may be newer operations than are in the
    archive, and older ones that an `expand` has brought back.
    """

    archive: ArchiveRef
    context_ref: str
    policies: tuple[ContextPolicy, ...]
    before: int
    ground: Ground | None = None


class Recalled(_Value):
    """What of a lane was fetched: the entries, and the gap that is left before them."""

    packed: Packed


class Thawed(Packed):
    """What a session goes on from, where its archive stands, and what has been added there since it was put away."""

    archive: ArchiveRef | None = None
    newer: tuple[dict[str, Any], ...] = ()


class Summarize(_Value):
    """Sum a lane up, by reference: the activity reads the entries from `from_seq` to `to_seq` where they are.

    What is before them is in the entry `builds_on`, a summary or a snapshot, where there is such a one. What is
    `pinned` stays as it is. The model is called with at most `max_input_tokens` at a time, and the summary has at
    most `max_output_tokens`; both are counted under `encoding`.
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


class Written(_Value):
    """A summary, with a SHA-256 over the seqs and ids of the entries that it sums up, and their tokens."""

    content: str
    source_digest: str
    source_tokens: int
    usage: Usage = Usage()


class Summarized(_Value):
    """What was asked, with the range that it came to, and what was written.

    `system_prompt` is that of the snapshot under the lane, where it was in force.
    """

    asked: Summarize
    written: Written
    system_prompt: str | None = None


class SignCheckpoint(_Value):
    """Sign what the session holds ready under a number, as a checkpoint that is good for so many seconds."""

    number: int
    expires_seconds: int


class DraftQuery(_Value):
    """Ask the session for what it holds ready to be signed under a number."""

    number: int


class Signed(_Value):
    """What a worker adds to a checkpoint. `iat` and `exp` are in seconds since 1970; `kid` names the key."""

    namespace: str
    fingerprint: str
    iat: int
    exp: int
    kid: str
    signature: str


class OpenCheckpoint(_Value):
    """Verify a checkpoint that a session of this id is to be made of."""

    token: str
    session_id: str


class OpenedCheckpoint(_Value):
    """The configuration that a session goes on with from a checkpoint, as `AgentSession` takes it."""

    config: dict[str, Any]


class ResolvedTool(_Value):
    """A tool's schema and how its calls are carried out.

    `timeout_seconds` bounds one attempt; `max_attempts` bounds the retries of an attempt that failed. A call of a
    tool that is not `idempotent` is never attempted twice.
    """

    spec: ToolSpec
    timeout_seconds: float
    max_attempts: int
    idempotent: bool = True
    requires_approval: bool = False


class CallModel(_Value):
    """One model call, by reference: the activity fetches its context from the session, pinned to `at_seq`.

    `context_policy` is the request's own, where it had one, with the budget that the model can take where that is
    less; `token_ratio` is what the provider's tokens are to ours, where it counts more. `options.max_output_tokens`
    is always set. `parent_call_id` is the call whose tool results this one reads. With `priced` it must not be made
    unless it is known what it costs.
    """

    request_id: str
    run_id: str
    call_id: str
    iteration: int
    context_ref: str
    at_seq: int
    model: str
    options: ModelOptions
    context_policy: ContextPolicy | None = None
    token_ratio: float | None = None
    priced: bool = False
    parent_call_id: str | None = None


class AskedTool(_Value):
    """A tool call as the provider sent it. `malformed` holds the raw text where it was not a JSON object."""

    name: str
    arguments: dict[str, Any] = {}
    malformed: str | None = None


class ModelReply(_Value):
    """A model's whole answer, provider-neutral."""

    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[AskedTool, ...] = ()
    provider_data: ProviderData | None = None
    stop_reason: Literal["stop", "length", "tool_calls"] = "stop"
    usage: Usage = Usage()


class ModelAnswered(_Value):
    """The outcome of `CallModel`: the reply and the recipe of what the model was shown for it.

    `schema_problem` says how an answer differs from the `output_schema` that its request asked for.
    """

    reply: ModelReply
    digest: str
    policy_hash: str
    input_tokens: int
    attempt: int
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    cut_tool_results: dict[str, tuple[int, int]] | None = None
    schema_problem: str | None = None
    needs_summary: bool = False


STORING_SECONDS = 20.0
"""For how long a tool's activity tries to store a large result, once the tool has done its work."""


class RunTool(_Value):
    """One tool call. `arguments` are as the model gave them; the activity validates them.

    A result over `max_result_bytes` is stored whole in the archive of the `family`, where there is one.
    """

    request_id: str
    run_id: str
    call_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    max_result_bytes: int
    family: str | None = None


def idempotency_key(session_id: str, tool_call_id: str) -> str:
    """The same for every attempt of a tool call, and for no other call anywhere."""
    return f"{session_id}/{tool_call_id}"


class RunTools(_Value):
    """Tool calls that run side by side, each with what is known of its tool."""

    calls: tuple[tuple[RunTool, ResolvedTool], ...]


Effect = Prepare | CallModel | RunTools | Summarize


class StoredResult(_Value):
    """A result that is stored whole in the archive: its name there, its size and how much was shown, in bytes."""

    digest: str
    bytes: int
    shown: int


class ToolAnswered(_Value):
    """What a tool said, as the model will read it.

    `is_error` marks a result that tells of a failure, `in_doubt` one that cannot say whether the tool has run. Where
    there is more of it than fits, `result` says where all of it is.
    """

    content: str
    result: StoredResult | None = None
    is_error: bool = False
    in_doubt: bool = False


class Failure(_Value):
    """Why something could not be done, in a form that a caller can act on."""

    type: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}


class ToolReturned(_Value):
    """What came of one tool call: what the tool said, or why nothing came. Neither: the call was cancelled."""

    tool_call_id: str
    answer: ToolAnswered | None = None
    failure: Failure | None = None


Event = Prepared | ModelAnswered | ToolReturned | Summarized | Failure

Prepared.model_rebuild()
Recalled.model_rebuild()
