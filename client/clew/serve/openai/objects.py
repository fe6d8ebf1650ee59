"""The objects and events that the routes answer with, for the OpenAPI document. OpenAI's reference has the rest."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class ApiObject(BaseModel):
    """An object of the API. It may have more fields than these."""

    model_config = ConfigDict(extra="allow")


class ItemObject(ApiObject):
    """An item of a response or of a conversation, by its `type`."""

    id: str
    type: str


class ItemsPage(ApiObject):
    """A page of items."""

    object: Literal["list"]
    data: list[ItemObject]
    first_id: str
    last_id: str
    has_more: bool


class ResponseFailure(ApiObject):
    """Why a response has failed."""

    code: str
    message: str


class ResponseUsage(ApiObject):
    """The tokens of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class ResponseObject(ApiObject):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
    model: str
    output: list[ItemObject]
    error: ResponseFailure | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    metadata: dict[str, str]
    previous_response_id: str | None
    usage: ResponseUsage | None


class ResponseEvent(ApiObject):
    """An event of a response's stream, by its `type`."""

    type: str
    sequence_number: int


class DeletedObject(ApiObject):
    """What was deleted."""

    id: str
    object: str
    deleted: Literal[True]


class ConversationObject(ApiObject):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class CompletionChoice(ApiObject):
    """The answer of a completion."""

    index: int
    message: dict[str, Any]
    finish_reason: str


class CompletionObject(ApiObject):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: dict[str, Any] | None


class ChunkChoice(ApiObject):
    """What a chunk adds to the answer."""

    index: int
    delta: dict[str, Any]
    finish_reason: str | None


class CompletionChunk(ApiObject):
    """The data of an event of a completion's stream. The last event is `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]


class ModelObject(ApiObject):
    """An agent or a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsPage(ApiObject):
    """The agents and the models that a key may use."""

    object: Literal["list"]
    data: list[ModelObject]
