"""The reply of a model call while it is read: what its heartbeats show, and what is kept if it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json
from temporalio import activity

from clew_activities.offload import count_tokens, offload
from clew_activities.providers import RedactedDecoder
from clew_activities.providers.refused_parts import Reduced
from clew_activities.telemetry.interceptor import RunningAttempt
from clew_workflows.contract.content import list_media
from clew_workflows.contract.media_tokens import find_formula
from clew_workflows.contract.outcomes import Prices, Usage, compute_cost_usd
from clew_workflows.contract.outputs import ContextMeta, ReplyProgress
from clew_workflows.contract.payloads import AssistantMessage, Fitting, make_reply_message
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import (
    CallModel,
    ModelAnswered,
    ModelReply,
    RequestedTool,
    number_tool_calls,
)

MAX_STREAMED_CHARACTERS = 32 * 1024
"""Most characters of an unfinished reply in one heartbeat."""
MAX_REPLY_BYTES = 600_000
"""Largest reply, in bytes of JSON, so that its entry fits on one page of a query."""
CHARACTERS_PER_TOKEN = 4
"""For output that is not counted: the arguments of tool calls, and what heartbeats report."""
_FAULTS = TypeAdapter(dict[str, int])


class ReplyInProgress:
    """What one attempt of a model call has read of its reply. `number`: the number of the attempt.

    Attributes:
        call: The model call.
        prices: The model's prices.
        meta: The measures of the context; None until it is fetched.
        decoder: The decoder of the reply; None until the request is made.
        attempt: The attempt, with its times.
        reduced: The request without what its provider has refused; None until it is made.
        note_growth: Called when more was read; None: nobody is told.
    """

    def __init__(self, call: CallModel, prices: Prices, number: int) -> None:
        self.call = call
        self.prices = prices
        self._number = number
        self.note_growth: Callable[[], None] | None = None
        self.meta: ContextMeta | None = None
        self.decoder: RedactedDecoder | None = None
        self.reduced: Reduced | None = None
        self.attempt = RunningAttempt()

    @cached_property
    def earlier_usage(self) -> Usage | None:
        """The usage of earlier attempts, whose replies were lost or unusable; None: they used nothing."""
        return _read_earlier_usage(activity.info().heartbeat_details)

    def describe(self) -> tuple[Any, ...]:
        """Make a heartbeat's details: a `ReplyProgress`, and once the reply has begun the answer without its text.

        If no attempt follows, the session makes the interrupted reply of both. The next attempt reads the usage of
        earlier ones, which is the third, and why they have failed, the fourth; they stand there if there are any.
        """
        text, thinking = self.text, self.thinking
        progress = self.show(
            max(len(text) - MAX_STREAMED_CHARACTERS, 0), max(len(thinking) - MAX_STREAMED_CHARACTERS, 0)
        ).as_dict()
        earlier = (self.earlier_usage and self.earlier_usage.as_dict(), self._faults or None)
        if not self.has_begun:
            return (progress, None, *earlier) if any(earlier) else (progress,)
        answer = self._make_interrupted("", (len(text) + len(thinking)) // CHARACTERS_PER_TOKEN, None)
        # Their size has no bound, and only audits need them.
        answer = answer.model_copy(update={"truncated_tool_results": None, "fitting": None})
        return progress, answer.model_dump(mode="json", exclude_defaults=True), *(earlier if any(earlier) else ())

    def show(self, text_from: int, thinking_from: int) -> ReplyProgress:
        """Show what was read, from these characters on."""
        return ReplyProgress(
            request_id=self.call.request_id,
            run_id=self.call.run_id,
            call_id=self.call.call_id,
            attempt=self._number,
            iteration=self.call.iteration,
            offset=text_from,
            text=self.text[text_from:],
            thinking_offset=thinking_from,
            thinking=self.thinking[thinking_from:] or None,
            tool_name=self.decoder.tool_name if self.decoder else None,
        )

    def note_fault(self, fault: str) -> int:
        """Note why this attempt comes to nothing. Returns how many attempts of the call have, for this reason.

        An attempt that was lost with its worker, or that failed otherwise, does not count. The next heartbeat has it.
        """
        self._faults[fault] = self._faults.get(fault, 0) + 1
        return self._faults[fault]

    @cached_property
    def _faults(self) -> dict[str, int]:
        return _read_faults(activity.info().heartbeat_details)

    @property
    def text(self) -> str:
        """The text that was read so far."""
        return self.decoder.text if self.decoder else ""

    @property
    def thinking(self) -> str:
        """The reasoning that was read so far."""
        return self.decoder.thinking if self.decoder else ""

    async def interrupt(self, *, keeps_text: bool = True) -> ModelAnswered | None:
        """Make the answer from what was read so far, and count it; None: nothing was read or paid for.

        It has neither tool calls, which may be incomplete, nor thinking, which providers take back signed alone.
        """
        if self.decoder is None or not (self.has_begun or self.earlier_usage):
            return None
        text, thinking = self.decoder.text, self.decoder.thinking
        message = AssistantMessage(context_ref="", role="assistant", content=text, interrupted=True)
        _, tokens = await count_tokens(message, self.call.encoding)
        encoding = load_encoding(self.call.encoding)
        output_tokens = await asyncio.to_thread(lambda: encoding.count(text) + encoding.count(thinking))
        answer = self._make_interrupted(text if keeps_text else "", output_tokens, tokens)
        return answer.model_copy(update={"reply": fit_reply(answer.reply)})

    async def complete_usage(self, reply: ModelReply, searches: int = 0) -> ModelReply:
        """Estimate what the provider has not reported of a complete reply's usage, and add the cost.

        `searches`: the web searches that the provider has run itself.
        """
        usage = reply.usage
        if not (usage.input_tokens and usage.output_tokens):
            encoding, texts = load_encoding(self.call.encoding), (reply.text, reply.thinking or "")
            tokens = await asyncio.to_thread(lambda: sum(map(encoding.count, texts)))
            media = map(find_formula(self.call.model).count, list_media(reply.content))
            usage = self._estimate_usage(tokens + sum(media))
        return reply.model_copy(update={"usage": add_cost(self.prices, usage, searches)})

    def make_answer(
        self, reply: ModelReply, *, tokens: int | None, schema_problem: str | None = None
    ) -> ModelAnswered:
        """Make the answer of the model call from a reply and the measures of the context."""
        meta, fitting = self.meta, self.decoder.fitting if self.decoder else None
        sent, reduced = self.decoder.sent if self.decoder else None, self.reduced
        assert meta is not None, "a reply has a context"
        if reduced and sent:
            fitting, sent = reduced.describe(fitting), replace(sent, refused=reduced.refused)
        return ModelAnswered(
            reply=reply,
            prices=self.prices,
            digest=meta.digest,
            policy_hash=meta.policy_hash,
            input_tokens=meta.estimated_tokens,
            attempt=self._number,
            epoch=meta.epoch,
            shared_prefix_tokens=meta.shared_prefix_tokens,
            cleared_tool_results=meta.cleared_tool_results,
            cleared_media=meta.cleared_media,
            truncated_tool_results=meta.truncated_tool_results,
            schema_problem=schema_problem,
            needs_summary=meta.needs_summary,
            tokens=tokens,
            earlier_usage=self.earlier_usage,
            request=sent,
            fitting=fitting if fitting and fitting != Fitting(dialect=fitting.dialect) else None,
        )

    @property
    def has_begun(self) -> bool:
        """Whether the provider has begun to reply."""
        return self.has_content or (self.decoder is not None and self.decoder.usage != Usage())

    @property
    def has_content(self) -> bool:
        """Whether something of the reply was read. Of a prompt that is refused, there may be usage alone."""
        decoder = self.decoder
        return decoder is not None and bool(decoder.text or decoder.thinking or decoder.tool_name)

    def _make_interrupted(self, content: str, output_tokens: int, tokens: int | None) -> ModelAnswered:
        usage = self._estimate_usage(output_tokens) if self.has_begun else Usage()
        return self.make_answer(ModelReply(content=content, stop_reason="interrupted", usage=usage), tokens=tokens)

    def _estimate_usage(self, output_tokens: int) -> Usage:
        """Estimate the usage: what the provider has not reported is counted as it has counted before."""
        decoder, meta, ratio = self.decoder, self.meta, self.call.token_ratio or 1
        assert decoder is not None
        assert meta is not None
        reported = decoder.usage
        if not (decoder.ended and reported.input_tokens and reported.output_tokens):
            output_tokens += decoder.arguments_size // CHARACTERS_PER_TOKEN
            reported = reported.model_copy(
                update={
                    "input_tokens": reported.input_tokens or round(meta.estimated_tokens * ratio),
                    "output_tokens": max(reported.output_tokens, round(output_tokens * ratio)),
                    "estimated_calls": 1,
                }
            )
        return add_cost(self.prices, reported)


def _read_earlier_usage(details: Sequence[Any]) -> Usage | None:
    """Read the usage of all earlier attempts from the last heartbeat of the one before; None: nothing was used."""
    usage = Usage()
    with suppress(ValueError):
        if len(details) > 1 and details[1]:
            usage = usage.plus(ModelAnswered.model_validate(details[1]).reply.usage)
        if len(details) > 2 and details[2]:
            usage = usage.plus(Usage.model_validate(details[2]))
    return usage if usage != Usage() else None


def _read_faults(details: Sequence[Any]) -> dict[str, int]:
    """Read from the last heartbeat of the attempt before how many attempts have failed for each reason."""
    with suppress(IndexError, ValueError):
        return _FAULTS.validate_python(details[3])
    return {}


async def count_reply(reply: ModelReply, call: CallModel) -> int:
    """Count the tokens of a reply's message."""
    calls = number_tool_calls(reply.tool_calls, call.earlier_tool_calls)
    message = make_reply_message(
        reply.content, calls or None, reply.provider_data, is_paused=reply.stop_reason == "paused"
    )
    return await offload(len(to_json(message)), load_encoding(call.encoding).count_message, message)


def add_cost(prices: Prices, usage: Usage, searches: int = 0) -> Usage:
    """Add the cost to a usage, if the model's prices are known."""
    return usage.model_copy(update={"cost_usd": compute_cost_usd(prices, usage, searches)})


def count_searches(reply: ModelReply) -> int:
    """Count the web searches that the provider has run for a reply. It does not charge for those that failed."""
    return sum(call["tool"] == "web_search" and "error" not in call for call in reply.provider_calls)


def fit_reply(reply: ModelReply) -> ModelReply:
    """Reduce a reply until it fits into one payload. A character that JSON escapes takes up to six bytes.

    Dropped in this order: the thinking, the calls of the provider's tools and the citations, the provider's data, the
    tool calls' arguments. Then the text is truncated, with a mark.
    """
    reductions: tuple[dict[str, Any], ...] = (
        {"thinking": None},
        {"provider_calls": (), "citations": ()},
        {"provider_data": None},
        {"tool_calls": tuple(RequestedTool(name=tool.name, malformed="[too large]") for tool in reply.tool_calls)},
        {"content": reply.text[: MAX_REPLY_BYTES // 8] + "[truncated]"},
    )
    for fields in reductions:
        if len(to_json(reply)) <= MAX_REPLY_BYTES:
            break
        reply = reply.model_copy(update=fields)
    return reply
