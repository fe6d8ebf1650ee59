"""The activity `call_model`: fetches a context of its session, sends it to a provider and streams the reply."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew_activities.archive import ArchiveError
from clew_activities.archive.blob_store import Blobs
from clew_activities.archive.thread_source import get_own_session, query_session
from clew_activities.heartbeats import send_heartbeats
from clew_activities.live_writer import LiveWriter
from clew_activities.model.load_media import MediaLoader, keep_media
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels, find_prices, find_taken_media
from clew_activities.model.reply_in_progress import ReplyInProgress, count_reply, count_searches, fit_reply
from clew_activities.model.structured_output import SchemaUnusable, Validation
from clew_activities.offload import offload
from clew_activities.providers import (
    ModelRequest,
    Provider,
    ProviderError,
    Providers,
    RedactedDecoder,
    Redaction,
    stream,
)
from clew_activities.providers.encoders import get_forms, make_cache_key, wrap_schema
from clew_activities.providers.http import DEFAULT, DRAWING, HttpSettings
from clew_activities.providers.options import expects_media
from clew_activities.providers.provider_errors import (
    ContentRefused,
    ContextLengthExceeded,
    ItemRefused,
    MediaRefused,
    PromptRefused,
    Unreachable,
)
from clew_activities.providers.refused_parts import Search
from clew_activities.providers.reply import AnswerDecoder
from clew_activities.telemetry.metrics import record_first_token
from clew_activities.tools.registry import Deployment
from clew_workflows.contract.hooks import HookPoint
from clew_workflows.contract.messages import Message, ToolSpec, compute_digest
from clew_workflows.contract.outputs import Context, ContextMeta
from clew_workflows.contract.payloads import Fitting
from clew_workflows.host.retries import MAX_WASTED_ATTEMPTS, WASTED
from clew_workflows.host.runtime import LOCAL_CONTEXTS
from clew_workflows.protocol import (
    OUTAGES,
    CallModel,
    Declined,
    ModelAnswered,
    ModelReply,
    Outdated,
    describe_read,
)
from clew_workflows.session.tool_rounds import check_arguments
from clew_workflows.thread.context.projection import Projection

log = logging.getLogger("clew.worker")

MAX_WARNINGS = 1000
"""Tools that are left out, of which the worker logs each once."""
NO_PRICE = (
    "the worker has no price of {model}, so max_cost_usd cannot be enforced: add the model to the JSON file that "
    'CLEW_PRICES names, as in {{"{model}": {{"input": 0.5, "output": 1.5}}}} in USD per million tokens (0: it costs '
    "nothing), or use max_total_tokens"
)
TIME_TO_ANSWER = timedelta(seconds=0.3)
"""Time before the end of a request in which a call answers what it has read."""
FEWER_HOOKS = (
    "the worker that prepared the session has fewer hooks than the one that was to call the model: all workers need "
    "the same CLEW_HOOKS"
)
MAX_DRAWING = 4
"""Calls of a worker whose replies may have images or recordings, at the same time; others wait. Each takes memory for
a reply of up to `DRAWING.reply_bytes`."""
STORING_ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.5
"""How often an attempt tries to store what a model has drawn, and the first pause between, which doubles."""
MAX_UNCHECKED_ATTEMPTS = 3
"""Attempts after which a call is not made because hooks have not checked its request."""
AWAY_SECONDS = 300.0
"""Seconds for which a worker remembers that a model had an outage: a call with a fallback makes one attempt then."""
MAX_AWAY = 1_000
"""Most models that a worker remembers so."""
SILENCE_BEFORE_FALLBACK = 120.0
"""Longest wait for the next chunk of a response, in seconds, if the run has a fallback. Models that think send none
for a minute."""
MAX_REFUSED_CHARACTERS = 16_384
"""Characters of a refused reply that its error keeps."""


class ModelActivities:
    """Calls models through one HTTP client, for sessions that were prepared under the worker's deployment."""

    def __init__(
        self,
        providers: Providers,
        http: httpx.AsyncClient,
        deployment: Deployment,
        hooks: tuple[HookPoint, ...] = (),
        limited: tuple[str, ...] = (),
        *,
        media: MediaLoader,
        own_models: OwnModels = NO_OWN_MODELS,
        blobs: Blobs | None = None,
        live: LiveWriter | None = None,
    ) -> None:
        self._blobs = blobs
        self._live = live or LiveWriter()
        self._drawing = asyncio.Semaphore(MAX_DRAWING)
        self._media = media
        self._own_models = own_models
        self._hooks = hooks
        self._limited = limited
        self._deployment = deployment
        self._providers = providers
        self._http = http
        self._validation = Validation()
        self._warned: set[tuple[str, str]] = set()
        self._reached: set[str] = set()
        self._outages = Outages()

    @activity.defn(name="call_model")
    async def call_model(self, call: CallModel) -> ModelAnswered | Outdated:
        """Make one attempt of a model call. Its heartbeats show the reply so far (`ReplyInProgress.describe`).

        If the configuration was resolved by a worker of another deployment, no model is called. If the session
        cancels the call, the answer is what was read of the reply (`interrupted`).

        Raises:
            ApplicationError: The attempt failed. If no other one follows, its second detail is the answer from what
                was read of the reply.
            asyncio.CancelledError: The session has cancelled the call before the reply began, or the worker stops.
        """
        reading = ReplyInProgress(call, find_prices(call.model, self._own_models), activity.info().attempt)
        async with self._live.show(reading.describe, reading.show) as reading.note_growth:
            return await self._call(call, reading)

    async def _call(self, call: CallModel, reading: ReplyInProgress) -> ModelAnswered | Outdated:
        if call.hooks is not None and call.hooks != self._hooks:
            return Outdated(deployment="", hooks=self._hooks)
        if call.checks is not None and not set(self._hooks) <= set(call.checks):
            # Workers are being replaced: the one that resolved the configuration has fewer hooks than this one.
            final = reading.note_fault("unchecked") >= MAX_UNCHECKED_ATTEMPTS
            activity.heartbeat(*reading.describe())
            raise ApplicationError(FEWER_HOOKS, type="hook_failed", non_retryable=final)
        if call.limited is not None and call.limited != self._limited:
            return Outdated(deployment="", hooks=self._hooks)
        if call.deployment is not None:
            deployment = await self._deployment.describe_again(call.deployment)
            if deployment != call.deployment:
                return Outdated(deployment=deployment, hooks=self._hooks)
        if call.priced and not reading.prices:
            raise ApplicationError(NO_PRICE.format(model=call.model), type="unknown_price", non_retryable=True)
        try:
            return await self._read_in_time(reading)
        except ProviderError as error:
            raise await self._make_failure(error, reading) from None
        except SchemaUnusable as error:
            raise ApplicationError(str(error), type="invalid_input", non_retryable=True) from None
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            interrupted = await reading.interrupt() if details and details.cancel_requested else None
            if interrupted is None:
                raise
            return interrupted

    async def _read_in_time(self, reading: ReplyInProgress) -> ModelAnswered:
        """Read the reply, until shortly before the server gives up the call: after that the text would be lost.

        Raises:
            ApplicationError: The time is over.
            ProviderError: The call failed.
            SchemaUnusable: The answer's schema cannot be used.
        """
        left = reading.attempt.time_left
        limit = asyncio.timeout(None if left is None else (left - TIME_TO_ANSWER).total_seconds())
        try:
            async with limit:
                return await self._read_reply(reading)
        except TimeoutError:
            if not limit.expired():
                raise
        text = reading.decoder.text if reading.decoder else ""
        values = [{}, answer] if (answer := await reading.interrupt()) else []
        raise ApplicationError(describe_read(len(text)), *values, type="timeout", non_retryable=True)

    async def _read_reply(self, reading: ReplyInProgress) -> ModelAnswered:
        call = reading.call
        provider_name, _, model = call.model.partition(":")
        provider = self._providers.get(provider_name)
        context = await _fetch_context(call)
        schema = context.output_schema
        if schema is not None and call.iteration == 1:
            await self._validation.check(schema)
        request = ModelRequest(
            model=model,
            messages=context.messages,
            tools=context.tool_spec,
            options=call.options,
            provider_tools=call.provider_tools,
            output_schema=schema,
            cache_key=make_cache_key(activity.info().workflow_id or "", call.context_ref),
            takes=find_taken_media(call.model, self._own_models),
        )
        search = Search(request, get_forms(provider, model), provider.name, call.refused)
        first: ItemRefused | None = None
        while True:
            try:
                return await self._try(reading, provider, search, context)
            except ItemRefused as error:
                is_prompt = isinstance(error, PromptRefused)
                first = error if first is None or is_prompt else first
                begun = reading.has_content if is_prompt else reading.has_begun
                if begun or not search.has_next:
                    if isinstance(first, PromptRefused):
                        search.note_texts(first, call.model, tried=not begun)
                    raise first from None
                # The provider's words may quote the conversation. The thread has them.
                kind = error.kind or "not named"
                log.warning("model %r refuses an item, and is called without it (%s)", call.model, kind)

    async def _try(
        self, reading: ReplyInProgress, provider: Provider, search: Search, context: Context
    ) -> ModelAnswered:
        """Make the call without what the provider has refused so far.

        Raises:
            ItemRefused: The provider refuses something else, too. The search has taken it.
            MediaRefused: The policy allows no marker for a part that the provider has refused.
            ProviderError: The call failed otherwise.
        """
        refuses, session_id = reading.call.refuses_content, activity.info().workflow_id or ""
        reading.reduced = reduced = search.reduced
        if refuses and (markers := reduced.list_markers()):
            raise MediaRefused(markers[0])
        async with self._media.load(provider, reduced.request, session_id, refuses=refuses) as loaded:
            try:
                return await self._send(reading, provider, loaded, context)
            except ItemRefused as error:
                await asyncio.to_thread(take_refusal, search, error, provider, loaded)
                raise

    async def _send(
        self, reading: ReplyInProgress, provider: Provider, request: ModelRequest, context: Context
    ) -> ModelAnswered:
        call, schema = reading.call, context.output_schema
        request, decoder = prepare_call(provider, request, self._providers.redaction)
        reading.meta, reading.decoder = context.meta, decoder
        decoder.note_growth = reading.note_growth
        draws = expects_media(request)
        settings = DRAWING if draws else DEFAULT
        if call.has_fallback:
            settings = replace(settings, silence_seconds=SILENCE_BEFORE_FALLBACK)
        async with self._drawing if draws else nullcontext():
            reply = await self._stream(provider, request, decoder, settings, call)
            if decoder.media:
                reply = await self._keep_media(reply, decoder, reading)
        if reading.reduced:
            reply = reading.reduced.restore_names(reply)
        if reply.tool_calls:
            calls = await offload(decoder.arguments_size, check_arguments, reply.tool_calls, context.tool_spec)
            reply = reply.model_copy(update={"tool_calls": calls})
        reply = await reading.complete_usage(fit_reply(reply), count_searches(reply))
        problem = None
        if schema is not None and not reply.tool_calls and reply.stop_reason != "paused":
            problem = await self._validation.find_problem(reply.text, schema)
        self._warn_of_tools(call.model, decoder.fitting)
        tokens = await count_reply(reply, call)
        return reading.make_answer(reply, tokens=tokens, schema_problem=problem)

    async def _stream(
        self,
        provider: Provider,
        request: ModelRequest,
        decoder: RedactedDecoder,
        settings: HttpSettings,
        call: CallModel,
    ) -> ModelReply:
        provider_name = call.model.partition(":")[0]
        try:
            reply = await stream(self._http, provider, request, decoder, settings=settings)
            self._reached.add(provider_name)
            self._outages.forget(call.model)
        except ProviderError as error:
            if not isinstance(error, Unreachable):
                self._reached.add(provider_name)
            if isinstance(error, PromptRefused) and decoder.text and not decoder.ended:
                # The model was replying already: what it was asked was accepted.
                raise ContentRefused(error.message, status=error.status) from None
            raise
        finally:
            if decoder.begun_after is not None:
                record_first_token(call.model, decoder.begun_after)
        return reply

    async def _keep_media(self, reply: ModelReply, decoder: RedactedDecoder, reading: ReplyInProgress) -> ModelReply:
        """Store the images and the recordings of a reply, and name them in its content.

        Raises:
            ApplicationError: The archive does not take them.
        """
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(STORING_ATTEMPTS)):
            try:
                session_id = activity.info().workflow_id or ""
                return await keep_media(
                    reply, decoder.media, self._blobs, session_id, has_places=decoder.has_text_as_sent(reply)
                )
            except ArchiveError as error:
                if not left:
                    # The next attempt reads what this one has used.
                    is_final = reading.note_fault("wasted") >= MAX_WASTED_ATTEMPTS
                    activity.heartbeat(*reading.describe())
                    message = f"the model has drawn, and the archive does not take it: {error}"
                    raise ApplicationError(message, type="archive_unavailable", non_retryable=is_final) from None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

    def _warn_of_tools(self, model: str, fitting: Fitting | None) -> None:
        """Log once for each tool that a model does not get."""
        for name, reason in (fitting.tools_left_out if fitting else {}).items():
            if (model, name) not in self._warned and len(self._warned) < MAX_WARNINGS:
                self._warned.add((model, name))
                log.warning("model %r does not get the tool %r: %s", model, name, reason)

    async def _make_failure(self, error: ProviderError, reading: ReplyInProgress) -> ApplicationError:
        """Make the activity's failure; if no attempt follows, with what was read of the reply.

        If the context is too long for the model, the details hold the number of tokens that Clew counted. Of a
        refused reply they have the text so far, which no message has: providers want it left out of later contexts.
        The text of a reply which a fallback begins anew is not kept, as with a repeated attempt. The wrong address of
        a provider is reported soon.
        """
        if reading.meta and error.type == ContextLengthExceeded.type:
            error.details["counted"] = reading.meta.estimated_tokens
        falls_back = reading.call.has_fallback and error.type in OUTAGES
        if error.type == ContentRefused.type and (text := reading.text):
            error.details["text"] = text[:MAX_REFUSED_CHARACTERS]
        is_wasted = error.type in WASTED and reading.note_fault("wasted") >= MAX_WASTED_ATTEMPTS
        failure, attempt = make_provider_failure(error, is_final=is_wasted), reading.attempt.describe()
        is_last = is_wasted or attempt.is_last(
            failure,
            has_fallback=reading.call.has_fallback,
            is_away=self._outages.has(reading.call.model),
            is_unknown=isinstance(error, Unreachable) and reading.call.model.partition(":")[0] not in self._reached,
        )
        if not is_last and attempt.compute_delay(failure) is not None:
            # The next attempt reads what this one has used: a failed attempt returns nothing else.
            activity.heartbeat(*reading.describe())
            return failure
        if falls_back:
            self._outages.note(reading.call.model)
        interrupted = await reading.interrupt(keeps_text=error.type != ContentRefused.type and not falls_back)
        return make_provider_failure(error, interrupted, is_final=is_last)


class Outages:
    """The models that have had an outage within the last `AWAY_SECONDS`, as far as this worker knows."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[str, float] = {}

    def note(self, model: str) -> None:
        """Remember the outage of a model. The oldest one is forgotten if there are too many."""
        self._since.pop(model, None)
        if len(self._since) >= MAX_AWAY:
            del self._since[next(iter(self._since))]
        self._since[model] = self._now()

    def has(self, model: str) -> bool:
        """Whether a model has had an outage a while ago."""
        return self._now() - self._since.get(model, -math.inf) < AWAY_SECONDS

    def forget(self, model: str) -> None:
        """Forget the outage of a model, which has answered."""
        self._since.pop(model, None)


class CallSlots:
    """The slots for model calls in a process: those of its own sessions, and those of the queue of model calls.

    Temporal hands a call on the sessions' own task queue to the worker that schedules it. Such a worker makes it as
    long as a slot is free, and declines it otherwise. All calls then wait in the queue of model calls, where fairness
    and priorities decide which is next.
    """

    def __init__(self, models: ModelActivities, calls: int, direct_calls: int) -> None:
        """Allow `calls` at the same time, of which `direct_calls` may be of the sessions' own task queue.

        That queue's slots are also those of the short activities that every session needs: model calls that hang must
        not take them all.
        """
        self._models = models
        self._slots = asyncio.Semaphore(calls)
        self._direct_calls = direct_calls
        self._running = 0

    @activity.defn(name="call_model")
    async def call_directly(self, call: CallModel) -> ModelAnswered | Outdated | Declined:
        """Make one attempt of a model call of the sessions' own task queue, or decline it.

        Raises:
            ApplicationError: As `ModelActivities.call_model`.
            asyncio.CancelledError: As `ModelActivities.call_model`.
        """
        if self._running >= self._direct_calls or self._slots.locked():
            return Declined(calls_models=self._direct_calls > 0)
        self._running += 1
        try:
            async with self._slots:
                return await self._models.call_model(call)
        finally:
            self._running -= 1

    @activity.defn(name="call_model")
    async def call_from_queue(self, call: CallModel) -> ModelAnswered | Outdated:
        """Make one attempt of a model call of the queue of model calls. It waits until a slot is free.

        Raises:
            ApplicationError: As `ModelActivities.call_model`.
            asyncio.CancelledError: As `ModelActivities.call_model`.
        """
        async with send_heartbeats(shows=True):
            await self._slots.acquire()
        try:
            return await self._models.call_model(call)
        finally:
            self._slots.release()


def prepare_call(
    provider: Provider, request: ModelRequest, redaction: Redaction
) -> tuple[ModelRequest, RedactedDecoder]:
    """Give the answer's schema a root that providers accept, and make the decoder of the reply."""
    schema = request.output_schema
    if schema is None:
        return request, RedactedDecoder(provider.make_decoder(request), redaction)
    wrapped = wrap_schema(request)
    decoder = AnswerDecoder(provider.make_decoder(wrapped), is_wrapped=wrapped is not request)
    return wrapped, RedactedDecoder(decoder, redaction)


def take_refusal(search: Search, error: ItemRefused, provider: Provider, request: ModelRequest) -> None:
    """Have the search choose the next try. The body is made again: the refusal names a path in it."""
    search.take(error, request, provider.encode(wrap_schema(request)).body)


async def _fetch_context(call: CallModel) -> Context:
    """Fetch the call's context: from this process's local contexts, or from the session by query.

    A session answers page by page, and the digest of the whole is verified.
    """
    if posted := LOCAL_CONTEXTS.take(activity.info().workflow_run_id or "", call):
        return _copy_context(posted)
    session = get_own_session()
    page: int | None = 0
    messages: list[Message] = []
    tools: list[ToolSpec] = []
    meta: dict[str, Any] = {}
    schema: dict[str, Any] | None = None
    while page is not None:
        answer = await query_session(session, "context", {"call_id": call.call_id, "page": page})
        messages += answer["messages"]
        tools += answer["tool_spec"]
        schema = answer.get("output_schema", schema)
        meta, page = answer["meta"], answer.get("next_page")
    received = compute_digest({"messages": messages, "tool_spec": tools, "output_schema": schema})
    if received != meta["digest"]:
        raise ApplicationError("the context's digest does not match its pages", type="context_damaged")
    return Context.model_construct(
        messages=messages, tool_spec=tools, meta=ContextMeta.model_validate(meta), output_schema=schema
    )


def _copy_context(posted: Projection) -> Context:
    """Copy a local context: the session's own values never change."""
    messages, tools, schema = from_json(to_json((posted.messages, posted.tool_spec, posted.output_schema)))
    return Context.model_construct(messages=messages, tool_spec=tools, meta=posted.meta, output_schema=schema)


def make_provider_failure(
    error: ProviderError, interrupted: ModelAnswered | None = None, *, is_final: bool = False
) -> ApplicationError:
    """Make the activity's failure of a provider's error. It is retried if its class says so, unless it `is_final`.

    Its details are those of the error, then the answer from what was read of the reply.
    """
    details = error.details | ({"status": error.status} if error.status else {})
    if interrupted:
        values: list[Any] = [details, interrupted]
    else:
        values = [details] if details else []
    return ApplicationError(
        error.message,
        *values,
        type=error.type,
        non_retryable=is_final or not error.retryable,
        next_retry_delay=None if error.retry_after is None else timedelta(seconds=error.retry_after),
    )
