"""Contexts for clients: of any call and at any seq, of sessions wherever they are."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew.context.contexts import build_context, rebuild_context, take_page
from clew.context.loading import load_thread
from clew.context.projection import Projection
from clew.contract import ReadContextInput
from clew.contract.payloads import Recipe, UserMessage
from clew.errors import Archived, ClewError, InvalidInput
from clew.thread.source import FrozenThread
from clew_activities.archive import Archive
from clew_activities.archive_activities import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.thread_source import ThreadLocation, Threads, query_started_session
from clew_workflows.core import previews
from clew_workflows.core.budgets import make_call_policy
from clew_workflows.shell import ingress


class ContextActivities:
    """Projects threads for clients, with the code that the sessions themselves project them with."""

    def __init__(self, archive: Archive) -> None:
        self._threads = Threads(archive)

    @activity.defn(name="read_context")
    async def read_context(self, asked: ReadContextInput) -> dict[str, Any]:
        """One page of a context."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            location = await self._threads.find(asked.session_id)
            try:
                return await self._page(location, asked)
            except ClewError as error:
                raise ingress.make_application_error(error) from None

    async def _page(self, location: ThreadLocation, asked: ReadContextInput) -> dict[str, Any]:
        if asked.pending is not None:
            # A session that lives knows what a call would be like; what it holds of its past may not be enough.
            return await _asked_of_session(location, asked) or take_page(
                await self._preview(location, asked), asked.page
            )
        if asked.call_id is None:
            return take_page(await self._projected(location, asked), asked.page)
        back = await self._threads.freeze(location)
        if (recipe := await _recipe_of(back, asked.call_id)) is not None:
            return take_page(await _projected_for(back, recipe), asked.page)
        # Of a call that is being made only the session knows.
        if location.running and (page := await _asked_of_session(location, asked)):
            return page
        raise InvalidInput(f"no model call {asked.call_id!r}: calls are named by `call_id` in the entries' refs")

    async def _projected(self, location: ThreadLocation, asked: ReadContextInput) -> Projection:
        back, own = await self._threads.freeze(location, asked.at_seq), asked.context_policy
        thread = await load_thread(back, asked.context_ref, lambda in_force: in_force.overlay(own))
        return build_context(thread, context_ref=asked.context_ref, policy=own)

    async def _preview(self, location: ThreadLocation, asked: ReadContextInput) -> Projection:
        state = (await self._threads.read_carried(location)).state
        own = make_call_policy(state, previews.make_preview_request(state, asked))
        back = await self._threads.freeze(location, asked.at_seq)
        thread = await load_thread(back, asked.context_ref, lambda in_force: in_force.overlay(own))
        return previews.build_preview(state, thread, asked, asked.pending or ())


async def _asked_of_session(location: ThreadLocation, asked: ReadContextInput) -> dict[str, Any] | None:
    """What the session itself answers; None where it does not hold enough for that."""
    if location.live is None:
        return None
    query = asked.model_dump(mode="json", exclude_unset=True, exclude={"session_id"})
    try:
        return await query_started_session(location.live, "context", query)
    except ApplicationError as error:
        if error.type != Archived.type:
            raise
        return None


async def _recipe_of(back: FrozenThread, call_id: str) -> Recipe | None:
    """The recipe of a model call, which is on its reply. The results of its tools name the call as well."""
    async for entry in back.read("ai_message"):
        if entry.refs.get("call_id") == call_id and entry.recipe:
            return entry.recipe
    return None


async def _projected_for(back: FrozenThread, recipe: Recipe) -> Projection:
    """What a call was shown, made again by its recipe."""
    basis = back.truncate(recipe.basis_seq)
    thread = await load_thread(basis, recipe.context_ref, lambda in_force: in_force.overlay(recipe.policy))
    schema: dict[str, Any] | None = None
    if (seq := recipe.output_schema_seq) is not None:
        async for entry in basis.read("ai_message", from_seq=seq, to_seq=seq):
            schema = entry.read(UserMessage).output_schema
    return rebuild_context(thread, recipe, schema)
