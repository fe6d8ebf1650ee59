"""The Conversations API: a conversation is a session, and its id the session's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from clew.serve.access import TENANT, Authorized, Caller
from clew.serve.openai import asks, bodies, ids, turns
from clew.serve.openai.frames import read_time
from clew.serve.openai.items import ITEM_REF, REPAIR, ThreadItems, list_snapshot_items
from clew.serve.openai.objects import ConversationObject, DeletedObject, ItemObject, ItemsPage
from clew.serve.openai.refusals import InvalidValue, NotStored, UnsupportedValue
from clew.serve.openai.routes import IdempotencyKey, make_page, read_body
from clew.serve.worker_watch import WatchedRoute
from clew.session import Session
from clew_workflows.contract.errors import Busy, RequestReused
from clew_workflows.contract.payloads import ConfigPayload, MessagePayload, OperationPayload, UserMessage

AGENT = "clew.agent"
"""The metadata of a new conversation that names its agent."""
REQUEST = "clew.request"
"""The metadata that keeps what was asked for with a key, to recognize a repetition."""

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=WatchedRoute)


@router.post("", operation_id="createConversation", response_model=ConversationObject)
async def create_conversation(
    caller: Authorized,
    body: Annotated[bodies.ConversationCreate, read_body(bodies.ConversationCreate)],
    key: IdempotencyKey = None,
) -> Response:
    """Create a conversation, with the agent that its metadata names, or the only one of the key.

    Without an agent its first response sets its model.
    """
    session_id = ids.make_session_id(key)
    said = _read_items(body.items or [])
    metadata, digest = dict(body.metadata or {}), asks.digest_body(body)
    if key is not None:
        metadata[REQUEST] = digest
    only = caller.key.agents[0] if caller.key.agents and len(caller.key.agents) == 1 else None
    agent = metadata.get(AGENT) or only
    if agent is not None:
        session = await caller.open(
            session_id, agent=agent, metadata=metadata, idle_timeout_seconds=turns.IDLE_SECONDS
        )
    else:
        scoped = caller.scope(session_id)
        await caller.check_room(scoped)
        # No worker has a model of this name, and so no key need permit it.
        session = await caller.clew.open(
            scoped,
            model=turns.NO_MODEL,
            metadata=caller.add_tenant(metadata),
            idle_timeout_seconds=turns.IDLE_SECONDS,
        )
    if key is not None and (await session.status()).metadata.get(REQUEST, digest) != digest:
        raise RequestReused("the Idempotency-Key was used for another conversation: send a key of its own")
    if said:
        await session.replace_context(asks.make_snapshot(said), op_id="items")
    return JSONResponse(_make_conversation(session_id, body.metadata or {}, time.time()))


@router.get("/{conversation_id}", operation_id="getConversation", response_model=ConversationObject)
async def get_conversation(caller: Authorized, conversation_id: str) -> Response:
    """Read a conversation."""
    return JSONResponse(await _read_conversation(caller, conversation_id))


@router.post("/{conversation_id}", operation_id="updateConversation", response_model=ConversationObject)
async def update_conversation(
    caller: Authorized,
    conversation_id: str,
    body: Annotated[bodies.ConversationUpdate, read_body(bodies.ConversationUpdate)],
) -> Response:
    """Replace the metadata of a conversation."""
    session, _ = await turns.resume(caller, conversation_id)
    await session.configure(metadata=caller.add_tenant(body.metadata))
    made = await _read_conversation(caller, conversation_id)
    return JSONResponse(made | {"metadata": body.metadata or {}})


@router.delete("/{conversation_id}", operation_id="deleteConversation", response_model=DeletedObject)
async def delete_conversation(caller: Authorized, conversation_id: str) -> Response:
    """Delete a conversation: end its session, and delete all of it."""
    await caller.clew.delete(caller.scope(conversation_id))
    return JSONResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/{conversation_id}/items", operation_id="listConversationItems", response_model=ItemsPage)
async def list_items(
    caller: Authorized,
    conversation_id: str,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    include: Annotated[list[str] | None, Query()] = None,  # noqa: ARG001 - what there is, is always included
) -> Response:
    """List the items of a conversation."""
    listed = await _read_items_of(caller.session(conversation_id), conversation_id)
    return JSONResponse(make_page(listed, after, limit, order))


@router.post("/{conversation_id}/items", operation_id="createConversationItems", response_model=ItemsPage)
async def create_items(
    caller: Authorized, conversation_id: str, body: Annotated[bodies.ItemsCreate, read_body(bodies.ItemsCreate)]
) -> Response:
    """Add items to a conversation, without a response. Its context becomes a snapshot of all its messages."""
    said = _read_items(body.items)
    session, status = await turns.resume(caller, conversation_id)
    if status.status not in ("idle", "preparing"):
        raise Busy(f"conversation {conversation_id!r} has a response in progress")
    made = ids.make_request_id(None)
    op_id = f"items-{made}"
    refs = [{ITEM_REF: ids.encode(ids.MESSAGE, conversation_id, f"#{op_id}.{n}")} for n, _ in enumerate(said)]
    known = await _read_messages(session, conversation_id)
    added = asks.make_snapshot(said, refs, calls=f"{made}-")
    await session.replace_context([*known, *added], op_id=op_id)
    before = sum(1 for message in known for _ in list_snapshot_items(conversation_id, 0, 0, message))
    listed = (await _read_items_of(session, conversation_id))[before:]
    return JSONResponse(make_page(listed, None, len(listed), "asc"))


@router.get("/{conversation_id}/items/{item_id}", operation_id="getConversationItem", response_model=ItemObject)
async def get_item(
    caller: Authorized,
    conversation_id: str,
    item_id: str,
    include: Annotated[list[str] | None, Query()] = None,  # noqa: ARG001 - what there is, is always included
) -> Response:
    """Read an item of a conversation."""
    listed = await _read_items_of(caller.session(conversation_id), conversation_id)
    for item in listed:
        if item["id"] == item_id:
            return JSONResponse(item)
    raise NotStored(f"Item with id '{item_id[:200]}' not found in conversation '{conversation_id}'.")


@router.delete(
    "/{conversation_id}/items/{item_id}", operation_id="deleteConversationItem", response_model=ConversationObject
)
async def delete_item(caller: Authorized, conversation_id: str, item_id: str) -> Response:  # noqa: ARG001
    """Refuse to delete an item: what was said stays said."""
    raise UnsupportedValue("items of a conversation are not deleted: delete the conversation", param="item_id")


def _read_items(given: list[Any]) -> list[asks.Said]:
    said, decisions = asks.read_items(given)
    if decisions:
        raise InvalidValue("decisions are sent with a response", param="items")
    if any(one.role in ("system", "developer") for one in said):
        raise UnsupportedValue(
            "a conversation has no messages of the system: send `instructions` with each response", param="items"
        )
    return said


async def _read_conversation(caller: Caller, conversation_id: str) -> dict[str, Any]:
    session = caller.session(conversation_id)
    configs = await session.entries(kind="config")
    if configs:
        metadata = configs[-1].read(ConfigPayload).metadata
        return _make_conversation(conversation_id, metadata, read_time(configs[0].at))
    status = await session.status()
    return _make_conversation(conversation_id, status.metadata, time.time())


def _make_conversation(name: str, metadata: Mapping[str, str], created_at: float) -> dict[str, Any]:
    own = {key: value for key, value in metadata.items() if key not in (TENANT, REQUEST)}
    return {"id": name, "object": "conversation", "created_at": int(created_at), "metadata": own}


async def _read_items_of(session: Session, name: str) -> list[dict[str, Any]]:
    """Read the items of a session's conversation, oldest first."""
    made, functions = ThreadItems(name), frozenset[str]()
    async for entry in session.read():
        if isinstance(config := entry.body, ConfigPayload):
            functions = frozenset(tool["name"] for tool in config.external_tools or ())
        else:
            made.take(entry, functions)
    return made.items


async def _read_messages(session: Session, name: str) -> list[dict[str, Any]]:
    """Read the messages of a conversation, as those of a snapshot. Each keeps the id of its item."""
    messages: list[dict[str, Any]] = []
    async for entry in session.read():
        match entry.body:
            case OperationPayload() as operation:
                snapshot = operation.snapshot
                if snapshot is not None and not getattr(operation.operation, "is_compaction", False):
                    messages = [dict(message) for message in snapshot.messages]
            case UserMessage(source=source) if source == REPAIR:
                messages.pop()
            case MessagePayload() as message:
                call_id = entry.refs.get("call_id")
                is_reply = message.role == "assistant" and call_id
                own = ids.encode(ids.MESSAGE, name, str(call_id)) if is_reply else ids.name_seq(name, entry.seq)
                shown: dict[str, Any] = {**message.message}
                messages.append({**shown, "refs": {ITEM_REF: own}})
    return messages
