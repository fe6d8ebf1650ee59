"""Activities that read the thread and the contexts of any session for clients, archived and live parts as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew_activities.archive import Archive
from clew_activities.archive.archive_errors import translate_archive_errors
from clew_activities.archive.thread_source import ThreadLocation, Threads, query_started_session
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract import ReadContextInput, ReadThreadInput
from clew_workflows.contract.errors import Archived, ClewError, InvalidInput
from clew_workflows.contract.limits import MAX_PAGE_BYTES
from clew_workflows.contract.payloads import Recipe
from clew_workflows.host import ingress
from clew_workflows.session import views
from clew_workflows.session.budgets import make_call_policy
from clew_workflows.thread.context.archived import load_thread
from clew_workflows.thread.context.contexts import (
    OwnSettings,
    build_context,
    read_own_settings,
    rebuild_context,
    take_page,
)
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import FrozenThread, make_filter

MAX_SCANNED = 50_000
"""Most entries that are scanned for one page, so that a page of rare entries takes bounded time."""


class ReadingActivities:
    """Reads threads, and builds contexts with the sessions' own code."""

    def __init__(self, archive: Archive) -> None:
        self._threads = Threads(archive)

    @activity.defn(name="read_thread")
    async def read_thread(self, query: ReadThreadInput) -> dict[str, Any]:
        """Read one page of a thread. `next_seq` says where the next page begins or, with `newest`, ends."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            location = await self._threads.find(query.session_id)
            if query.newest is None:
                page = await _fill_page(self._threads.read_forward(location, query, query.to_seq), query, query.limit)
                return page.as_dict()
            page = await _fill_page(
                self._threads.read_backward(location, query, query.to_seq), query, query.newest, step=-1
            )
            page.rows.reverse()
            return page.as_dict()

    @activity.defn(name="read_context")
    async def read_context(self, request: ReadContextInput) -> dict[str, Any]:
        """Read one page of a context."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            location = await self._threads.find(request.session_id)
            try:
                return await self._read_page(location, request)
            except ClewError as error:
                raise ingress.make_application_error(error) from None

    async def _read_page(self, location: ThreadLocation, request: ReadContextInput) -> dict[str, Any]:
        if request.pending is not None:
            # A running session previews its own next call, unless it does not hold all the entries that this needs.
            return await _query_session(location, request) or take_page(
                await self._preview_call(location, request), request.page
            )
        if request.call_id is None:
            return take_page(await self._project(location, request), request.page)
        frozen = await self._threads.freeze(location)
        if (recipe := await _find_recipe(frozen, request.call_id)) is not None:
            return take_page(await project_call(frozen, recipe), request.page)
        # The recipe of a call that is running is not in the thread yet: only the session has it.
        if location.running and (page := await _query_session(location, request)):
            return page
        raise InvalidInput(f"no model call {request.call_id!r}: calls are named by `call_id` in the entries' refs")

    async def _project(self, location: ThreadLocation, request: ReadContextInput) -> Projection:
        frozen, policy = await self._threads.freeze(location, request.at_seq), request.context_policy
        thread = await load_thread(frozen, request.context_ref, lambda in_force: in_force.overlay(policy))
        return build_context(thread, context_ref=request.context_ref, policy=policy)

    async def _preview_call(self, location: ThreadLocation, request: ReadContextInput) -> Projection:
        state = (await self._threads.read_session(location)).state
        previewed = views.make_preview_request(state, request)
        policy = make_call_policy(state.settings, previewed)
        frozen = await self._threads.freeze(location, request.at_seq)
        thread = await load_thread(frozen, request.context_ref, lambda in_force: in_force.overlay(policy))
        return views.build_preview(state, thread, request, request.pending or ())


@dataclass(slots=True)
class _Page:
    rows: list[dict[str, Any]]
    next_seq: int | None = None

    def as_dict(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"entries": self.rows}
        return answer if self.next_seq is None else answer | {"next_seq": self.next_seq}


async def _fill_page(
    entries: AsyncIterator[Entry], query: ReadThreadInput, limit: int | None, step: int = 1
) -> _Page:
    """Fill a page with entries, read in one direction."""
    matches, room, scanned = make_filter(query), MAX_PAGE_BYTES, 0
    page = _Page([])
    following: int | None = None
    async for entry in entries:
        if matches(entry):
            row = entry.as_dict()
            room -= len(to_json(row)) + 1
            if page.rows and room < 0:
                following = entry.seq
                break
            page.rows.append(row)
        scanned += 1
        if len(page.rows) == limit or scanned == MAX_SCANNED:
            following = entry.seq + step
            break
    if following is not None and query.from_seq <= following and (query.to_seq is None or following <= query.to_seq):
        page.next_seq = following
    return page


async def _query_session(location: ThreadLocation, request: ReadContextInput) -> dict[str, Any] | None:
    """Query the session for a page; None: it is archived, or it does not hold all the entries that this needs."""
    if location.live is None:
        return None
    query = request.model_dump(mode="json", exclude_unset=True, exclude={"session_id"})
    try:
        return await query_started_session(location.live, "context", query)
    except ApplicationError as error:
        if error.type != Archived.type:
            raise
        return None


async def _find_recipe(frozen: FrozenThread, call_id: str) -> Recipe | None:
    """Find the recipe of a model call. The reply has it; the results of its tools have the same `call_id`."""
    async for entry in frozen.read("ai_message"):
        if entry.refs.get("call_id") == call_id and entry.recipe:
            return entry.recipe
    return None


async def project_call(frozen: FrozenThread, recipe: Recipe) -> Projection:
    """Build the context of a model call again by its recipe."""
    basis = frozen.truncate(recipe.basis_seq)
    thread = await load_thread(basis, recipe.context_ref, lambda in_force: in_force.overlay(recipe.policy))
    own: OwnSettings | None = None
    if (seq := recipe.settings_seq) is not None:
        for kind in ("ai_message", "approval"):
            async for entry in basis.read(kind, from_seq=seq, to_seq=seq):
                own = read_own_settings(entry)
    return rebuild_context(thread, recipe, own)
