"""What a report says about a session, as values. The page is made of them, and `clew report --json` prints them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew_workflows.contract.content import MediaKind
from clew_workflows.contract.outcomes import Output, Usage

SegmentKind = Literal["tools", "system", "summary", "snapshot", "user", "assistant", "tool_calls", "messages"]
SegmentState = Literal["shown", "cleared", "truncated", "summarized", "replaced", "dropped", "excluded"]
FailureKind = Literal["request", "tool_call", "error"]
Relation = Literal["forked_from", "forked_to", "subagent"]


class Text(Output):
    """A text of the conversation, as far as the report has it.

    Attributes:
        content: The text, or its beginning.
        left_out: The number of characters that the report leaves out.
    """

    content: str
    left_out: int = 0


class Media(Output):
    """An image, a recording or a file of the conversation. Its bytes are in the archive.

    Attributes:
        kind: The kind of the part.
        description: The marker that names it in texts; without a name, if the report has no texts.
        digest: The SHA-256 of the bytes; absent: it is an address, or the report has no texts.
        media_type: The type of the bytes.
        bytes: Their number.
        width: Pixels of an image from left to right.
        height: Pixels of an image from top to bottom.
        pages: Pages of a document.
        seconds: Length of a recording.
    """

    kind: MediaKind
    description: Text
    digest: str | None = None
    media_type: str | None = None
    bytes: int | None = None
    width: int | None = None
    height: int | None = None
    pages: int | None = None
    seconds: float | None = None


class Piece(Output):
    """A part of a content: a text, or an image, a recording or a file.

    Attributes:
        text: The text.
        media: The image, the recording or the file.
    """

    text: Text | None = None
    media: Media | None = None


class Segment(Output):
    """Consecutive messages that one model call had in its window, or that its window left out.

    Attributes:
        kind: What the messages are; `messages`: several kinds.
        state: `shown`: as they are; `cleared`: a marker replaces tool results; `truncated`: tool results are shown in
            part. The others are left out: `summarized` or `replaced` by the summary or the snapshot of the window,
            `dropped` for lack of room, `excluded` by the policy's kinds of messages.
        first_seq: The first entry; absent: it has no entry of its own.
        last_seq: The last entry.
        messages: The number of messages.
        tokens: Their tokens as the window shows them; of left-out messages, as the thread counts them.
        pinned: Whether they are pinned.
        results: The number of tool results that are cleared or truncated.
        media: The number of images, recordings and files in the window.
        cleared_media: The number of those that markers replace.
    """

    kind: SegmentKind
    state: SegmentState
    first_seq: int | None = None
    last_seq: int | None = None
    messages: int = 1
    tokens: int = 0
    pinned: bool = False
    results: int = 0
    media: int = 0
    cleared_media: int = 0


class CallWindow(Output):
    """What one model call had in its window, and what the window left out.

    Attributes:
        segments: The window, in the order of the context.
        left_out: The lane's messages that the window left out, oldest first.
        budget: The most tokens that the context could have.
        tokens: The tokens of the context, counted under the session's encoding.
        matches_record: Whether the context that was rebuilt for this report has the digest that was recorded when the
            model was called.
    """

    segments: tuple[Segment, ...]
    left_out: tuple[Segment, ...]
    budget: int
    tokens: int
    matches_record: bool


class Call(Output):
    """A model call that returned a reply, or wrote a summary.

    Attributes:
        seq: The entry of the reply.
        at: When the reply was committed.
        call_id: The call; of a summary, its id.
        lane: The lane.
        model: The model, as `provider:model`.
        is_summary: Whether it wrote a summary.
        usage: The tokens and the cost that the provider reported.
        seconds: The seconds from the newest entry that the call could read to its reply, retries included; absent
            where they are not known.
        attempt: The number of the attempt that returned the reply.
        stop_reason: Why the reply ended.
        provider_tools: The tools that the provider might run itself.
        request_digest: The SHA-256 of the body that the provider received; of a summary in pieces, of the last one.
        encoder: The encoder of that body and its version.
        dialect: The dialect of the encoder, where it has several.
        window: What the call had in its window; the newest calls of the entries that the report shows have it.
        problem: Why the window could not be rebuilt.
    """

    seq: int
    at: str
    call_id: str
    lane: str
    model: str
    is_summary: bool = False
    usage: Usage = Usage()
    seconds: float | None = None
    attempt: int = 1
    stop_reason: str | None = None
    provider_tools: tuple[str, ...] = ()
    request_digest: str | None = None
    encoder: str | None = None
    dialect: str | None = None
    window: CallWindow | None = None
    problem: str | None = None


class ToolUse(Output):
    """A tool call of a reply, with its result.

    Attributes:
        tool_call_id: The id of the tool call.
        name: The tool.
        arguments: The arguments, as JSON.
        decision: What a person decided about the call: `approved` or `denied`.
        reason: The reason that the person gave.
        by: Who decided, or submitted the result.
        edited_arguments: The arguments with which a person replaced the model's, as JSON.
        result: The result; absent: there is none yet. A marker stands for each image, recording and file in it.
        result_parts: The parts of the result, if it is no text alone.
        result_seq: The entry of the result.
        stored_bytes: The size of the full result in bytes, if the thread has a part of it.
        seconds: The seconds from the reply to the result, waiting for a person included.
        is_error: Whether the result describes a failure.
        in_doubt: Whether it is unknown if the tool has run.
        late: Whether the result arrived after the end of its run.
        subagent: The session of the subagent that was called.
    """

    tool_call_id: str
    name: str
    arguments: Text
    decision: str | None = None
    reason: Text | None = None
    by: str | None = None
    edited_arguments: Text | None = None
    result: Text | None = None
    result_parts: tuple[Piece, ...] = ()
    result_seq: int | None = None
    stored_bytes: int | None = None
    seconds: float | None = None
    is_error: bool = False
    in_doubt: bool = False
    late: bool = False
    subagent: str | None = None


class Page(Output):
    """A page of the web that a provider's tool has found or read, or that a reply names.

    Attributes:
        url: Its address.
        title: Its title.
        quotes: The words of the page that the reply is founded on.
    """

    url: Text
    title: Text | None = None
    quotes: tuple[Text, ...] = ()


class ProviderUse(Output):
    """A call of a tool that the provider ran itself.

    Attributes:
        name: The tool.
        input: The query, the address or the code.
        output: What it returned, if that is a text.
        error: Why it failed.
        pages: The pages that it has found or read.
    """

    name: str
    input: Text | None = None
    output: Text | None = None
    error: Text | None = None
    pages: tuple[Page, ...] = ()


class MessageItem(Output):
    """A message of the conversation.

    Attributes:
        type: Names the type of item.
        seq: The entry.
        at: When it was committed.
        lane: The lane.
        role: The speaker.
        text: The text, in which a marker stands for each image, recording and file.
        parts: The parts, if it is no text alone.
        tokens: The tokens of the entry.
        request_id: The request.
        source: The sender of an input.
        thinking: The model's reasoning.
        tools: The tool calls of a reply.
        provider_calls: The calls of tools that the provider ran itself.
        sources: The pages that a reply names, each once.
        result_of: The tool call that a result answers, if the report does not show the call.
        interrupted: Whether it is the part of a reply that was read before the call was cancelled or failed.
        call: The model call that returned the reply.
    """

    type: Literal["message"] = "message"
    seq: int
    at: str
    lane: str
    role: Literal["user", "assistant", "tool"]
    text: Text
    parts: tuple[Piece, ...] = ()
    tokens: int
    request_id: str | None = None
    source: str | None = None
    thinking: Text | None = None
    tools: tuple[ToolUse, ...] = ()
    provider_calls: tuple[ProviderUse, ...] = ()
    sources: tuple[Page, ...] = ()
    result_of: str | None = None
    interrupted: bool = False
    call: Call | None = None


class EventItem(Output):
    """An entry that is no message: a configuration, an outcome, an operation, an error.

    Attributes:
        type: Names the type of item.
        seq: The entry.
        at: When it was committed.
        kind: What happened, in one word.
        lane: The lane that it concerns.
        title: What happened, in one line.
        text: More about it.
        parts: The images, recordings and files that it names.
        is_error: Whether it is a failure.
    """

    type: Literal["event"] = "event"
    seq: int
    at: str
    kind: str
    title: Text
    lane: str | None = None
    text: Text | None = None
    parts: tuple[Piece, ...] = ()
    is_error: bool = False


Item = Annotated[MessageItem | EventItem, Field(discriminator="type")]


class Failure(Output):
    """Something that failed.

    Attributes:
        seq: The entry that says so: an outcome, a tool result or an error.
        at: When it was committed.
        kind: `request`: a request failed; `tool_call`: a tool call did, and the model read the result; `error`: a
            model call or an operation did, and no request failed of it.
        title: The type of the error, or the tool.
        text: The reason, or its beginning.
        in_doubt: Whether it is unknown if the tool has run.
    """

    seq: int
    at: str
    kind: FailureKind
    title: str
    text: Text | None = None
    in_doubt: bool = False


class Run(Output):
    """A run: the model calls and the tools between a message and its outcome.

    Attributes:
        run_id: The run.
        lane: The lane.
        first_seq: Its first entry.
        last_seq: Its last entry.
        at: When its first entry was committed.
        seconds: The seconds between its first and its last entry.
        status: The status of its request; absent: it had not ended.
    """

    run_id: str
    lane: str
    first_seq: int
    last_seq: int
    at: str
    seconds: float
    status: str | None = None


class ActiveLane(Output):
    """A stretch of the thread in which a lane was the active one.

    Attributes:
        lane: The lane.
        first_seq: The entry from which on it was active.
        last_seq: The last entry of the stretch.
    """

    lane: str
    first_seq: int
    last_seq: int


class Timeline(Output):
    """Lanes and operations over the thread.

    Attributes:
        lanes: The lanes, in the order of their first entries.
        active: The stretches of the active lane.
        runs: The runs, in order.
        operations: The entries that changed a lane, the configuration or the session, and the errors.
    """

    lanes: tuple[str, ...]
    active: tuple[ActiveLane, ...]
    runs: tuple[Run, ...]
    operations: tuple[EventItem, ...]


class Relative(Output):
    """Another session that this one has come from, or has started.

    Attributes:
        session_id: The other session.
        relation: `forked_from`: this session is its fork; `forked_to`: it is a fork of this session; `subagent`: this
            session has called it.
        seq: The entry that names it.
        at: When that entry was committed.
        fork_seq: The last entry that both have.
        agent: The agent of a subagent.
        status: What is known of a subagent's task: `completed`, `failed` or `in doubt`.
        usage: The usage of a subagent and its own subagents, as far as it was reported.
    """

    session_id: str
    relation: Relation
    seq: int
    at: str
    fork_seq: int | None = None
    agent: str | None = None
    status: str | None = None
    usage: Usage | None = None


class Overview(Output):
    """What the model calls of a session saw, and when.

    Attributes:
        entries: The number of entries of the session.
        first_at: When the first entry was committed; absent without entries.
        last_at: When the last entry was committed.
        calls: The model calls, in order.
        timeline: Lanes and operations.
    """

    entries: int
    first_at: str | None
    last_at: str | None
    calls: tuple[Call, ...]
    timeline: Timeline


class Report(Overview):
    """A session, from its thread alone; `calls` are all its model calls.

    Attributes:
        session_id: The session.
        made_at: When the report was made: ISO 8601 in UTC.
        title: The session's title.
        status: `idle`, `working`, `failed`, `hibernated` or `closed`, as the last entry says.
        agent: The session's agent.
        model: The model in force at the last entry.
        metadata: The session's metadata.
        has_texts: Whether the report has the texts of the conversation.
        first_shown: The first entry whose content the report shows.
        last_shown: The last one; before `first_shown`, if it shows none.
        requests: The number of requests that have ended, by their status.
        tool_calls: The number of tool calls.
        usage: The usage of all model calls.
        unpriced_calls: The number of model calls whose cost is not known.
        subagent_usage: The usage of all subagents that have reported theirs.
        system_prompt: The system prompt in force at the last entry.
        items: The conversation and what happened between its messages.
        failures: What failed in the whole session, in order.
        relatives: Forks and subagents.
    """

    session_id: str
    made_at: str
    title: Text
    status: str
    agent: str | None
    model: str | None
    metadata: dict[str, Text]
    has_texts: bool
    first_shown: int
    last_shown: int
    requests: dict[str, int]
    tool_calls: int
    usage: Usage
    unpriced_calls: int
    subagent_usage: Usage | None
    system_prompt: Text | None
    items: tuple[Item, ...]
    failures: tuple[Failure, ...]
    relatives: tuple[Relative, ...]
