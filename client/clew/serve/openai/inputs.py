"""The bodies of requests, as the API has them. A field that is not here is unknown, or refused by `fields`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from clew_workflows.contract.config import ReasoningEffort

Metadata = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]
"""Names and values of the caller's own."""
Identifier = Annotated[str, StringConstraints(max_length=128)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Body(BaseModel):
    """The base of what a caller sends."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Lenient(BaseModel):
    """The base of items that callers send back as they got them, with fields that say nothing new."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# Parts of messages.


class InputText(Body):
    """A text."""

    type: Literal["input_text", "text"]
    text: str


class OutputText(Lenient):
    """A text of an earlier reply."""

    type: Literal["output_text"]
    text: str


class Refusal(Lenient):
    """The text with which a model refused."""

    type: Literal["refusal"]
    refusal: str


class InputImage(Body):
    """An image: a data URL, an address that the provider fetches, or a blob of the session by its digest."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class InputFile(Body):
    """A file: its bytes as a data URL or in base64, or a blob of the session by its digest."""

    type: Literal["input_file"]
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class AudioData(Body):
    """A recording in base64."""

    data: str
    format: Literal["mp3", "wav"]


class InputAudio(Body):
    """A recording."""

    type: Literal["input_audio"]
    input_audio: AudioData


InputPart = Annotated[
    InputText | OutputText | Refusal | InputImage | InputFile | InputAudio, Field(discriminator="type")
]
"""A part of a message of the Responses API."""


# Items of the Responses API.


class MessageItem(Lenient):
    """A message: a new one, or one of the conversation so far."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    id: str | None = None


class FunctionCallItem(Lenient):
    """A call of a function, in an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None


class FunctionOutputItem(Lenient):
    """The result of a function."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputPart]
    id: str | None = None


class ReferenceItem(Lenient):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: str


class ReasoningItem(Lenient):
    """The reasoning of an earlier response. The session has it, and gives it back to its provider itself."""

    type: Literal["reasoning"]
    id: str


class ApprovalItem(Lenient):
    """A person's decision about a call."""

    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str | None = None
    id: str | None = None


class ServerItem(Lenient):
    """An item of an earlier response that the session has made and knows."""

    type: Literal["mcp_call", "mcp_approval_request", "mcp_list_tools", "web_search_call", "code_interpreter_call"]
    id: str


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReferenceItem | ReasoningItem | ApprovalItem | ServerItem,
    Field(discriminator="type"),
]
"""An item of an input."""
items: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


# The Responses API.


class FunctionTool(Body):
    """A function of the caller's."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Body):
    """The choice of one function."""

    type: Literal["function"]
    name: str


class TextFormat(Body):
    """A text without a form."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that meets a schema."""

    type: Literal["json_schema"]
    name: FunctionName
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    """The form and the length of the answer."""

    format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Body):
    """The amount of reasoning."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ConversationName(Body):
    """The conversation of a response."""

    id: str


class StreamOptions(Body):
    """Options of a stream."""

    include_obfuscation: Literal[False] | None = None


ServiceTier = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")]


class ResponseCreate(Body):
    """The body of `POST /v1/responses`."""

    model: str | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    conversation: str | ConversationName | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    text: TextOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    reasoning: ReasoningOptions | None = None
    tools: list[FunctionTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: Literal[True] | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: Identifier | None = None
    truncation: Literal["auto"] | None = None
    user: Identifier | None = None
    safety_identifier: Identifier | None = None
    include: (
        list[
            Literal[
                "reasoning.encrypted_content",
                "web_search_call.action.sources",
                "code_interpreter_call.outputs",
                "message.input_image.image_url",
            ]
        ]
        | None
    ) = None


class ConversationCreate(Body):
    """The body of `POST /v1/conversations`."""

    items: list[Any] | None = Field(default=None, max_length=20)
    metadata: Metadata | None = None


class ConversationUpdate(Body):
    """The body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None


class ItemsCreate(Body):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: list[Any] = Field(max_length=20)


# Chat Completions.


class ChatText(Lenient):
    """A text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """The address of an image, or its bytes as a data URL."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ChatImage(Lenient):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ChatAudio(Lenient):
    """A recording."""

    type: Literal["input_audio"]
    input_audio: AudioData


class ChatFileData(Body):
    """The bytes of a file as a data URL or in base64, or a blob of the session by its digest."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class ChatFile(Lenient):
    """A file."""

    type: Literal["file"]
    file: ChatFileData


class ChatRefusal(Lenient):
    """The text with which a model refused."""

    type: Literal["refusal"]
    refusal: str


ChatPart = Annotated[ChatText | ChatImage | ChatAudio | ChatFile | ChatRefusal, Field(discriminator="type")]
"""A part of a message of Chat Completions."""


class CalledFunction(Lenient):
    """A function and its arguments as JSON."""

    name: str
    arguments: str


class ChatCall(Lenient):
    """A call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Lenient):
    """A message of a chat. Fields that other servers add to theirs are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ChatPart] | None = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Body):
    """A function of the caller's."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Body):
    """A tool: a function of the caller's."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenName(Body):
    """The name of a chosen function."""

    name: str


class ChosenFunction(Body):
    """The choice of one function."""

    type: Literal["function"]
    function: ChosenName


class ChatSchema(Body):
    """A schema with its name."""

    name: FunctionName
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ChatSchemaFormat(Body):
    """JSON that meets a schema."""

    type: Literal["json_schema"]
    json_schema: ChatSchema


class ChatStreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatCreate(Body):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    tools: list[ChatTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: Literal[True] | None = None
    response_format: (
        Annotated[TextFormat | JsonObjectFormat | ChatSchemaFormat, Field(discriminator="type")] | None
    ) = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: Identifier | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: Identifier | None = None
    safety_identifier: Identifier | None = None
