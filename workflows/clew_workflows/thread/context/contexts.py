"""Contexts built from a thread alone: policy, prompt and tool schemas are those that its entries put in force."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic_core import to_json

from clew_workflows.contract.limits import MAX_PAGE_BYTES
from clew_workflows.contract.messages import ToolSpec
from clew_workflows.contract.outputs import TranscriptMessage
from clew_workflows.contract.payloads import ConfigPayload, OperationPayload, Recipe, StoredSnapshot, UserMessage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, project
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

T = TypeVar("T")


def build_context(
    thread: Thread,
    *,
    context_ref: str | None = None,
    at_seq: int | None = None,
    policy: ContextPolicy | None = None,
    model: str | None = None,
    output_schema: dict[str, Any] | None = None,
    tools: Collection[str] | None = None,
    external_tools: Sequence[Mapping[str, Any]] | None = None,
    standalone: bool = False,
) -> Projection:
    """Build the context of a lane with the configuration in force at a seq.

    `context_ref`: the lane; None: the active one.
    `at_seq`: the newest entry to read; None: the newest of the thread.
    `policy`, `model`, `output_schema`, `tools`: those of a request; the policy overlays the session's, and the tools
    are the names of some of the session's.
    `external_tools`: the caller's tools of a request (`ExternalToolSpec`), instead of the session's.
    `standalone`: the context is for a session that does not have this thread.

    Raises:
        Archived: The thread does not retain enough of the lane.
        ContextOverflow: Tool schemas, system prompt or required blocks exceed the budget.
        InvalidInput: The policy is contradictory, or names a projector that is not registered.
        InvalidTokenBudget: The policy leaves no budget.
    """
    seq = thread.last_seq if at_seq is None else min(at_seq, thread.last_seq)
    config = thread.find_config(seq)
    lane_name = context_ref or thread.find_active_lane(seq)
    if config is None:
        return project(ProjectionInput(thread, policy or ContextPolicy(), context_ref=lane_name, at_seq=seq))
    settings = config.read(ConfigPayload)
    offered = settings.tools if external_tools is None else _replace_external(settings, external_tools)
    anchor = thread.find_anchor(lane_name, seq)
    system, system_tokens = _choose_system_prompt(thread.find_prompt(seq) or config, anchor, policy)
    return project(
        ProjectionInput(
            thread,
            settings.policy.overlay(policy),
            system=system,
            system_tokens=system_tokens,
            tools=offered if tools is None else [spec for spec in offered if spec["name"] in tools],
            # Recorded for all tools together.
            tools_tokens=settings.tokens.tools
            if settings.tokens and tools is None and external_tools is None
            else None,
            selected_tools=None if tools is None else tuple(tools),
            context_ref=lane_name,
            at_seq=seq,
            provider=(model or settings.model).partition(":")[0],
            model=settings.model,
            output_schema=output_schema,
            encoding=settings.encoding,
            standalone=standalone,
        )
    )


def _replace_external(settings: ConfigPayload, external: Sequence[Mapping[str, Any]]) -> list[ToolSpec]:
    """List the schemas of a configuration's tools with a request's external ones instead of the session's."""
    replaced = {tool["name"] for tool in settings.external_tools or ()}
    own = [spec for spec in settings.tools if spec["name"] not in replaced]
    return [
        *own,
        *(
            ToolSpec(name=tool["name"], description=tool.get("description", ""), parameters=tool["parameters"])
            for tool in external
        ),
    ]


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """What a request has set for its calls, and their recipes do not repeat.

    Attributes:
        output_schema: The JSON Schema that the answer must follow; None: any text.
        external_tools: The caller's tools (`ExternalToolSpec`); None: the session's.
    """

    output_schema: dict[str, Any] | None = None
    external_tools: Sequence[Mapping[str, Any]] | None = None


def read_own_settings(entry: Entry) -> OwnSettings:
    """Read what a request has set from the entry that has it: its message, or a result or decision within its run."""
    body = entry.body
    settings: Mapping[str, Any] = getattr(body, "settings", None) or {}
    schema = body.output_schema if isinstance(body, UserMessage) else settings.get("output_schema")
    return OwnSettings(schema, settings.get("external_tools"))


def rebuild_context(thread: Thread, recipe: Recipe, own: OwnSettings | None = None) -> Projection:
    """Build the context of an earlier model call again, from its recipe.

    `own`: what the request of the call has set, as `find_own_settings` reads it; None: nothing.

    Raises:
        Archived: The thread does not retain enough of the lane.
    """
    return build_context(
        thread,
        context_ref=recipe.context_ref,
        at_seq=recipe.basis_seq,
        policy=recipe.policy,
        model=recipe.model,
        output_schema=own.output_schema if own else None,
        tools=recipe.tools,
        external_tools=own.external_tools if own else None,
    )


def find_own_settings(thread: Thread, recipe: Recipe) -> OwnSettings:
    """Find what the request of a model call has set, and its recipe does not repeat.

    Raises:
        Archived: The entry that has it is only in the archive.
    """
    seq = recipe.settings_seq
    return OwnSettings() if seq is None else read_own_settings(thread[seq])


def take_page(context: Projection, first: int) -> dict[str, Any]:
    """Take one page of a context, from the message at index `first` on. The first page has the tool schemas.

    `next_page` and `at_seq` of the answer name the next page. `at_seq` makes it a page of the same context, although
    entries may have been committed since.
    """
    tool_spec = context.tool_spec if first == 0 else []
    room = MAX_PAGE_BYTES - len(to_json(tool_spec)) - (0 if first else len(to_json(context.output_schema)))
    messages = list(_take_within(context.messages[first:], room))
    answer = {"messages": messages, "tool_spec": tool_spec, "meta": context.meta.as_dict()}
    if context.output_schema is not None and first == 0:
        answer["output_schema"] = context.output_schema
    if first + len(messages) < len(context.messages):
        answer |= {"next_page": first + len(messages), "at_seq": context.meta.basis_last_seq}
    return answer


def build_window(thread: Thread, context_ref: str, token_budget: int) -> Projection:
    """Build a context of the newest messages of a lane that fit into a budget and one page.

    The policy in force chooses which kinds of entries it shows.
    """
    config = thread.find_config(thread.last_seq)
    policy = config.read(ConfigPayload).policy if config else ContextPolicy()
    while True:
        context = project(
            ProjectionInput(
                thread, make_window_policy(policy, token_budget), context_ref=context_ref, request_must_fit=False
            )
        )
        size = len(to_json({"messages": context.messages, "meta": context.meta.as_dict()}))
        if size <= MAX_PAGE_BYTES:
            return context
        # A smaller budget drops the oldest messages.
        token_budget = max(min(token_budget, context.meta.estimated_tokens) * MAX_PAGE_BYTES // (size + 1), 1)


def make_window_policy(policy: ContextPolicy, token_budget: int) -> ContextPolicy:
    """Make a policy whose whole budget is `token_budget`."""
    return policy.model_copy(update={"max_input_tokens": token_budget, "reserve_output_tokens": 0})


def find_lane_prompt(thread: Thread, context_ref: str) -> tuple[str | None, int]:
    """Find the system prompt that a lane's snapshot puts in force, and its tokens; None: the session's is in force.

    Raises:
        Archived: The thread does not retain the lane's snapshot.
    """
    config = thread.find_prompt(thread.last_seq)
    anchor = thread.find_anchor(context_ref, thread.last_seq)
    snapshot = _find_prompt_snapshot(anchor, config) if anchor and config else None
    return (snapshot.system_prompt, snapshot.system_prompt_tokens or 0) if snapshot else (None, 0)


# Transcripts: all messages of a lane, unabridged.


def iterate_transcript(
    thread: Thread,
    context_ref: str | None = None,
    *,
    from_seq: int = 0,
    limit: int | None = None,
    include_system: bool = False,
) -> Iterator[TranscriptMessage]:
    """Iterate over the messages of a lane that a thread holds, in order, each with its seq.

    `context_ref`: the lane; None: the active one.
    `limit`: the most messages, the newest ones; the system prompt is not counted.
    `include_system`: begin with the system prompt, if `from_seq` is 0.

    Raises:
        Archived: The thread does not retain the lane's snapshot, which may have a system prompt.
    """
    lane = context_ref or thread.find_active_lane(thread.last_seq)
    if include_system and from_seq == 0 and (system := find_system_message(thread, lane)):
        yield system
    entries: Iterable[Entry] = (
        entry
        for entry in thread.slice(from_seq, thread.last_seq)
        if entry.kind == "ai_message" and entry.lane == lane
    )
    if limit is not None:
        entries = deque(entries, maxlen=min(limit, len(thread)))
    for entry in entries:
        yield entry.transcript_message


def find_system_message(thread: Thread, context_ref: str) -> TranscriptMessage | None:
    """Find the system prompt that the contexts of a lane begin with, and the seq of its entry; None: there is none.

    Raises:
        Archived: The thread does not retain the lane's snapshot.
    """
    config = thread.find_config(thread.last_seq)
    if config is None:
        return None
    anchor = thread.find_anchor(context_ref, thread.last_seq)
    prompt, _ = _choose_system_prompt(thread.find_prompt(thread.last_seq) or config, anchor, None)
    is_own = anchor is not None and find_lane_prompt(thread, context_ref)[0] is not None
    source = anchor if anchor is not None and is_own else config
    return {"role": "system", "content": prompt, "seq": source.seq} if prompt else None


def _take_within(rows: Iterable[T], room: int) -> Iterable[T]:
    """Take rows up to `room` bytes of JSON, at least one."""
    for number, row in enumerate(rows):
        room -= len(to_json(row)) + 1
        if number and room < 0:
            return
        yield row


def _find_prompt_snapshot(anchor: Entry, config: Entry) -> StoredSnapshot | None:
    """Find the lane's snapshot if it has a system prompt that is newer than the session's."""
    if anchor.seq < config.seq:
        return None
    snapshot = anchor.read(OperationPayload).snapshot
    return snapshot if snapshot and snapshot.system_prompt is not None else None


def _choose_system_prompt(
    config: Entry, anchor: Entry | None, policy: ContextPolicy | None
) -> tuple[str | None, int | None]:
    """Choose the system prompt in force: the request's, else the newer of the lane's snapshot and the session's.

    Returns:
        The prompt, and its recorded tokens if the thread has them.
    """
    if policy and policy.system_prompt is not None:
        return policy.system_prompt, None
    if anchor and (snapshot := _find_prompt_snapshot(anchor, config)):
        return snapshot.system_prompt, snapshot.system_prompt_tokens
    settings = config.read(ConfigPayload)
    return settings.prompt, settings.tokens.system_prompt if settings.tokens else None


# Threads as they would be under another configuration.


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model is sent beside the messages, and what decides which messages it is sent.

    Attributes:
        model: The model, as `provider:name`.
        system_prompt: The system prompt.
        tools: The schemas of the tools.
        policy: The context policy, complete.
    """

    model: str
    system_prompt: str | None
    tools: Sequence[ToolSpec]
    policy: ContextPolicy


def reconfigure(thread: Thread, settings: ModelSettings) -> Thread:
    """Copy a complete thread, as if the settings had been in force from its beginning on.

    What a single request has set, and the system prompt of a snapshot, stay in force.
    """
    return Thread(_change(entry, settings) if entry.kind == "config" else entry for entry in thread)


def _change(entry: Entry, settings: ModelSettings) -> Entry:
    payload = replace(
        entry.read(ConfigPayload),
        model=settings.model,
        system_prompt=settings.system_prompt,
        tools=list(settings.tools),
        context_policy=settings.policy.model_dump(mode="json"),
        tokens=None,
    )
    return replace(entry, payload=payload.as_dict())
