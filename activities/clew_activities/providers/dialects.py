"""The table of dialects: what a server accepts and sends.

A server that calls itself compatible with OpenAI seldom takes all that OpenAI takes. So a provider has a dialect, the
first of these:

1. the one that `CLEW_PROVIDER_<NAME>_DIALECT` names,
2. the one of its host, such as `api.mistral.ai`,
3. the one of its name, such as `mistral`,
4. `strict`, which every server that is known accepts.

The family of a model changes the dialect further: `openai.models`.

A rule of a provider stands here, or in the codec of its format, and nowhere else. The page that a rule comes from is
named beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from clew_activities.providers.options import LOW_TO_HIGH, LOW_TO_MAX, LOW_TO_XHIGH
from clew_activities.providers.request_media import (
    COMMON_IMAGES,
    GIF,
    HEIC,
    JPEG,
    MP3,
    PDF,
    PNG,
    TEXTS_ALONE,
    WAV,
    WEBP,
    MediaForms,
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_COMMON_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NAMED_ID = re.compile(r"functions\.[a-zA-Z0-9_.-]{1,64}:\d{1,9}")


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """What a dialect accepts of tools.

    Attributes:
        count: The most tools of a request.
        name: The names of tools.
        name_characters: The longest name.
        description_characters: The longest description of a tool; None: any.
        property_name: The names of properties; None: any.
        keywords: The keywords of schemas that are accepted; None: all but those that are `refused`.
        refused: Keywords that are refused. `items as a list` is the tuple of older drafts.
        unsaid: Keywords that a description does not repeat when they are taken out.
        formats: The values of `format` that are accepted; None: all.
        references: Whether `$ref` is accepted.
        type_lists: Whether `type` may be a list.
        nullable: Whether `nullable` stands for a type that may be null.
        text_enums: Whether the values of `enum` are texts alone.
        typed: Whether every subschema needs a type.
        lone_unions: Whether nothing may stand beside `anyOf`.
        empty_parameters: Whether a tool without arguments may have a schema of them.
    """

    count: int = 128
    name: re.Pattern[str] = _NAME
    name_characters: int = 64
    description_characters: int | None = 1024
    property_name: re.Pattern[str] | None = None
    keywords: frozenset[str] | None = None
    refused: frozenset[str] = frozenset()
    unsaid: frozenset[str] = frozenset()
    formats: frozenset[str] | None = None
    references: bool = True
    type_lists: bool = True
    nullable: bool = False
    text_enums: bool = False
    typed: bool = False
    lone_unions: bool = False
    empty_parameters: bool = True

    def allows(self, keyword: str) -> bool:
        """Whether a schema may have a keyword."""
        return keyword not in self.refused and (self.keywords is None or keyword in self.keywords)


_PLAIN_TOOLS = ToolLimits(refused=frozenset({"items as a list"}))

# Keywords that at least one server's grammar cannot express. llama.cpp and vLLM make grammars of the arguments'
# schemas, and answer 400 to one that they cannot convert.
_STRICT_TOOLS = ToolLimits(
    keywords=_words(
        "type description title properties required additionalProperties items enum anyOf minimum maximum",
        "default",
    ),
    property_name=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
    references=False,
    type_lists=False,
    text_enums=True,
    typed=True,
    lone_unions=True,
    name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}"),
)

# Gemini: ai.google.dev/api/caching#Schema lists the fields of its own type `Schema`, to which the endpoint converts.
_GEMINI_TOOLS = replace(
    _STRICT_TOOLS,
    keywords=_words(
        "type format title description nullable enum items maxItems minItems properties required minimum",
        "maximum minLength maxLength pattern anyOf",
    ),
    unsaid=frozenset(("additionalProperties", "title", "examples")),
    formats=frozenset(("enum", "date-time", "int32", "int64", "float", "double")),
    nullable=True,
    # "parameters.properties: should be non-empty for OBJECT type"
    empty_parameters=False,
)

# Gemini's own API, whose `parametersJsonSchema` takes JSON Schema: ai.google.dev/api/caching#FunctionDeclaration.
# A reference that has something beside it is refused: "$ref was set alongside unsupported fields".
_GOOGLE_TOOLS = ToolLimits(
    count=512,
    name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
    description_characters=None,
    property_name=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
    refused=frozenset({"items as a list"}),
    references=False,
)

# Anthropic: platform.claude.com/docs/en/agents-and-tools/tool-use, and the pattern that its errors quote.
_ANTHROPIC_TOOLS = ToolLimits(
    count=10_000,
    name=re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    name_characters=128,
    description_characters=None,
    property_name=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
    refused=frozenset({"items as a list"}),
)

# Moonshot: its errors speak of "moonshot flavored json schema": every part has a type, and a union has its types
# inside.
_KIMI_TOOLS = replace(_STRICT_TOOLS, text_enums=False, property_name=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one server, or one family of models, accepts and sends. The defaults are the strictest.

    Attributes:
        name: The name, as `CLEW_PROVIDER_<NAME>_DIALECT` has it.
        system: Where system messages may stand: anywhere; first, and several; as one at the beginning; nowhere, so
            that their text precedes the first user's.
        alternates: Neighbours of one role, except for tool results, are refused.
        user_first: The first message after the system's must be a user's.
        user_last: The last message must not be an assistant's.
        bridges_results: A user's message right after a tool's result is refused.
        single_calls: An assistant's message with several tool calls is refused.
        ids: The ids of tool calls that are accepted, beside those that the same model has made.
        named_ids: Whether an id has the tool's name and the call's number: `functions.add:0`.
        names_results: A tool's message has the tool's name.
        fills_results: A tool's message must not be empty.
        omits_empty: An assistant's message with tool calls and without a text has no content.
        returned: The fields of an assistant's message with tool calls that go back as they came.
        call_fields: The fields of a tool call that go back as they came, beside its id; None: all.
        lone_reasoning: What goes back of the reasoning must not stand beside a text.
        required: The field that every assistant's message with tool calls must have. The text of another field with
            reasoning stands for it.
        required_of_all: The same holds for an assistant's message without tool calls.
        filler: The text of that field where it never came.
        signature: What stands for the signature of a tool call that another model has made, as fields of the first
            call of a message.
        tools: What is accepted of tools.
        declares_called_tools: Tools that were called earlier must be declared.
        token_limit: The name of the option that limits the reply.
        temperatures: The least and the highest temperature; others are raised or lowered to them.
        top_p: Beside which temperature `top_p` may stand: any, one above 0, or none.
        options_left_out: Options of Clew that are refused.
        efforts: The accepted values of `reasoning_effort`. Another one becomes the nearest of them.
        no_reasoning: The fields that turn reasoning off, where `none` is not among `efforts`; empty: none do.
        verbosity: Whether `verbosity` is accepted.
        parallel_choice: Whether `parallel_tool_calls` is accepted.
        service_tier: Whether `service_tier` is accepted.
        tools_effort: The `reasoning_effort` of requests with tools: as it is, left out, or `none`.
        seed: The name of the option `seed`.
        any_tool: The `tool_choice` that forces some tool.
        forces_tools: Whether some tool can be forced.
        forbids_tools: Whether `tool_choice` may be `none`; otherwise the request has no tools then.
        names_forced_tool: Whether one tool can be forced; otherwise the request has no other one.
        answer: How an answer's schema is sent: as a JSON Schema, as JSON of any kind with the schema in the prompt,
            or in the prompt alone.
        answer_with_tools: Whether the answer's schema may stand beside tools; otherwise it stands in the prompt.
        cache_key: Whether `prompt_cache_key` is accepted.
        asks_usage: Whether `stream_options` are accepted, without which most servers report no usage.
        media: What is accepted of images, recordings and files.
    """

    name: str
    system: Literal["anywhere", "first", "one", "user"] = "one"
    alternates: bool = True
    user_first: bool = True
    user_last: bool = True
    bridges_results: bool = True
    single_calls: bool = False
    ids: re.Pattern[str] = _SHORT_ID
    named_ids: bool = False
    names_results: bool = False
    fills_results: bool = True
    omits_empty: bool = False
    returned: tuple[str, ...] = (
        "content",
        "reasoning_content",
        "reasoning_details",
        "reasoning",
        "reasoning_text",
        "thinking_blocks",
    )
    call_fields: tuple[str, ...] | None = None
    lone_reasoning: bool = False
    required: str | None = None
    required_of_all: bool = False
    filler: str = " "
    signature: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolLimits = _STRICT_TOOLS
    declares_called_tools: bool = False
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperatures: tuple[float, float] = (0.0, 1.0)
    top_p: Literal["any", "sampling", "alone"] = "any"
    options_left_out: frozenset[str] = frozenset({"seed", "reasoning_effort"})
    efforts: tuple[str, ...] = ("minimal", "low", "medium", "high")
    no_reasoning: Mapping[str, Any] = field(default_factory=dict)
    verbosity: bool = False
    parallel_choice: bool = False
    service_tier: bool = False
    tools_effort: Literal["keep", "omit", "none"] = "keep"
    seed: str = "seed"
    any_tool: str = "required"
    forces_tools: bool = False
    forbids_tools: bool = True
    names_forced_tool: bool = False
    answer: Literal["json_schema", "json_object", "prompt"] = "json_schema"
    answer_with_tools: bool = False
    cache_key: bool = False
    asks_usage: bool = True
    media: MediaForms = TEXTS_ALONE


_MB = 1024 * 1024

# What every server that is known decodes, of those that show images to a model: llama.cpp's stb_image has no WebP.
_PLAIN_IMAGES = MediaForms(types=frozenset({JPEG, PNG}))

STRICT = Dialect(name="strict", media=_PLAIN_IMAGES)

# How APIs turn the thinking of a model off, and templates: vLLM and llama.cpp pass these variables on to them. A
# template has one of both.
THINKING_OFF: Mapping[str, Any] = {"thinking": {"type": "disabled"}}
_TEMPLATE_OFF: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}

_OPENAI = Dialect(
    name="openai",
    system="anywhere",
    alternates=False,
    user_first=False,
    user_last=False,
    bridges_results=False,
    ids=_COMMON_ID,
    fills_results=False,
    returned=(),
    call_fields=(),
    tools=_PLAIN_TOOLS,
    token_limit="max_completion_tokens",
    temperatures=(0.0, 2.0),
    options_left_out=frozenset(),
    forces_tools=True,
    names_forced_tool=True,
    answer_with_tools=True,
    cache_key=True,
    efforts=("none", "minimal", *LOW_TO_XHIGH),
    verbosity=True,
    parallel_choice=True,
    service_tier=True,
    # developers.openai.com/api/docs/guides/images-vision, /audio and /file-inputs: 50 MB a request.
    media=MediaForms(
        types=COMMON_IMAGES | {PDF, WAV, MP3}, image_urls=True, total_bytes=48 * _MB, counts={"image": 500}
    ),
)
"""developers.openai.com/api/reference, and the errors of its API."""

# Gemini 3 refuses a call whose signature is missing; ai.google.dev/gemini-api/docs/thought-signatures has the text
# that stands for the signature of a call by another model.
_FOREIGN_SIGNATURE = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}

# platform.claude.com/docs/en/build-with-claude/vision and /pdf-support: 32 MB a request, "image exceeds 10 MB
# maximum", "image dimensions exceed max allowed size for many-image requests: 2000 pixels".
_ANTHROPIC_MEDIA = MediaForms(
    types=COMMON_IMAGES | {PDF},
    image_urls=True,
    in_results=frozenset({"image", "pdf", "text"}),
    total_bytes=30 * _MB,
    part_bytes={"image": 10 * _MB},
    counts={"image": 100},
    side=8000,
    many=(20, 2000),
    text_documents=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDialect(Dialect):
    """What a server with Anthropic's Messages API accepts and sends. The defaults are the strictest.

    Attributes:
        is_claude: It serves Anthropic's models, with the features of each generation, and their signed thinking.
        caches: Where `cache_control` may stand: everywhere, in blocks and tools alone, or nowhere.
        thinking_off: The `thinking` of a request that wants none: `disabled`, or omitted.
        fills_thinking: A request that may think must have thinking in each assistant's message with tool calls, where
            another model has written it, too.
        takes_format: Whether `output_config.format` is accepted.
    """

    is_claude: bool = False
    caches: Literal["everywhere", "blocks", "nowhere"] = "nowhere"
    thinking_off: Literal["disabled", "omitted"] = "omitted"
    fills_thinking: bool = False
    takes_format: bool = False
    ids: re.Pattern[str] = _COMMON_ID
    declares_called_tools: bool = True


ANTHROPIC = MessagesDialect(
    name="anthropic",
    is_claude=True,
    caches="everywhere",
    takes_format=True,
    fills_results=False,
    tools=_ANTHROPIC_TOOLS,
    forces_tools=True,
    names_forced_tool=True,
    media=_ANTHROPIC_MEDIA,
)
"""Anthropic's own Messages API, whose codec makes the order of messages itself."""
MESSAGES_STRICT = MessagesDialect(name="strict", media=_PLAIN_IMAGES)
"""What every server that is known accepts."""

# With the names that Anthropic takes, of which the servers take at least these.
_MESSAGES_TOOLS = replace(_ANTHROPIC_TOOLS, count=128, name=_NAME, name_characters=64)

MESSAGES_DIALECTS: Mapping[str, MessagesDialect] = {
    dialect.name: dialect
    for dialect in (
        ANTHROPIC,
        MESSAGES_STRICT,
        # Gateways to Anthropic's models: fields of Anthropic's newest version, and of betas, are refused by some
        # ("cache_control: Extra inputs are not permitted", gh:BerriAI/litellm#22963), blocks with it by none.
        replace(ANTHROPIC, name="gateway", caches="blocks", takes_format=False),
        # api-docs.deepseek.com/guides/anthropic_api: no images, no documents, no `cache_control`; "The
        # `content[].thinking` in the thinking mode must be passed back to the API", which has no signature
        # (gh:NousResearch/hermes-agent#16748, gh:QuantumNous/new-api#4763).
        MessagesDialect(
            name="deepseek",
            thinking_off="disabled",
            fills_thinking=True,
            tools=_MESSAGES_TOOLS,
            temperatures=(0.0, 2.0),
            forces_tools=True,
            names_forced_tool=True,
        ),
        # "thinking is enabled but reasoning_content is missing in assistant tool call message"
        # (gh:anthropics/claude-code#37757), "invalid thinking: only type=enabled is allowed for this model"
        # (gh:MoonshotAI/Kimi-K2#141).
        MessagesDialect(
            name="kimi",
            fills_thinking=True,
            tools=replace(_KIMI_TOOLS, property_name=_ANTHROPIC_TOOLS.property_name),
            media=MediaForms(types=COMMON_IMAGES, total_bytes=90 * _MB),
        ),
        # docs.z.ai: `tool_choice` is `auto` alone, as in its other API.
        MessagesDialect(name="glm", thinking_off="disabled", forbids_tools=False),
        # platform.minimax.io/docs/api-reference/text-anthropic-api: no images, no documents, a temperature above 0;
        # all blocks of a reply come back.
        MessagesDialect(
            name="minimax",
            caches="blocks",
            tools=_MESSAGES_TOOLS,
            temperatures=(0.01, 1.0),
            forces_tools=True,
            names_forced_tool=True,
        ),
        # docs.ollama.com/api/anthropic-compatibility: no `tool_choice`, no `cache_control`, images as base64 alone.
        MessagesDialect(
            name="ollama",
            temperatures=(0.0, 2.0),
            forbids_tools=False,
            media=MediaForms(types=frozenset({JPEG, PNG, WEBP})),
        ),
        # github.com/vllm-project/vllm/pull/22627, and its vllm/entrypoints/anthropic/protocol.py
        MessagesDialect(
            name="vllm",
            temperatures=(0.0, 2.0),
            forces_tools=True,
            names_forced_tool=True,
            media=MediaForms(types=COMMON_IMAGES),
        ),
        # github.com/ggml-org/llama.cpp/pull/17570
        MessagesDialect(
            name="llamacpp",
            temperatures=(0.0, 2.0),
            forces_tools=True,
            forbids_tools=False,
            media=MediaForms(types=frozenset({JPEG, PNG, GIF})),
        ),
    )
}
"""All dialects of the Messages API, by their names."""

_MESSAGES_NAMES: Mapping[str, str] = {"litellm": "gateway", "openrouter": "gateway", "vercel": "gateway"}
_MESSAGES_HOSTS: Mapping[str, str] = {
    "anthropic.com": "anthropic",
    "ai-gateway.vercel.sh": "gateway",
    "gateway.ai.cloudflare.com": "gateway",
    "openrouter.ai": "gateway",
}


BEDROCK = Dialect(
    name="bedrock",
    ids=_COMMON_ID,
    declares_called_tools=True,
    tools=replace(_ANTHROPIC_TOOLS, name=_NAME, name_characters=64),
    # docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html: 20 images of 3.75 MB and 8 000 pixels
    # on a side, five documents of 4.5 MB, as bytes.
    media=MediaForms(
        types=COMMON_IMAGES | {PDF},
        in_results=frozenset({"image", "pdf", "text"}),
        total_bytes=25 * _MB,
        part_bytes={"image": 5 * _MB, "pdf": 6 * _MB},
        counts={"image": 20, "pdf": 5},
        side=8000,
    ),
)
"""Converse with Anthropic's models, whose schemas it passes on; its codec makes the order of messages itself."""
BEDROCK_OTHERS = replace(BEDROCK, tools=_STRICT_TOOLS, media=replace(BEDROCK.media, in_results=frozenset({"text"})))
"""Converse with all other models."""
RESPONSES = replace(
    _OPENAI,
    name="responses",
    ids=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    # developers.openai.com/api/docs/guides/images-vision and /file-inputs: 50 MB a request.
    media=MediaForms(
        types=COMMON_IMAGES | {PDF},
        image_urls=True,
        in_results=frozenset({"image", "pdf", "text"}),
        total_bytes=48 * _MB,
        counts={"image": 500},
    ),
)
"""OpenAI's Responses, which have a codec of their own; `CLEW_PROVIDER_<NAME>_DIALECT` names it like the others."""
GOOGLE = Dialect(
    name="google",
    fills_results=False,
    tools=_GOOGLE_TOOLS,
    temperatures=(0.0, 2.0),
    # ai.google.dev/gemini-api/docs/image-understanding, /audio, /document-processing and /file-input-methods: 100 MB
    # of inline data, 50 MB of PDF files. Only Gemini 3 has media in the response of a function.
    media=MediaForms(
        types=frozenset((JPEG, PNG, WEBP, HEIC, PDF, WAV, MP3, "audio/aac", "audio/ogg", "audio/flac", "audio/aiff")),
        in_results=frozenset({"image", "pdf", "text"}),
        total_bytes=95 * _MB,
        part_bytes={"pdf": 48 * _MB},
    ),
)
"""Gemini's own API, whose codec makes the order of messages itself."""

VERTEX = replace(GOOGLE, name="vertex", media=replace(GOOGLE.media, total_bytes=19 * _MB))
"""The same at Vertex AI, which does not combine its own tools with those of a session, and takes 20 MB a request."""

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        STRICT,
        _OPENAI,
        # Its content filter and versions differ, not what is used here; some versions lack `prompt_cache_key`.
        # learn.microsoft.com/azure/ai-foundry/openai/how-to/gpt-with-vision: ten images, and no files.
        replace(
            _OPENAI,
            name="azure",
            cache_key=False,
            media=MediaForms(
                types=COMMON_IMAGES | {WAV, MP3},
                image_urls=True,
                part_bytes={"image": 20 * _MB},
                counts={"image": 10},
            ),
        ),
        # The server of `clew.local` and `clew.testing`, which shows tests what a model would read.
        replace(_OPENAI, name="scripted", token_limit="max_tokens"),
        Dialect(
            name="gemini",
            # ai.google.dev/gemini-api/docs/openai: images and recordings, 20 MB a request.
            media=MediaForms(types=frozenset({JPEG, PNG, WEBP, HEIC, WAV, MP3}), total_bytes=19 * _MB),
            bridges_results=False,
            ids=_COMMON_ID,
            returned=("extra_content",),
            call_fields=("extra_content",),
            tools=_GEMINI_TOOLS,
            signature=_FOREIGN_SIGNATURE,
            temperatures=(0.0, 2.0),
            options_left_out=frozenset({"seed"}),
            forces_tools=True,
            names_forced_tool=True,
        ),
        # docs.mistral.ai/api, and the validator of the package mistral-common. Unknown fields are refused with 422.
        Dialect(
            name="mistral",
            # docs.mistral.ai/capabilities/vision: eight images, of 10 MB each.
            media=MediaForms(
                types=COMMON_IMAGES, image_urls=True, part_bytes={"image": 10 * _MB}, counts={"image": 8}
            ),
            names_results=True,
            returned=("content",),
            call_fields=(),
            tools=replace(_PLAIN_TOOLS, description_characters=None),
            temperatures=(0.0, 1.5),
            # "top_p must be 1 when using greedy sampling"
            top_p="sampling",
            options_left_out=frozenset({"reasoning_effort"}),
            seed="random_seed",
            any_tool="any",
            forces_tools=True,
            names_forced_tool=True,
            asks_usage=False,
        ),
        # api-docs.deepseek.com/guides/thinking_mode: reasoning beside tool calls must come back in all later turns,
        # and the field must be in every message of the assistant's.
        Dialect(
            name="deepseek",
            ids=_COMMON_ID,
            returned=("reasoning_content",),
            call_fields=(),
            required="reasoning_content",
            required_of_all=True,
            filler="",
            tools=_PLAIN_TOOLS,
            temperatures=(0.0, 2.0),
            answer="json_object",
            options_left_out=frozenset({"seed"}),
            efforts=("low", "high", "max"),
            no_reasoning=THINKING_OFF,
        ),
        # docs.x.ai: reasoning models refuse `stop`, and most of them `reasoning_effort`.
        replace(
            _OPENAI,
            name="xai",
            # docs.x.ai/docs/guides/image-understanding: JPEG and PNG, 20 MiB each.
            media=MediaForms(
                types=frozenset({JPEG, PNG}), image_urls=True, total_bytes=40 * _MB, part_bytes={"image": 20 * _MB}
            ),
            fills_results=True,
            tools=replace(_PLAIN_TOOLS, description_characters=None),
            token_limit="max_tokens",
            options_left_out=frozenset({"stop"}),
            efforts=("low", "high"),
            verbosity=False,
            service_tier=False,
            answer_with_tools=False,
            cache_key=False,
        ),
        # openrouter.ai/docs/use-cases/reasoning-tokens: `reasoning_details` come back unmodified, and each model gets
        # the nearest effort that it has.
        Dialect(
            name="openrouter",
            # openrouter.ai/docs/features/multimodal
            media=MediaForms(types=COMMON_IMAGES | {PDF, WAV, MP3}, image_urls=True, total_bytes=19 * _MB),
            returned=("content", "reasoning_details", "reasoning"),
            temperatures=(0.0, 2.0),
            options_left_out=frozenset(),
            efforts=("none", "minimal", *LOW_TO_MAX),
            verbosity=True,
            service_tier=True,
            forces_tools=True,
            names_forced_tool=True,
        ),
        # platform.moonshot.ai/docs: ids are `functions.<name>:<number>`; reasoning must come back beside tool calls.
        Dialect(
            name="kimi",
            # platform.moonshot.ai/docs/guide/use-kimi-vision-model: no addresses.
            media=MediaForms(types=COMMON_IMAGES, total_bytes=90 * _MB),
            ids=_NAMED_ID,
            named_ids=True,
            names_results=True,
            # "text content is empty"
            omits_empty=True,
            returned=("reasoning_content",),
            call_fields=(),
            required="reasoning_content",
            tools=_KIMI_TOOLS,
            answer="json_object",
            cache_key=True,
        ),
        # docs.z.ai: `tool_choice` is `auto` alone, `stop` has one text, answers are JSON of any kind.
        Dialect(
            name="glm",
            # docs.z.ai/guides/vlm: 5 MB and 6 000 pixels on a side.
            media=MediaForms(types=frozenset({JPEG, PNG}), image_urls=True, part_bytes={"image": 5 * _MB}, side=6000),
            returned=("reasoning_content",),
            call_fields=(),
            options_left_out=frozenset({"seed", "stop", "reasoning_effort"}),
            no_reasoning=THINKING_OFF,
            forbids_tools=False,
            answer="json_object",
        ),
        # platform.minimax.io/docs: reasoning stands in the text between <think> tags, or in `reasoning_details`.
        Dialect(
            name="minimax",
            returned=("content", "reasoning_details", "reasoning_content"),
            call_fields=(),
            temperatures=(0.01, 1.0),
            options_left_out=frozenset({"seed", "stop", "reasoning_effort"}),
            answer="prompt",
        ),
        # help.aliyun.com/zh/model-studio: thinking models refuse a forced tool, and `response_format`.
        Dialect(
            name="qwen",
            # help.aliyun.com/zh/model-studio/vision: 10 MB as base64.
            media=MediaForms(types=frozenset({JPEG, PNG, WEBP}), image_urls=True, part_bytes={"image": 10 * _MB}),
            returned=("reasoning_content",),
            call_fields=(),
            temperatures=(0.0, 1.99),
            options_left_out=frozenset({"reasoning_effort"}),
            no_reasoning={"enable_thinking": False},
            answer="prompt",
        ),
        # console.groq.com/docs: an unknown property of a message is refused, and a format of the answer in a stream.
        replace(
            _OPENAI,
            name="groq",
            # console.groq.com/docs/vision: five images, 4 MB a request as base64.
            media=MediaForms(
                types=frozenset({JPEG, PNG, WEBP}), image_urls=True, total_bytes=4 * _MB, counts={"image": 5}
            ),
            tools=replace(_STRICT_TOOLS, lone_unions=False, typed=False, text_enums=False),
            answer="prompt",
            answer_with_tools=False,
            cache_key=False,
            efforts=LOW_TO_HIGH,
            verbosity=False,
        ),
        # inference-docs.cerebras.ai: unknown properties are refused with 422, JSON beside tools, a format of the
        # answer in a stream of a model that reasons, and many keywords of its schema.
        replace(
            _OPENAI,
            name="cerebras",
            media=TEXTS_ALONE,
            tools=replace(_STRICT_TOOLS, text_enums=False),
            temperatures=(0.0, 1.5),
            answer="prompt",
            answer_with_tools=False,
            cache_key=False,
            efforts=LOW_TO_HIGH,
            verbosity=False,
        ),
        # Older versions take these efforts alone.
        Dialect(
            name="vllm",
            # docs.vllm.ai/en/latest/features/multimodal_inputs
            media=MediaForms(types=COMMON_IMAGES | {WAV, MP3}, image_urls=True),
            returned=("content", "reasoning", "reasoning_content"),
            temperatures=(0.0, 2.0),
            options_left_out=frozenset(),
            efforts=LOW_TO_HIGH,
            no_reasoning=_TEMPLATE_OFF,
            forces_tools=True,
            names_forced_tool=True,
        ),
        Dialect(
            name="llamacpp",
            # github.com/ggml-org/llama.cpp/blob/master/docs/multimodal.md
            media=MediaForms(types=frozenset({JPEG, PNG, GIF, WAV, MP3})),
            returned=("content", "reasoning_content"),
            call_fields=(),
            temperatures=(0.0, 2.0),
            options_left_out=frozenset(),
            efforts=LOW_TO_HIGH,
            no_reasoning=_TEMPLATE_OFF,
            forces_tools=True,
        ),
        Dialect(
            name="ollama",
            # docs.ollama.com/api/openai-compatibility: images as base64 alone.
            media=MediaForms(types=frozenset({JPEG, PNG, WEBP})),
            returned=("content", "reasoning"),
            call_fields=(),
            temperatures=(0.0, 2.0),
            options_left_out=frozenset(),
            efforts=("none", *LOW_TO_HIGH),
            forces_tools=True,
        ),
        # docs.litellm.ai: it refuses calls in the history without `tools`, for Anthropic's and Bedrock's models.
        Dialect(
            name="litellm",
            # docs.litellm.ai/docs/completion/vision, /document_understanding and /audio
            media=MediaForms(types=COMMON_IMAGES | {PDF, WAV, MP3}, image_urls=True),
            declares_called_tools=True,
            options_left_out=frozenset({"seed"}),
            forces_tools=True,
            names_forced_tool=True,
        ),
    )
}
"""All dialects of Chat Completions, by their names."""

_ALIASES: Mapping[str, str] = {
    "alibaba": "qwen",
    "azure_openai": "azure",
    "bigmodel": "glm",
    "dashscope": "qwen",
    "google": "gemini",
    "grok": "xai",
    "llama_cpp": "llamacpp",
    "local": "llamacpp",
    "moonshot": "kimi",
    "zai": "glm",
    "zhipu": "glm",
}
"""Further names of providers, and their dialects."""

_HOSTS: Mapping[str, str] = {
    "openai.com": "openai",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "generativelanguage.googleapis.com": "gemini",
    "aiplatform.googleapis.com": "gemini",
    "mistral.ai": "mistral",
    "deepseek.com": "deepseek",
    "x.ai": "xai",
    "openrouter.ai": "openrouter",
    "moonshot.ai": "kimi",
    "moonshot.cn": "kimi",
    "z.ai": "glm",
    "bigmodel.cn": "glm",
    "minimax.io": "minimax",
    "minimaxi.com": "minimax",
    "aliyuncs.com": "qwen",
    "groq.com": "groq",
    "cerebras.ai": "cerebras",
}
"""The dialects of hosts, and of their subdomains."""


def find_messages_dialect(name: str, base_url: str, configured: str | None = None) -> MessagesDialect | None:
    """Find the dialect of a server with the Messages API, by its configured dialect, its host or its name.

    None: the server is not known. Then `choose_messages_dialect` decides by the model.

    Raises:
        ValueError: There is no dialect of the configured name.
    """
    if configured:
        known = configured.strip().lower().replace("llama.cpp", "llamacpp").removeprefix("anthropic-")
        known = _MESSAGES_NAMES.get(known, _ALIASES.get(known, known))
        if (dialect := MESSAGES_DIALECTS.get(known)) is None:
            raise ValueError(f"no dialect {configured[:40]!r}: one of {', '.join(sorted(MESSAGES_DIALECTS))}")
        return dialect
    host = f".{urlsplit(base_url).hostname or ''}"
    hosts = {**_HOSTS, **_MESSAGES_HOSTS}
    by_host = next((dialect for suffix, dialect in hosts.items() if host.endswith(f".{suffix}")), None)
    by_name = _MESSAGES_NAMES.get(name, _ALIASES.get(name, name if name != "anthropic" else ""))
    return MESSAGES_DIALECTS.get(by_host or by_name)


def choose_messages_dialect(dialect: MessagesDialect | None, model: str) -> MessagesDialect:
    """Choose the dialect of a model at a server: one that is not known may be a gateway to Anthropic's models."""
    if dialect is None:
        return ANTHROPIC if "claude" in model else MESSAGES_STRICT
    return MESSAGES_STRICT if dialect.name == "gateway" and "claude" not in model else dialect


def find_dialect(name: str, base_url: str, configured: str | None = None) -> Dialect:
    """Find the dialect of a provider, by its configured dialect, its host or its name.

    Raises:
        ValueError: There is no dialect of the configured name.
    """
    if configured:
        known = configured.strip().lower().replace("-", "_").replace("llama.cpp", "llamacpp")
        if (dialect := DIALECTS.get(_ALIASES.get(known, known))) is None:
            raise ValueError(
                f"no dialect {configured[:40]!r}: one of {', '.join(sorted((*DIALECTS, RESPONSES.name)))}"
            )
        return dialect
    host = f".{urlsplit(base_url).hostname or ''}"
    by_host = next((dialect for suffix, dialect in _HOSTS.items() if host.endswith(f".{suffix}")), None)
    # `openai` is also the name of the provider that people point at any server.
    by_name = _ALIASES.get(name, name if name != "openai" else "strict")
    return DIALECTS.get(by_host or by_name, STRICT)
