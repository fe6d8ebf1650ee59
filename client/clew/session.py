"""A session as a backend holds it: a comfort over exactly the wire contract."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.contract import (
    AwaitRequestInput,
    CloseInput,
    Context,
    ContextMeta,
    ContextQuery,
    EntriesQuery,
    MessageInput,
    ModelOptions,
    RequestOutcome,
    SessionStatus,
    StreamState,
    TranscriptMessage,
    TranscriptQuery,
    Window,
    WindowQuery,
)
from clew.entries import Entry
from clew.errors import ClewError, Closed, InvalidInput, RequestFailed, ServerUnreachable, WorkerUnavailable, refusal
from clew.policy import ContextPolicy

M = TypeVar("M", bound=BaseModel)

ACCEPT_SECONDS = 60
"""How long a message waits for a worker to take it."""
QUERY_SECONDS = 20
STREAM_INTERVAL_SECONDS = 0.1


class Session:
    """One durable session. It serves one request at a time; two conversations at once belong in two sessions."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.id = session_id
        self._client = client
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(session_id)

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    async def ask(self, content: str, **options: Any) -> str:
        """Send a message and wait for the answer's text. Takes the options of `message`.

        Raises:
            RequestFailed: the request ended without an answer.
            Refusal: the message was refused, and nothing has changed.
        """
        return await (await self.message(content, **options)).answer()

    async def message(
        self,
        content: str,
        *,
        request_id: str | None = None,
        context_policy: ContextPolicy | None = None,
        model: str | None = None,
        model_options: ModelOptions | Mapping[str, Any] | None = None,
        max_iterations: int | None = None,
        timeout_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Request:
        """Send a message; back as soon as it is accepted, which is when it can no longer be lost.

        The same `request_id` sent again is the same request: it is answered again and never run again.

        Raises:
            Refusal: the message was refused, and nothing has changed.
        """
        given = {
            "content": content,
            "context_policy": context_policy,
            "model": model,
            "model_options": model_options,
            "max_iterations": max_iterations,
            "timeout_seconds": timeout_seconds,
            "metadata": metadata,
        }
        request_id = request_id or uuid.uuid4().hex
        # The id of the Update is the request's id where the message names none: once in the history is enough.
        checked(MessageInput, given | {"request_id": request_id})
        update = await self._update("message", checked(MessageInput, given), request_id)
        return Request(self, request_id, update)

    def request(self, request_id: str) -> Request:
        """A request by its id, sent by whomever and whenever."""
        return Request(self, request_id)

    async def stream(self, request: Request) -> AsyncIterator[StreamState]:
        """The reply to a request as it grows, for any number of readers; the last state is what was committed.

        A new `call_id` is another model call of the run, a new `attempt` starts over.
        """
        ended = asyncio.ensure_future(request.result())
        try:
            last: StreamState | None = None
            while not ended.done():
                state = await self._streaming(request.request_id)
                if state and state != last:
                    last = state
                    yield state
                await asyncio.wait([ended], timeout=STREAM_INTERVAL_SECONDS)
            outcome = ended.result()
            if outcome.answer_seq is not None:
                yield await self._committed(outcome, outcome.answer_seq)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def status(self) -> SessionStatus:
        """What the session is doing."""
        return SessionStatus.model_validate(await self._query("status"))

    async def context(
        self,
        *,
        context_ref: str | None = None,
        at_seq: int | None = None,
        call_id: str | None = None,
        context_policy: ContextPolicy | None = None,
    ) -> Context:
        """What a lane looks like to a model: now, at a seq, or as a model call saw it."""
        asked: dict[str, Any] = {
            "context_ref": context_ref,
            "at_seq": at_seq,
            "call_id": call_id,
            "context_policy": context_policy,
        }
        page = await self._query("context", checked(ContextQuery, asked))
        messages, tools, meta = page["messages"], page["tool_spec"], page["meta"]
        if call_id is None:
            asked["at_seq"] = meta["basis_last_seq"] if meta["basis_last_seq"] >= 0 else None
        while "next_page" in page:
            page = await self._query("context", checked(ContextQuery, asked | {"page": page["next_page"]}))
            messages += page["messages"]
        return Context(messages=messages, tool_spec=tools, meta=ContextMeta.model_validate(meta))

    async def transcript(
        self,
        *,
        context_ref: str | None = None,
        from_seq: int = 0,
        limit: int | None = None,
        include_system: bool = False,
    ) -> list[TranscriptMessage]:
        """A lane's messages as they were said, each with its seq."""
        asked = {"context_ref": context_ref, "include_system": include_system}
        return [message async for message in self._pages("transcript", TranscriptQuery, asked, from_seq, limit)]

    async def window(self, token_budget: int, *, context_ref: str | None = None) -> Window:
        """The newest messages that fit a budget of tokens."""
        asked = checked(WindowQuery, {"token_budget": token_budget, "context_ref": context_ref})
        return Window.model_validate(await self._query("window", asked))

    async def entries(self, *, from_seq: int = 0, limit: int | None = None, **filters: str) -> list[Entry]:
        """The thread's entries; filters are `kind`, `context_ref` and the ids that `refs` hold."""
        rows = self._pages("entries", EntriesQuery, dict(filters), from_seq, limit)
        return [Entry.from_json(row) async for row in rows]

    async def close(self, reason: str | None = None) -> None:
        """End the session: what runs is cancelled. Back when it has ended."""
        async with _translating(self.id):
            await self._handle.signal("close", payload(checked(CloseInput, {"reason": reason})))
            await self._handle.result()

    async def _await(self, request_id: str) -> WorkflowUpdateHandle[dict[str, Any]]:
        return await self._update("await_request", AwaitRequestInput(request_id=request_id))

    async def _outcome(self, update: WorkflowUpdateHandle[dict[str, Any]]) -> RequestOutcome:
        async with _translating(self.id):
            return RequestOutcome.model_validate(await update.result())

    async def _update(
        self, name: str, argument: BaseModel, update_id: str | None = None
    ) -> WorkflowUpdateHandle[dict[str, Any]]:
        async with _translating(self.id), asyncio.timeout(ACCEPT_SECONDS):
            update = await self._handle.start_update(
                name,
                payload(argument),
                id=update_id,
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                result_type=dict,
            )
            # A refused update counts as complete, and the SDK would tell so only to who waits for the outcome.
            if update._known_outcome is not None:
                await update.result()
            return update

    async def _query(self, name: str, argument: BaseModel | None = None) -> dict[str, Any]:
        args = [] if argument is None else [payload(argument)]
        async with _translating(self.id):
            answer: dict[str, Any] = await self._handle.query(
                name, args=args, result_type=dict, rpc_timeout=timedelta(seconds=QUERY_SECONDS)
            )
            return answer

    async def _pages(
        self, name: str, model: type[BaseModel], asked: dict[str, Any], from_seq: int, limit: int | None
    ) -> AsyncIterator[Any]:
        seq: int | None = from_seq
        while seq is not None and (limit is None or limit > 0):
            page = await self._query(name, checked(model, asked | {"from_seq": seq, "limit": limit}))
            rows = page["messages" if name == "transcript" else "entries"]
            for row in rows:
                yield row
            seq = page.get("next_seq")
            limit = None if limit is None else limit - len(rows)

    async def _streaming(self, request_id: str) -> StreamState | None:
        """The newest heartbeat of the request's model call, where one is in flight."""
        async with _translating(self.id):
            description = await self._handle.describe()
        for pending in description.raw_description.pending_activities:
            if pending.activity_type.name == "call_model" and pending.heartbeat_details.payloads:
                (details,) = await self._client.data_converter.decode(pending.heartbeat_details.payloads, [dict])
                state = StreamState.model_validate(details)
                if state.request_id == request_id:
                    return state
        return None

    async def _committed(self, outcome: RequestOutcome, seq: int) -> StreamState:
        (entry,) = await self.entries(from_seq=seq, limit=1)
        return StreamState(
            request_id=outcome.request_id,
            run_id=entry.refs["run_id"],
            call_id=entry.refs["call_id"],
            attempt=entry.payload["recipe"]["attempt"],
            iteration=entry.refs["iteration"],
            text=entry.payload["content"],
            thinking=entry.payload.get("thinking"),
        )


class Request:
    """A request that a session has accepted."""

    def __init__(
        self, session: Session, request_id: str, update: WorkflowUpdateHandle[dict[str, Any]] | None = None
    ) -> None:
        self.session = session
        self.request_id = request_id
        self._update = update
        self._outcome: RequestOutcome | None = None

    def __repr__(self) -> str:
        return f"<request {self.request_id} of {self.session.id}>"

    async def result(self) -> RequestOutcome:
        """How the request ended; waits until it has, however long that takes.

        Raises:
            UnknownRequest: the session knows no request of this id.
        """
        while self._outcome is None:
            # Kept until it has answered, so that whoever waits again waits for the same update.
            update = self._update = self._update or await self.session._await(self.request_id)
            outcome = await self.session._outcome(update)
            if outcome.status == "running":
                self._update = None
            else:
                self._outcome = outcome
        return self._outcome

    async def answer(self) -> str:
        """The text of the answer; waits until it is there.

        Raises:
            RequestFailed: the request ended without one.
        """
        outcome = await self.result()
        if outcome.status != "completed" or outcome.answer_seq is None:
            raise RequestFailed(outcome)
        (entry,) = await self.session.entries(from_seq=outcome.answer_seq, limit=1)
        text: str = entry.payload["content"]
        return text


def checked(model: type[M], given: Mapping[str, Any]) -> M:
    """The input that some values make; what is None was not given.

    Raises:
        InvalidInput: they do not make one.
    """
    values = {name: value for name, value in given.items() if value is not None}
    try:
        # Through JSON, as it will travel: lists are tuples there, and a mapping is an object.
        return model.model_validate_json(json.dumps(values, default=_plain))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidInput(": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not usable as JSON: {error}") from None


def payload(model: BaseModel) -> dict[str, Any]:
    """What travels of an input: the fields that were given."""
    return model.model_dump(mode="json", exclude_unset=True)


def translated(error: RPCError, session_id: str) -> ClewError:
    """Temporal's errors as Clew's."""
    match error.status:
        case RPCStatusCode.NOT_FOUND if error.message.startswith("Namespace"):
            return ServerUnreachable(f"the Temporal server has no such namespace: {error.message}")
        case RPCStatusCode.NOT_FOUND:
            return Closed(f"there is no running session {session_id!r}: it has ended, or was never opened")
        case RPCStatusCode.UNAVAILABLE:
            return ServerUnreachable(f"the Temporal server does not answer: {error.message}")
        case RPCStatusCode.DEADLINE_EXCEEDED | RPCStatusCode.FAILED_PRECONDITION | RPCStatusCode.CANCELLED:
            return WorkerUnavailable(f"no worker answers for session {session_id!r}: {error.message}")
        case _:
            return ClewError(f"Temporal refused: {error.message}")


@asynccontextmanager
async def _translating(session_id: str) -> AsyncIterator[None]:
    """Foreign errors become Clew's here, and nowhere else."""
    try:
        yield
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type:
            raise refusal(cause.type, cause.message) from error
        raise ClewError(str(cause)) from error
    except WorkflowQueryFailedError as error:
        word, _, message = error.message.partition(": ")
        raise (refusal(word, message) if message else ClewError(error.message)) from error
    except WorkflowQueryRejectedError as error:
        raise Closed(f"session {session_id!r} has ended") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        # The SDK makes a cancellation of the caller an error of its own; it stays the caller's.
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise error.__cause__ from None
        raise WorkerUnavailable(f"no worker answers for session {session_id!r}") from error
    except TimeoutError as error:
        message = f"no worker took it for session {session_id!r}: send it again with the same id once one is there"
        raise WorkerUnavailable(message) from error
    except RPCError as error:
        raise translated(error, session_id) from error


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return payload(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
