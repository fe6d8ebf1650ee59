"""The activity `call_model`: fetches a context from its session, sends it to a provider and streams the reply."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew.contract.outputs import Context, ContextMeta, ReplyProgress
from clew.contract.payloads import AssistantMessage
from clew.model.canonical import compute_digest
from clew.model.messages import Message, ToolSpec
from clew.model.prices import Prices, compute_cost_usd
from clew_activities.deployment import Deployment
from clew_activities.heartbeat import send_heartbeats
from clew_activities.prices import find_prices
from clew_activities.providers import (
    ModelRequest,
    Provider,
    ProviderError,
    Providers,
    RedactedDecoder,
    Redaction,
    stream,
)
from clew_activities.providers.answer_object import AnswerDecoder, is_object_schema, make_object_schema
from clew_activities.providers.errors import ContextLengthExceeded
from clew_activities.session_queries import get_own_session, query_session
from clew_activities.structured_output import SchemaUnusable, Validation
from clew_activities.token_counts import count_tokens
from clew_workflows.protocol import (
    CallModel,
    ModelAnswered,
    ModelReply,
    Outdated,
    RequestedTool,
    number_tool_calls,
)

MAX_STREAMED_CHARACTERS = 32 * 1024
"""Most characters of an unfinished reply in one heartbeat."""
MAX_REPLY_BYTES = 600_000
"""Largest reply, in bytes of JSON, so that its entry fits on one page of a query."""
NO_PRICE = (
    "the worker has no price of {model}, so max_cost_usd cannot be enforced: use max_total_tokens, or install a "
    "release of genai-prices on the worker that has the model"
)
MAX_WASTED_ATTEMPTS = 3
"""Attempts after which an empty or truncated reply is final: each attempt was paid for."""


class ModelActivities:
    """Calls models through one HTTP client, for sessions that were prepared under the worker's deployment."""

    def __init__(self, providers: Providers, http: httpx.AsyncClient, deployment: Deployment) -> None:
        self._deployment = deployment
        self._providers = providers
        self._http = http
        self._validation = Validation()

    @activity.defn(name="call_model")
    async def call_model(self, call: CallModel) -> ModelAnswered | Outdated:
        """Make one attempt of a model call. Its heartbeats hold the reply so far, as `ReplyProgress`.

        If the configuration was resolved by a worker of another deployment, no model is called.
        """
        provider_name, _, model = call.model.partition(":")
        decoder: RedactedDecoder | None = None
        async with send_heartbeats(lambda: _describe_progress(call, decoder)):
            if call.deployment is not None:
                deployment = await self._deployment.describe_again(call.deployment)
                if deployment != call.deployment:
                    return Outdated(deployment=deployment)
            context: Context | None = None
            prices = find_prices(call.model)
            if call.priced and not prices:
                raise ApplicationError(NO_PRICE.format(model=call.model), type="unknown_price", non_retryable=True)
            try:
                provider = self._providers.get(provider_name)
                context = await _fetch_context(call)
                schema = context.output_schema
                if schema is not None and call.iteration == 1:
                    await self._validation.check(schema)
                form, decoder = prepare_reading(provider, schema, self._providers.redaction)
                request = ModelRequest(
                    model=model,
                    messages=context.messages,
                    tools=context.tool_spec,
                    options=call.options,
                    output_schema=form,
                    cache_key=_make_cache_key(call),
                )
                reply = add_price(prices, _fit_reply(await stream(self._http, provider, request, decoder)))
                problem = None
                if schema is not None and not reply.tool_calls:
                    problem = await self._validation.find_problem(reply.content, schema)
                tokens = await _count_reply(reply, call)
            except ProviderError as error:
                raise make_provider_failure(error, context) from None
            except SchemaUnusable as error:
                raise ApplicationError(str(error), type="invalid_input", non_retryable=True) from None
        return ModelAnswered(
            reply=reply,
            prices=prices,
            digest=context.meta.digest,
            policy_hash=context.meta.policy_hash,
            input_tokens=context.meta.estimated_tokens,
            attempt=activity.info().attempt,
            epoch=context.meta.epoch,
            shared_prefix_tokens=context.meta.shared_prefix_tokens,
            cleared_tool_results=context.meta.cleared_tool_results,
            truncated_tool_results=context.meta.truncated_tool_results,
            schema_problem=problem,
            needs_summary=context.meta.needs_summary,
            tokens=tokens,
        )


def prepare_reading(
    provider: Provider, schema: dict[str, Any] | None, redaction: Redaction
) -> tuple[dict[str, Any] | None, RedactedDecoder]:
    """Make the schema that the provider gets for an answer's schema, and the decoder of the reply."""
    if schema is None or is_object_schema(schema):
        return schema, RedactedDecoder(provider.make_decoder(), redaction)
    return make_object_schema(schema), RedactedDecoder(AnswerDecoder(provider.make_decoder()), redaction)


async def _fetch_context(call: CallModel) -> Context:
    """Fetch the call's context from its session, page by page, and verify its digest."""
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


async def _count_reply(reply: ModelReply, call: CallModel) -> int:
    message = AssistantMessage(
        context_ref="",
        role="assistant",
        content=reply.content,
        tool_calls=number_tool_calls(reply.tool_calls, call.earlier_tool_calls) or None,
        provider_data=reply.provider_data or None,
    )
    _, tokens = await count_tokens(message, call.encoding)
    return tokens


def _make_cache_key(call: CallModel) -> str:
    """Make the cache key of a lane: its calls' contexts have a common prefix. It reveals no id."""
    return compute_digest([activity.info().workflow_id, call.context_ref])[:32]


def _describe_progress(call: CallModel, decoder: RedactedDecoder | None) -> dict[str, Any]:
    text, thinking = (decoder.text, decoder.thinking) if decoder else ("", "")
    return ReplyProgress(
        request_id=call.request_id,
        run_id=call.run_id,
        call_id=call.call_id,
        attempt=activity.info().attempt,
        iteration=call.iteration,
        offset=max(len(text) - MAX_STREAMED_CHARACTERS, 0),
        text=text[-MAX_STREAMED_CHARACTERS:],
        thinking_offset=max(len(thinking) - MAX_STREAMED_CHARACTERS, 0),
        thinking=thinking[-MAX_STREAMED_CHARACTERS:] or None,
        tool_name=decoder.tool_name if decoder else None,
    ).as_json()


def make_provider_failure(error: ProviderError, context: Context | None = None) -> ApplicationError:
    """Make the activity's failure of a provider's error. Whether it is retried follows from the error's class.

    If the context is too long for the model, the details hold the number of tokens that Clew counted.
    """
    wasted = error.type in ("empty_reply", "truncated_stream") and activity.info().attempt >= MAX_WASTED_ATTEMPTS
    details = error.details | ({"status": error.status} if error.status else {})
    if context and error.type == ContextLengthExceeded.type:
        details["counted"] = context.meta.estimated_tokens
    return ApplicationError(
        error.message,
        *([details] if details else []),
        type=error.type,
        non_retryable=wasted or not error.retryable,
        next_retry_delay=None if error.retry_after is None else timedelta(seconds=error.retry_after),
    )


def add_price(prices: Prices, reply: ModelReply) -> ModelReply:
    """Add the cost to a reply's usage, if the model's prices are known."""
    usage = reply.usage.model_copy(update={"cost_usd": compute_cost_usd(prices, reply.usage)})
    return reply.model_copy(update={"usage": usage})


def _fit_reply(reply: ModelReply) -> ModelReply:
    """Reduce a reply until it fits into one payload. A character that JSON escapes takes up to six bytes.

    Dropped in this order: the thinking, the provider's data, the tool calls' arguments. Then the text is truncated,
    with a mark.
    """
    reductions: tuple[dict[str, Any], ...] = (
        {"thinking": None},
        {"provider_data": None},
        {"tool_calls": tuple(RequestedTool(name=tool.name, malformed="[too large]") for tool in reply.tool_calls)},
        {"content": reply.content[: MAX_REPLY_BYTES // 8] + "[truncated]"},
    )
    for fields in reductions:
        if len(to_json(reply)) <= MAX_REPLY_BYTES:
            break
        reply = reply.model_copy(update=fields)
    return reply
