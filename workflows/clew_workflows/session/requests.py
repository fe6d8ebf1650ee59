"""Requests: messages whose settings are resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew_workflows.contract import ContextPolicy, MessageInput, RunSettings
from clew_workflows.contract.config import ExternalToolSpec, measure_specs
from clew_workflows.contract.content import list_media
from clew_workflows.contract.errors import InvalidInput, TooLarge, UnknownTool
from clew_workflows.contract.limits import MAX_TOOLS_BYTES
from clew_workflows.contract.names import BUILT_IN_TOOLS
from clew_workflows.contract.outcomes import RequestOutcome, Usage
from clew_workflows.contract.payloads import RunPayload
from clew_workflows.protocol import ModelProfile
from clew_workflows.session.state import FollowingSettings, Input, Moment, Request, Run, Settings, State
from clew_workflows.thread.context.projection import find_projector
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

# Profiles of models, which workers answer.
#
# A session uses the first profile of a model that it gets, and of later ones only the prices. A profile reaches it as
# the answer of an activity, never from the code of the workflow, because the code may change before a replay.


MAX_PROFILES = 16
"""Profiles that a session keeps: those of its configuration's model and of the newest others."""


def find_agent_policy(settings: Settings) -> ContextPolicy:
    """Find the configuration's policy: its own, or else the one that a worker has chosen for its model.

    Until a worker has described the model, it is the policy in force.
    """
    if settings.config.context_policy:
        return settings.config.context_policy
    profile = settings.profiles.get(settings.model)
    return profile.policy if profile else settings.policy


def adopt_encoding(settings: Settings, profile: ModelProfile) -> Settings:
    """Use a worker's encoding, unless the configuration has one.

    The encoding is chosen once, before any entry is committed, because all entries are counted under one.
    """
    if settings.has_encoding:
        return settings
    return replace(settings, own=settings.own.model_copy(update={"encoding": profile.encoding}))


def remember_profile(settings: Settings, profile: ModelProfile) -> Settings:
    """Remember a profile. Of a model that is known already only the prices change."""
    if known := settings.profiles.get(profile.model):
        profile = known.model_copy(update={"prices": profile.prices})
    profiles = {name: other for name, other in settings.profiles.items() if name != profile.model}
    if len(profiles) >= MAX_PROFILES:
        del profiles[next(name for name in profiles if name != settings.model)]
    return replace(settings, profiles={**profiles, profile.model: profile})


# Outcomes of requests, read from the thread's `run` entries; the state holds those of archived entries.


MAX_OUTCOMES = 1000
"""Outcomes that a session remembers when their entries are in the archive."""
MAX_ERROR_CHARACTERS = 200
"""Characters of an error's message in a remembered outcome; the thread holds all of it."""


def find_outcome(state: State, thread: Thread, request_id: str) -> RequestOutcome | None:
    """Find the outcome of a request; None if it has none yet, or is not known."""
    ended = thread.find_outcome(request_id)
    return _read_outcome(request_id, ended) if ended else state.memory.outcomes.find(request_id)


def is_known_request(state: State, thread: Thread, request_id: str) -> bool:
    """Whether a request with this id has been accepted."""
    return request_id in state.unfinished or has_ended(state, thread, request_id)


def has_ended(state: State, thread: Thread, request_id: str) -> bool:
    """Whether a request has an outcome."""
    return request_id in thread.outcomes or request_id in state.memory.outcomes


def make_running_outcome(state: State, thread: Thread, request_id: str) -> RequestOutcome:
    """Make the answer for a request that has no outcome yet."""
    run = state.run
    if run and request_id not in (run.request.request_id, *run.joined):
        run = None
    return RequestOutcome(
        request_id=request_id,
        run_id=run.run_id if run else None,
        status="running",
        last_seq=thread.last_seq,
        iterations=run.iteration if run else 0,
        fallback=run.fallback if run else None,
        usage=_find_usage(run, request_id),
        subagent_usage=run.spent.subagents if run and run.spent.subagents != Usage() else None,
        unread=(run.unread or None) if run else None,
    )


def _find_usage(run: Run | None, request_id: str) -> Usage:
    if run is None:
        return Usage()
    return run.spent.own if request_id == run.request.request_id else Usage(shared_with=run.request.request_id)


def list_newest(state: State, thread: Thread) -> list[RequestOutcome]:
    """List the newest outcomes, oldest first, to be carried to the next workflow run."""
    remembered = {outcome.request_id: outcome for outcome in state.memory.outcomes.unpack()}
    ended = {name: _shorten_error(_read_outcome(name, entry)) for name, entry in thread.outcomes.items()}
    return sorted({**remembered, **ended}.values(), key=lambda outcome: outcome.last_seq)[-MAX_OUTCOMES:]


def _shorten_error(outcome: RequestOutcome) -> RequestOutcome:
    if outcome.error is None or len(outcome.error.message) <= MAX_ERROR_CHARACTERS:
        return outcome
    error = outcome.error.model_copy(update={"message": outcome.error.message[:MAX_ERROR_CHARACTERS]})
    return outcome.model_copy(update={"error": error})


def _read_outcome(request_id: str, ended: Entry) -> RequestOutcome:
    payload = ended.read(RunPayload)
    return RequestOutcome(
        request_id=request_id,
        run_id=ended.refs["run_id"],
        status=payload.status,
        termination_reason=payload.termination_reason,
        reason=payload.reason,
        answer_seq=payload.answer_seq,
        last_seq=ended.seq,
        iterations=payload.iterations,
        fallback=payload.fallback,
        usage=payload.usage,
        subagent_usage=payload.subagent_usage,
        error=payload.error,
        unread=payload.unread,
    )


TOOL_CHOICES = ("auto", "none", "required")
"""The values of `tool_choice` that name no tool."""
DEFAULT_OUTPUT_TOKENS = 4096
"""Most tokens of a reply under a policy that reserves none: some providers require a number."""


def make_request(
    state: State, message: MessageInput, request_id: str, failed_models: tuple[str, ...] = ()
) -> Request:
    """Resolve a message's settings over the session's. Its model is the first one that has not failed.

    Another model than the session's gets the policy that a worker has chosen for that model, unless the session's
    configuration has a policy. Until a worker has described the model, before the run's first call, the session's
    policy is used unchecked.

    Raises:
        InvalidInput: The policy names an unknown projector, its fields contradict each other, `tool_choice` names no
            tool of the request, or an external tool has the name of a tool of the workers.
        InvalidTokenBudget: The policy leaves no budget.
        TooLarge: The schemas of all tools have over 256 KiB together.
        UnknownTool: `tools` names a tool that the session does not have.
    """
    settings, policy = state.settings, message.context_policy
    config = settings.config
    fallbacks = config.fallbacks if message.fallbacks is None else message.fallbacks
    first = message.model or settings.model
    remaining = [model for model in dict.fromkeys((first, *fallbacks)) if model not in failed_models]
    model, *remaining = remaining or [first]
    own = settings.profiles.get(model)
    if own and model != settings.model and config.context_policy is None:
        policy = own.policy.overlay(policy)
    in_force = settings.policy.overlay(policy)
    if own or model == settings.model or config.context_policy is not None:
        in_force.ensure_usable()
    find_projector(in_force.projector)
    options = config.model_options.overlay(message.model_options)
    if message.external_tools is not None:
        check_external_tools(settings, message.external_tools)
    offered = None if settings.tools is None else settings.list_tools(message.external_tools)
    names = None if offered is None else tuple(tool.spec["name"] for tool in offered)
    tools = None if message.tools is None else _select_tools(names, message.tools)
    if options.tool_choice not in (None, *TOOL_CHOICES):
        _check_tool_choice(options.tool_choice, names if tools is None else tools, is_known=names is not None)
    longest = config.model_options.max_output_tokens or in_force.reserve_output_tokens or DEFAULT_OUTPUT_TOKENS
    wanted = options.max_output_tokens or longest
    longest = min(wanted, longest) if message.shortens_only else wanted
    options = options.model_copy(update={"max_output_tokens": longest})
    timeout_seconds = message.timeout_seconds or config.request_timeout_seconds
    task = state.assignment.task if state.assignment else None
    if task and task.request_id == request_id:
        # A subagent has at most the time that its parent has left.
        timeout_seconds = min(timeout_seconds, task.timeout_seconds)
    return Request(
        request_id,
        message.content,
        state.context_ref,
        model,
        options,
        in_force,
        policy,
        message.max_iterations or config.max_iterations,
        timeout_seconds,
        message.metadata,
        message.output_schema,
        message,
        fallbacks=tuple(remaining),
        tools=tools,
        provider_tools=tuple(dict.fromkeys(config.provider_tools)),
        external_tools=message.external_tools,
    )


def _select_tools(known: tuple[str, ...] | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Select a request's tools, in the order of the session's.

    Until a worker has said which tools the session has, the names are taken unchecked.

    Raises:
        UnknownTool: The session has no tool of a name.
    """
    if known is None:
        return names
    if unknown := [name for name in names if name not in known]:
        raise UnknownTool(
            f"tools: {', '.join(map(repr, unknown))[:1000]} are no tools of the session: its tools are "
            f"{', '.join(known)[:1000] or 'none'}"
        )
    return tuple(name for name in known if name in names or (names and name in BUILT_IN_TOOLS))


def _check_tool_choice(choice: str | None, names: tuple[str, ...] | None, *, is_known: bool) -> None:
    """Refuse a choice of a tool that the request does not have, once a worker has said which tools there are."""
    if is_known and names is not None and choice not in names:
        raise InvalidInput(
            f"model_options.tool_choice: {choice!r} is no tool of the request: one of "
            f"{', '.join((*TOOL_CHOICES, *names))[:1000]}"
        )


def check_external_tools(settings: Settings, external: Sequence[ExternalToolSpec]) -> None:
    """Check the tools that callers have defined against those of the workers, as far as a worker has resolved them.

    Raises:
        InvalidInput: A tool has the name of one of the workers' tools: the model could not tell which it calls.
        TooLarge: The schemas of all tools have over 256 KiB together.
    """
    if not external:
        return
    taken = {*settings.config.tools, *(tool.spec["name"] for tool in settings.tools or ())}
    for number, tool in enumerate(external):
        if tool.name in taken:
            raise InvalidInput(
                f"external_tools.{number}.name: the session has a tool {tool.name!r} from its workers: take another "
                "name"
            )
    size = measure_specs(tool.spec for tool in settings.list_tools(external))
    if size > MAX_TOOLS_BYTES:
        raise TooLarge(
            f"external_tools: the schemas of all tools of the session would have {size} bytes together, at most "
            f"{MAX_TOOLS_BYTES} are accepted"
        )


def make_follow_up(
    state: State, request_id: str, inputs: tuple[Input, ...], failed_models: tuple[str, ...] = ()
) -> Request:
    """Make the request of a run that answers inputs which an earlier run has not read."""
    made = make_request(state, MessageInput(content=""), request_id, failed_models)
    return replace(made, message=None, inputs=inputs)


def renew_request(state: State, request: Request, failed_models: tuple[str, ...] = ()) -> Request:
    """Resolve a request's settings again, under the lane and the configuration in force now.

    Raises:
        InvalidInput: Its policy contradicts the session's present one.
        InvalidTokenBudget: Its policy and the session's present one leave no budget.
    """
    if request.message is None:
        return make_follow_up(state, request.request_id, request.inputs, failed_models)
    return replace(make_request(state, request.message, request.request_id, failed_models), tokens=request.tokens)


def note_settings(state: State, settings: RunSettings | None, at: Moment) -> State:
    """Note the settings that came with a result or a decision, for the run's next model call.

    Raises:
        Refusal: They cannot be used. Those under another agent are checked when a worker has resolved it.
    """
    run = state.run
    if settings is None or run is None:
        return state
    if settings.agent in (None, state.settings.config.agent):
        renew_request(state, continue_request(run.request, settings))
    return replace(state, run=replace(run, following=FollowingSettings(settings, at.rev)))


def continue_request(request: Request, settings: RunSettings) -> Request:
    """Give a request whose run goes on other settings of its own. They are resolved when it is renewed."""
    message = request.message or MessageInput(content="")
    changed = {name: getattr(settings, name) for name in _CONTINUED}
    # What a follow-up run answers is in the thread.
    return replace(request, message=message.model_copy(update=changed), inputs=())


_CONTINUED = ("model", "model_options", "shortens_only", "context_policy", "output_schema", "external_tools")
"""The settings of a message that `RunSettings` take the place of."""


def has_media(request: Request) -> bool:
    """Whether a request's messages have images, recordings or files."""
    replies = [reply.content for reply in (request.message and request.message.replies) or ()]
    contents = [unread.content for unread in request.inputs] or [request.content, *replies]
    return any(map(list_media, contents))
