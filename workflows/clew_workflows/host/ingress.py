"""The ingress: all inputs of a session are decoded here, into a typed command or a refusal, and nowhere else.

Handlers take raw payloads. With typed handlers the SDK would drop an input that it cannot decode without a trace, and
would fail the workflow task again and again at a wrong number of arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from clew_workflows.contract import (
    ApprovalInput,
    ConfigureInput,
    ContextOperation,
    ContextQuery,
    LateResultInput,
    MessageInput,
    Replace,
    RunSettings,
    SessionConfig,
    SessionStart,
    SteerInput,
    SubmitInput,
    ToolResultInput,
    WindowQuery,
)
from clew_workflows.contract.content import is_empty, strip_content
from clew_workflows.contract.errors import (
    ClewError,
    ContextOverflow,
    EmptyContent,
    InvalidInput,
    InvalidTokenBudget,
    NotEncrypted,
    Refusal,
    TooLarge,
    UnknownKey,
    UnsupportedStrategy,
    WorkerUnavailable,
)
from clew_workflows.contract.limits import MAX_MESSAGE_BYTES, MAX_SYSTEM_PROMPT_BYTES, MAX_TOOL_RESULT_BYTES
from clew_workflows.contract.messages import canonicalize, check_depth
from clew_workflows.contract.names import SESSION_ID
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.validation import translate_validation_error
from clew_workflows.encryption.codec import FOREIGN_FIELD, PLAIN_FIELD, SEAL_FIELD, UNDECODABLE
from clew_workflows.host.handlers import QUERIES, SIGNALS, UPDATES, Handler, Query
from clew_workflows.session import carried, tool_rounds
from clew_workflows.session.commands import Command
from clew_workflows.session.named_blobs import check_kinds, list_contents
from clew_workflows.temporal_faults.wrapped_converter import get_own_converter

# Inputs that cannot be decrypted, or that are not encrypted where they must be: each is refused.
#
# Workers may have different keys, so whether an input can be read is no fact of the history. A refused start or
# signal is recorded by a marker, so that every worker replays the refusal. A worker that lacks the key of an input
# which another worker has accepted fails the workflow task: the server repeats it until a worker has the key.


REFUSES_PLAIN = "refuses_plain"
"""The attribute of a worker's payload converter that is True where inputs must be encrypted."""

# The same text on every worker, since it becomes part of the thread.
_REFUSALS: tuple[Refusal, ...] = (
    UnknownKey("the worker cannot decrypt the input: it does not have its key, or the input was changed"),
    NotEncrypted("the input is not encrypted: the sender needs the keys of the workers (CLEW_ENCRYPTION_KEYS)"),
)


class QueryRefused(ApplicationError):
    """A refused query. The server hands its message to the caller and stores nothing of it."""


class KeyMissing(RuntimeError):
    """The worker cannot decrypt an input that the session has accepted: the workflow task fails and is repeated."""


def find_refusal(args: Sequence[RawValue]) -> Refusal | None:
    """Find why the input of an update or of a service is refused; None: it can be read. Replays must not ask.

    An input without an argument is one that is not encrypted.
    """
    undecodable, plain = _REFUSALS
    if _find_undecodable(args) is not None or any(FOREIGN_FIELD in arg.payload.metadata for arg in args):
        return undecodable
    is_bare = not args and _refuses_plain()
    return plain if is_bare or any(PLAIN_FIELD in arg.payload.metadata for arg in args) else None


def _refuses_plain() -> bool:
    return bool(getattr(get_own_converter(), REFUSES_PLAIN, False))


def find_seal(args: Sequence[RawValue]) -> str | None:
    """Find the id in the encrypted text of an input, by which a repetition is recognized; None: it has none."""
    seals = (arg.payload.metadata.get(SEAL_FIELD) for arg in args)
    return next((seal.decode() for seal in seals if seal), None)


def settle(args: Sequence[RawValue], name: str, *, waits_for_key: bool = False) -> Refusal | None:
    """Find why an input of the history is refused, a start or a signal; None: it is accepted. Replays agree.

    Args:
        args: The input.
        name: Names the input among those of this workflow run.
        waits_for_key: An input that the worker cannot decrypt is not refused but left to another worker: Clew has
            sent it.

    Raises:
        KeyMissing: The worker cannot decrypt an input that another worker has accepted.
    """
    if waits_for_key:
        require_key(args)
    current = None if workflow.unsafe.is_replaying() else find_refusal(args)
    for refusal in _REFUSALS:
        asks = refusal is current or workflow.unsafe.is_replaying()
        if asks and workflow.patched(f"{refusal.type}-{name}"):
            return refusal
    require_key(args)
    return None


def require_key(args: Sequence[RawValue]) -> None:
    """Check that an accepted input can be read.

    Raises:
        KeyMissing: The worker cannot decrypt it.
    """
    reason = _find_undecodable(args)
    if reason is not None:
        raise KeyMissing(f"the worker cannot decrypt an input of the session: {reason}")


def require_own(args: Sequence[RawValue]) -> None:
    """Check that the argument with which a session continues as new can be read, and is encrypted if it must be.

    Raises:
        KeyMissing: It is not. The session waits: no worker of Clew's has written this argument.
    """
    require_key(args)
    if not workflow.unsafe.is_replaying() and (refusal := find_refusal(args)):
        raise KeyMissing(f"the session cannot continue: {refusal}")


def _find_undecodable(args: Sequence[RawValue]) -> str | None:
    """Find why the first undecodable argument cannot be decoded; None: there is none."""
    for arg in args:
        if arg.payload.metadata.get("encoding") == UNDECODABLE:
            return arg.payload.data.decode(errors="replace")
    return None


M = TypeVar("M", bound=BaseModel)
T = TypeVar("T", bound=BaseModel | None)
C = TypeVar("C", bound=ContextQuery)

MAX_CARRIED_START_BYTES = 2_000_000
"""Largest argument of a start that carries a session, in bytes; the server takes no more either."""

MAX_RESULT_BYTES = 6 * MAX_TOOL_RESULT_BYTES + 8_192
"""Largest result of a subagent, in bytes of JSON."""

MAX_DEPTH = 100
"""Levels of nesting in an input. Entries and pages nest it deeper, and pydantic reads 200 levels at most."""


def is_continued(info: workflow.Info) -> bool:
    """Whether the argument of this workflow run was written by the session's own earlier run, not by a caller.

    The server alone sets `continued_run_id`. It does so for a run that another one has continued as new, and also
    for the second run of a retry policy or a cron schedule, which has the caller's argument: of these the former has
    an `attempt` over 1, the latter a `cron_schedule`. A reset run has what the reset one had.

    To continue a workflow as new is to answer workflow tasks. A client that may do that can take the tasks of the
    sessions themselves and answer those as it likes, so no signature would keep more out.
    """
    return info.continued_run_id is not None and info.attempt == 1 and not info.cron_schedule


def decode_start(
    session_id: str, args: Sequence[RawValue], *, is_continued: bool = False, parent_id: str | None = None
) -> SessionStart:
    """Decode the argument of a session. Only with `is_continued` may it carry a session.

    Only a start by the workflow `parent_id` may have a task, which names that workflow.

    Raises:
        NewerVersion: A newer version of Clew has written the carried session.
        InvalidInput: The session id or the argument is malformed, or the argument carries a session or a task of a
            caller's.
        TooLarge: The argument or a system prompt is too large.
        UnsupportedStrategy: The strategy is not `react`.
    """
    if not SESSION_ID.matches(session_id):
        raise InvalidInput(SESSION_ID.words)
    carries = len(args) == 1 and b'"carried"' in args[0].payload.data
    if is_continued:
        _check_version(args)
    start = _decode(args, SessionStart, MAX_CARRIED_START_BYTES if carries else MAX_MESSAGE_BYTES)
    if start.carried is not None and not is_continued:
        raise InvalidInput("carried: only a session's own earlier workflow run sets this field. Leave it out")
    if start.task is not None and (start.carried is not None or start.task.session_id != parent_id):
        raise InvalidInput("task: only the session that starts a subagent sets this field. Leave it out")
    config = start.config
    if config.strategy != "react":
        raise UnsupportedStrategy(f"unknown strategy {config.strategy[:50]!r}: the strategy is 'react'")
    _check_prompts(config.system_prompt, config.context_policy)
    _check_names(config.tools, config.require_approval)
    tool_rounds.check_external_tools(config.external_tools)
    return start


def _check_version(args: Sequence[RawValue]) -> None:
    """Check the version of a carried session, before the rest is decoded: a newer one may have other fields.

    Raises:
        NewerVersion: A newer version of Clew has written it.
    """
    with suppress(ValueError, LookupError, TypeError):
        carried.FORMAT.check(from_json(args[0].payload.data)["carried"]["version"])


def decode_update(name: str, args: Sequence[RawValue], config: SessionConfig) -> Command:
    """Decode the command of an update.

    Raises:
        Refusal: There is no such update, or its input is malformed or too large.
    """
    handler = _find(UPDATES, "update", name)
    return _check_command(_decode(args, handler.input, config.limits.max_message_bytes, optional=handler.is_bare))


def decode_signal(name: str, args: Sequence[RawValue], config: SessionConfig) -> Command:
    """Decode the command of a signal: the same as that of the corresponding update.

    Raises:
        Refusal: There is no such signal, or its input is malformed or too large.
    """
    handler = _find(SIGNALS, "signal", name)
    # The session's limit is for callers. A byte of a result takes up to six of JSON.
    is_result = name in ("subagent_result", "late_result")
    max_bytes = MAX_RESULT_BYTES if is_result else config.limits.max_message_bytes
    decoded = _decode(args, handler.input, max_bytes, optional=handler.is_bare)
    if isinstance(decoded, SteerInput):
        decoded = SubmitInput.model_validate(decoded.model_dump(exclude_unset=True) | {"kind": name})
    return _check_command(decoded)


def _check_command(command: Command) -> Command:
    """Check the rules that a command's type cannot express, and trim the user's text."""
    match command:
        case MessageInput() | SubmitInput():
            content = strip_content(command.content)
            if is_empty(content):
                raise EmptyContent("content is needed: there was none beside white space")
            check_kinds((content,))
            if isinstance(command, MessageInput):
                _check_prompts(None, command.context_policy)
                tool_rounds.check_external_tools(command.external_tools or ())
            return command.model_copy(update={"content": content})
        case ToolResultInput() | LateResultInput():
            check_kinds(list_contents(command))
            if isinstance(command, ToolResultInput):
                _check_settings(command.settings)
        case ApprovalInput():
            _check_settings(command.settings)
        case ContextOperation():
            snapshot = command.operation.result_context if isinstance(command.operation, Replace) else None
            _check_prompts(snapshot.system_prompt if snapshot else None, None)
            check_kinds(message.content for message in (snapshot.messages if snapshot else ()))
        case ConfigureInput():
            _check_prompts(command.system_prompt, command.context_policy)
            _check_names(command.tools or (), command.require_approval or ())
            tool_rounds.check_external_tools(command.external_tools or ())
    return command


def _check_settings(settings: RunSettings | None) -> None:
    if settings:
        _check_prompts(None, settings.context_policy)
        tool_rounds.check_external_tools(settings.external_tools or ())


def decode_query(name: str, args: Sequence[RawValue]) -> Query | None:
    """Decode the input of a query; None for one that has none.

    Raises:
        Refusal: There is no such query, or its input is malformed or too large.
    """
    handler = _find(QUERIES, "query", name)
    if not issubclass(handler.input, BaseModel):
        return None
    decoded = _decode(args, handler.input, optional=handler.is_bare)
    match decoded:
        case ContextQuery():
            return check_context(decoded)
        case WindowQuery() if decoded.token_budget < 1:
            raise InvalidTokenBudget("a token budget is at least 1")
    return decoded


def _find(handlers: Mapping[str, Handler[T]], kind: str, name: str) -> Handler[T]:
    if handler := handlers.get(name):
        return handler
    names = ", ".join(known for known, handler in handlers.items() if not handler.is_internal)
    raise InvalidInput(f"unknown {kind} {name[:50]!r}: one of {names}")


def check_context(query: C) -> C:
    """Check the rules that a context query's type cannot express, and trim its pending messages.

    Raises:
        EmptyContent: A pending message has no content beside white space.
        TooLarge: The policy's system prompt is too large.
    """
    _check_prompts(None, query.context_policy)
    if query.pending is None:
        return query
    pending = tuple(
        message.model_copy(update={"content": strip_content(message.content)}) for message in query.pending
    )
    if any(is_empty(message.content) for message in pending):
        raise EmptyContent("pending: content is needed, there was none beside white space")
    return query.model_copy(update={"pending": pending})


def decode_service(args: Sequence[RawValue], model: type[M], max_bytes: int = MAX_MESSAGE_BYTES) -> M:
    """Decode the input of a service.

    Raises:
        Refusal: The input is malformed or too large.
    """
    return _decode(args, model, max_bytes)


def measure(args: Sequence[RawValue]) -> int:
    """Measure the arguments of an update or a signal, in bytes."""
    return sum(len(arg.payload.data) for arg in args)


def make_excerpt(args: Sequence[RawValue]) -> str:
    """Decode at most 200 characters of a signal's arguments, for the `input` entry of a refused signal."""
    return b" ".join(arg.payload.data[:800] for arg in args[:4]).decode("utf-8", "replace")[:200]


def find_id(args: Sequence[RawValue]) -> str:
    """Find the id of a malformed signal, as JSON, by which its sender finds the `input` entry; empty: it has none."""
    data = args[0].payload.data if args else b""
    try:
        fields = from_json(data) if len(data) <= MAX_MESSAGE_BYTES else None
    except ValueError:
        return ""
    names = ("input_id", "op_id", "request_id", "tool_call_id")
    named = fields if isinstance(fields, dict) else {}
    ids = {name: named[name] for name in names if isinstance(named.get(name), str)}
    return to_json(ids).decode()[:200] if ids else ""


def make_application_error(error: ClewError) -> ApplicationError:
    """Convert an error to the one that the client gets; its type is the word of the contract."""
    word = error.type if isinstance(error, Refusal | ContextOverflow | WorkerUnavailable) else "invalid_input"
    return ApplicationError(str(error), type=word, non_retryable=True)


def make_query_error(error: ClewError) -> ApplicationError:
    """Convert a refused query's error. Clients get only its message, so the message begins with the word."""
    refused = make_application_error(error)
    return QueryRefused(f"{refused.type}: {error}", type=refused.type, non_retryable=True)


def _decode(
    args: Sequence[RawValue], model: type[M], max_bytes: int = MAX_MESSAGE_BYTES, optional: bool = False
) -> M:
    if optional and (not args or (len(args) == 1 and args[0].payload.data in (b"", b"null"))):
        return model()
    if len(args) != 1:
        raise InvalidInput(f"one argument is expected, a JSON object; {len(args)} came")
    payload = args[0].payload
    if payload.metadata.get("encoding") == UNDECODABLE:
        raise UnknownKey("the worker cannot decrypt the input: it does not have its key, or the input was changed")
    if len(payload.data) > max_bytes:
        raise TooLarge(f"the input has {len(payload.data)} bytes, at most {max_bytes} are taken")
    if payload.metadata.get("encoding") != b"json/plain":
        raise InvalidInput("the payload is not plain JSON (its encoding must be json/plain)")
    try:
        decoded = model.model_validate_json(payload.data)
        # Fields of any JSON (schemas, metadata) must be JSON that can be written again.
        plain = decoded.model_dump(exclude_unset=True)
        check_depth(plain, MAX_DEPTH)
        canonicalize(plain)
    except ValidationError as error:
        raise translate_validation_error(model, error) from None
    except ValueError as error:
        raise InvalidInput(f"not usable as JSON: {str(error)[:200]}") from None
    return decoded


def _check_prompts(prompt: str | None, policy: ContextPolicy | None) -> None:
    for text in (prompt, policy.system_prompt if policy else None):
        if text and len(text.encode()) > MAX_SYSTEM_PROMPT_BYTES:
            raise TooLarge(f"a system prompt has at most {MAX_SYSTEM_PROMPT_BYTES} bytes")


def _check_names(*lists: tuple[str, ...]) -> None:
    for names in lists:
        if len(set(names)) < len(names):
            raise InvalidInput("tools: the same name is listed twice")
