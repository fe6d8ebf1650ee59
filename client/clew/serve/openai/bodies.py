"""The bodies of requests, as the API has them. A field that is not here is unknown, or refused by `fields`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

from clew_workflows.contract.config import ReasoningEffort, ServiceTier
from clew_workflows.contract.invalid import Form

Metadata = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]
"""Names and values of the caller's own."""
Identifier = Annotated[str, StringConstraints(max_length=128)]
FunctionName = Annotated[str, Form(r"^[A-Za-z0-9_-]{1,64}$", "a name has 1 to 64 letters, digits, '_' and '-'")]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


NEUTRAL: tuple[Any, ...] = (None, False, 0, 0.0, "", {}, [])
"""Values of fields that are not served, and that say what is the case anyway. Some clients always send them."""


class Body(BaseModel):
    """The base of what a caller sends. A field that is not served may have a neutral value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: part for name, part in value.items() if name in known or part not in NEUTRAL}


class Lenient(BaseModel):
    """The base of items that callers send back as they got them, with fields that say nothing new."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# Parts of messages.


class Part(Body):
    """The base of parts. Where a prompt's cache ends is the session's to say."""

    prompt_cache_breakpoint: dict[str, Any] | None = None


class InputText(Part):
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


class InputImage(Part):
    """An image: a data URL, an address that the provider fetches, or a blob of the session by its digest."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class InputFile(Part):
    """A file: its bytes as a data URL or in base64, or a blob of the session by its digest."""

    type: Literal["input_file"]
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Literal["auto"] | None = None


class AudioData(Body):
    """A recording in base64."""

    data: str
    format: Literal["mp3", "wav"]


class InputAudio(Part):
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
    content: str | list[InputPart] | None
    id: str | None = None


class FunctionCallItem(Lenient):
    """A call of a function, in an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: ToolName
    arguments: str | None = None
    id: str | None = None


class CustomCallItem(Lenient):
    """A call of a tool whose input is a text, in an earlier response."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: ToolName
    input: str
    id: str | None = None


class HostCallItem(BaseModel):
    """A call of a tool of the caller's machine, in an earlier response. Fields of its own say what was to be done."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["computer_call", "local_shell_call", "shell_call", "apply_patch_call"]
    call_id: str
    id: str | None = None


class FunctionOutputItem(Lenient):
    """The result of a function."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | list[InputPart] | None
    id: str | None = None


class HostOutputItem(Lenient):
    """The result of a tool of the caller's machine. That of a local shell names its call by its own id."""

    type: Literal["computer_call_output", "local_shell_call_output", "shell_call_output", "apply_patch_call_output"]
    call_id: str | None = None
    id: str | None = None
    output: Any = None

    @model_validator(mode="after")
    def _check_call(self) -> Self:
        if self.call_id is None and self.id is None:
            raise ValueError("call_id names the call")
        return self


class ReferenceItem(Lenient):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: str


class ReasoningItem(Lenient):
    """The reasoning of an earlier response. The session has it, and gives it back to its provider itself."""

    type: Literal["reasoning"]
    id: str | None = None


class ApprovalItem(Lenient):
    """A person's decision about a call."""

    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str | None = None
    id: str | None = None


class ServerItem(Lenient):
    """What a server has done in an earlier response. The session knows its own; of others it reads what they say."""

    type: Literal[
        "mcp_call",
        "mcp_approval_request",
        "mcp_list_tools",
        "web_search_call",
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
    ]
    id: str
    name: ToolName | None = None
    arguments: str | None = None
    output: str | None = None
    error: Any = None
    code: str | None = None
    outputs: list[dict[str, Any]] | None = None
    queries: list[str] | None = None
    results: list[dict[str, Any]] | None = None
    revised_prompt: str | None = None
    result: str | None = None


Item = Annotated[
    MessageItem
    | FunctionCallItem
    | CustomCallItem
    | HostCallItem
    | FunctionOutputItem
    | HostOutputItem
    | ReferenceItem
    | ReasoningItem
    | ApprovalItem
    | ServerItem,
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
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    reasoning: ReasoningOptions | None = None
    tools: list[FunctionTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: Identifier | None = None
    truncation: Literal["auto"] | None = None
    user: Identifier | None = None
    safety_identifier: Identifier | None = None
    include: (
        list[
            Literal[
                "reasoning.encrypted_content",
                "file_search_call.results",
                "web_search_call.results",
                "web_search_call.action.sources",
                "code_interpreter_call.outputs",
                "computer_call_output.output.image_url",
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

    name: ToolName
    arguments: str | None = None


class CalledTool(Lenient):
    """A tool and its input as a text."""

    name: ToolName
    input: str


class ChatCall(Lenient):
    """A call of a function, or of a tool whose input is a text."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CalledTool | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if getattr(self, self.type) is None:
            raise ValueError(f"it has no '{self.type}'")
        return self


class SpokenReply(Lenient):
    """The recording of an earlier reply. Requests have its id, responses its transcript, too."""

    id: str | None = None
    transcript: str | None = None


class ChatMessage(Lenient):
    """A message of a chat. Fields that other servers add to theirs are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ChatPart] | None = None
    refusal: str | None = None
    audio: SpokenReply | None = None
    name: str | None = None
    tool_calls: list[ChatCall] | None = None
    function_call: CalledFunction | None = None
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
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
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


StopText = Annotated[str, StringConstraints(max_length=200)]


class ChatCreate(Body):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    tools: list[ChatTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    response_format: (
        Annotated[TextFormat | JsonObjectFormat | ChatSchemaFormat, Field(discriminator="type")] | None
    ) = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    stop: str | Annotated[list[StopText], Field(max_length=4)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: Literal[1] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: Identifier | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: Identifier | None = None
    safety_identifier: Identifier | None = None
