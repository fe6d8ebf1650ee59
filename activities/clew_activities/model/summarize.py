"""The activity `summarize`: reads a part of a lane and has a model summarize it, in pieces if it is long.

`session.summaries` decides which model writes how much about what, `summary_calls` what each call is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew_activities.archive import Archive, ArchiveError
from clew_activities.archive.archive_errors import translate_archive_errors
from clew_activities.archive.thread_source import ThreadLocation, Threads
from clew_activities.heartbeats import send_heartbeats
from clew_activities.model.call_model import make_provider_failure
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels, find_family, find_prices
from clew_activities.model.reply_in_progress import add_cost
from clew_activities.model.summary_calls import (
    MIN_PIECE_TOKENS,
    EarlierCall,
    SummaryPlan,
    encode_earlier_calls,
    read_basis,
)
from clew_activities.offload import count_tokens
from clew_activities.providers import ModelRequest, ProviderError, Providers, RedactedDecoder, stream
from clew_activities.providers.provider_errors import ContextLengthExceeded
from clew_activities.tools.stored_results import MAX_STORED_BYTES
from clew_workflows.contract import EntriesQuery
from clew_workflows.contract.errors import NothingToSummarize
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import SentRequest, SummaryPayload
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.host.retries import MAX_WASTED_ATTEMPTS, WASTED
from clew_workflows.protocol import STORING_SECONDS, Summarize, WrittenSummary
from clew_workflows.thread.entries import Entry

PROMPT_TOKENS = 500
"""Tokens that are reserved for the instructions."""


class SummaryActivities:
    """Writes summaries: reads archived and live entries, and calls models through one HTTP client."""

    def __init__(
        self,
        providers: Providers,
        http: httpx.AsyncClient,
        archive: Archive,
        threads: Threads,
        own_models: OwnModels = NO_OWN_MODELS,
    ) -> None:
        self._own_models = own_models
        self._providers = providers
        self._http = http
        self._archive = archive
        self._threads = threads

    @activity.defn(name="summarize")
    async def summarize(self, request: Summarize) -> WrittenSummary:
        """Summarize a lane from one seq to another. What does not fit into one call is summarized in pieces.

        Raises:
            ApplicationError: The provider's failure; `nothing_to_summarize`: all messages were withdrawn; or
                `unusable_summary`: the summary is empty, or no shorter than the text that it summarizes.
        """
        encoding = load_encoding(request.encoding)
        async with send_heartbeats(lambda: [{"summary_id": request.summary_id}]), translate_archive_errors():
            location = await self._threads.find(activity.info().workflow_id or "")
            basis = await self._read_basis(location, request)
            piece_tokens = _compute_piece_tokens(request, self._own_models)
            plan = await asyncio.to_thread(SummaryPlan, request, basis, piece_tokens, encoding)
            usage = Usage()
            async for entry in self._read_entries(location, request):
                await asyncio.to_thread(plan.add, entry)
                usage = usage.plus(await self._make_calls(request, plan))
            plan.is_complete = True
            usage = usage.plus(await self._make_calls(request, plan))
            if not plan.calls:
                message = "the range has no message that was not withdrawn"
                raise ApplicationError(message, type=NothingToSummarize.type, non_retryable=True)
            tokens = await asyncio.to_thread(encoding.count, plan.text)
            if tokens >= max(plan.source_tokens, 1):
                message = f"the summary has {tokens} tokens, and its source {plan.source_tokens}"
                raise ApplicationError(message, type="unusable_summary", non_retryable=True)
            _, entry_tokens = await count_tokens(_make_payload(request, plan.text), request.encoding)
            earlier_calls = await self._store_calls(location, plan.calls[:-1])
        return WrittenSummary(
            content=plan.text,
            source_digest=plan.conversation.digest,
            source_tokens=plan.source_tokens,
            usage=usage,
            tokens=entry_tokens,
            recipe=plan.make_recipe(earlier_calls),
        )

    async def _read_basis(self, location: ThreadLocation, request: Summarize) -> str:
        """Read the text that stands for all earlier messages; empty if there is none."""
        if request.builds_on is None:
            return ""
        at = EntriesQuery(from_seq=request.builds_on)
        async for entry in self._threads.read_forward(location, at, request.builds_on):
            return read_basis(entry)
        return ""

    def _read_entries(self, location: ThreadLocation, request: Summarize) -> AsyncIterator[Entry]:
        query = EntriesQuery(from_seq=request.from_seq or 0, kind="ai_message", context_ref=request.context_ref)
        return self._threads.read_forward(location, query, request.to_seq)

    async def _make_calls(self, request: Summarize, plan: SummaryPlan) -> Usage:
        """Make the calls that are due. A piece that the provider refuses as too long is divided.

        Raises:
            ApplicationError: The provider's failure, or `unusable_summary`: a summary is empty.
        """
        usage = Usage()
        while call := plan.find_call():
            try:
                text, sent, spent = await self._call_model(request, call)
            except ContextLengthExceeded as error:
                if not await asyncio.to_thread(plan.shorten):
                    raise make_provider_failure(error) from None
                continue
            usage = usage.plus(spent)
            await asyncio.to_thread(plan.take_text, text, sent)
        return usage

    async def _call_model(self, request: Summarize, call: ModelRequest) -> tuple[str, SentRequest, Usage]:
        try:
            provider = self._providers.get(request.model.partition(":")[0])
            decoder = RedactedDecoder(provider.make_decoder(call), self._providers.redaction)
            reply = await stream(self._http, provider, call, decoder)
        except ContextLengthExceeded:
            raise
        except ProviderError as error:
            is_final = error.type in WASTED and activity.info().attempt >= MAX_WASTED_ATTEMPTS
            raise make_provider_failure(error, is_final=is_final) from None
        if not reply.text.strip():
            raise ApplicationError("the model wrote no summary", type="unusable_summary", non_retryable=True)
        assert decoder.sent, "a reply follows a request"
        usage = add_cost(find_prices(request.model, self._own_models), reply.usage)
        return reply.text.strip(), decoder.sent, usage.model_copy(update={"model_calls": 1})

    async def _store_calls(self, location: ThreadLocation, calls: list[EarlierCall]) -> str | None:
        """Store the calls before the last one. Returns their digest.

        The summary is paid for and written, so a failure of the store is logged: its requests cannot be made again.
        """
        if not calls:
            return None
        data = await asyncio.to_thread(encode_earlier_calls, calls)
        if len(data) > MAX_STORED_BYTES:
            activity.logger.warning("the earlier calls of a summary have %d bytes and are not stored", len(data))
            return None
        family = location.head.family if location.head else location.session_id
        try:
            async with asyncio.timeout(STORING_SECONDS):
                return await self._archive.put_result(family, data)
        except (ArchiveError, TimeoutError) as error:
            activity.logger.warning("the earlier calls of a summary could not be stored: %s", error)
            return None


def _make_payload(request: Summarize, summary: str) -> SummaryPayload:
    """Make the payload that the tokens of a summary's message are counted of."""
    return SummaryPayload(
        context_ref=request.context_ref,
        content=summary,
        format="text",
        from_seq=request.from_seq or 0,
        to_seq=request.to_seq or 0,
        model=request.model,
    )


def _compute_piece_tokens(request: Summarize, own_models: OwnModels) -> int:
    """Compute how many tokens of the conversation fit into one call: by the table, and by what was learned."""
    family = find_family(request.model, own_models)
    window = family.window if family else request.max_input_tokens
    room = int((window - request.max_output_tokens) / (request.token_ratio or 1))
    if request.learned_budget is not None:
        room = min(room, request.learned_budget)
    return max(room - PROMPT_TOKENS, MIN_PIECE_TOKENS)
