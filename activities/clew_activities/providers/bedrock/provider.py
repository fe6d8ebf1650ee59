"""Amazon Bedrock's Converse API, for the models of all vendors there.

`models` says how the families of models differ. This codec knows the format alone.

Converse wants users and assistants in turn, a user first and last, all results of tools in the turn after their
calls, and tools declared wherever the history has a call. It refuses blank texts.

`CLEW_BEDROCK_REGION` adds the provider: `AWS_REGION` alone does not, since every worker in AWS has it.
`AWS_BEARER_TOKEN_BEDROCK` is Bedrock's own key; without it, requests are signed with the worker's AWS credentials.
`CLEW_BEDROCK_BASE_URL` names another endpoint, such as one in a VPC. The extra `bedrock` has what `aws` needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.anthropic.models import BINDING_BETA, find_generation
from clew_activities.providers.anthropic.schema import make_answer_schema
from clew_activities.providers.aws import EVENT_STREAM, EXTRA, AwsCredentials, is_installed
from clew_activities.providers.bedrock.models import Family, find_family
from clew_activities.providers.bedrock.stream import BedrockDecoder, read_bedrock_error
from clew_activities.providers.dialects import BEDROCK
from clew_activities.providers.endpoint import Server, describe_fitting, describe_options
from clew_activities.providers.fit_messages import (
    BRIDGE,
    CONTINUE,
    NO_OUTPUT,
    EncodedMessage,
    Turns,
    choose_call_ids,
    get_own_data,
    group_turns,
    iterate_open_turn,
    list_system_texts,
)
from clew_activities.providers.fit_tools import FittedTools, declare_called_tools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.loading import read_key, read_url
from clew_activities.providers.options import (
    choose_effort,
    describe_provider_tools,
    get_object,
    merge_provider_options,
)
from clew_activities.providers.provider_errors import ErrorAnswer, ProviderError
from clew_activities.providers.request_media import (
    MediaForms,
    encode_base64,
    fit_media,
    get_media_type,
    name_file,
)
from clew_workflows.contract.content import Content, Part, describe_part, find_sort, get_text
from clew_workflows.contract.extras import ExtraMissing
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.names import rewrite_name

_REGION = "CLEW_BEDROCK_REGION"
_URL = "CLEW_BEDROCK_BASE_URL"

_ENCODER = "bedrock/1"
_OWNED = frozenset(("messages", "system", "toolConfig"))
"""Fields that `provider_options` cannot set."""
_TIERS = ("priority", "default", "flex", "reserved")
_ROOT_KEYWORDS = ("type", "properties", "required")
_CACHE_POINT = {"cachePoint": {"type": "default"}}

Block = dict[str, Any]


def make_providers(environ: Mapping[str, str]) -> Iterable[Bedrock]:
    """Make the provider `bedrock`, if it is configured.

    Raises:
        ExtraMissing: The extra is not installed.
        ValueError: A variable's value cannot be used.
    """
    region, url = environ.get(_REGION, "").strip(), read_url(environ, _URL)
    if url and not region:
        raise ValueError(f"{_URL} is set and {_REGION} is not: set the region too")
    if not region:
        return
    if not re.fullmatch(r"[a-z]{2,4}(?:-[a-z]{2,12}){1,3}-\d{1,2}", region):
        raise ValueError(f"{_REGION} is not the name of a region, such as us-east-1")
    if not is_installed():
        raise ExtraMissing(_REGION, EXTRA)
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    yield Bedrock(
        "bedrock",
        url or f"https://bedrock-runtime.{region}.{domain}",
        region,
        AwsCredentials(environ),
        api_key=read_key(environ, "AWS_BEARER_TOKEN_BEDROCK"),
    )


@dataclass(frozen=True)
class Bedrock(Server):
    """The Converse API in one region. Without a key, requests are signed.

    Attributes:
        region: The region, which signatures contain.
        credentials: What signs requests; None: nothing, as in an audit.
        setting: The variable that decides on the URL.
    """

    region: str = ""
    credentials: AwsCredentials | None = field(default=None, repr=False)
    setting: str = _REGION

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, and the secrets of AWS that the environment holds. Others are found later."""
        return (*super().secrets, *(self.credentials.secrets if self.credentials else ()))

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The headers that hold the key, or the signature and the token of temporary credentials."""
        return ("authorization", "x-amz-security-token")

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /model/{model}/converse-stream`."""
        family = find_family(request.model)
        media = fit_media(request, family.dialect.media)
        tools = fit_tools(request.tools, family.dialect.tools)
        target = _Target(self.name, request.model, family, tools, request.blobs)
        specs, declared = _choose_tools(request, tools, family)
        turns = _encode_messages(media.messages, target)
        encoded_turns: list[Block] = [{"role": turn.role, "content": turn.blocks} for turn in turns.turns]
        distinguish_documents(encoded_turns)
        system = list(map(_make_text, list_system_texts(request.messages)[0]))
        schema = make_answer_schema(request.output_schema) if family.answers else None
        encoded = [_encode_tool(spec, family) for spec in specs]
        _add_cache_points(system, encoded, encoded_turns, family)
        if request.output_schema is not None and schema is None:
            system.append(_make_text(describe_schema(request.output_schema)))
        if not family.system:
            encoded_turns[0]["content"][:0] = system
            system = []
        body: dict[str, Any] = {"messages": encoded_turns}
        if system:
            body["system"] = system
        if encoded:
            body["toolConfig"] = {"tools": encoded}
        if schema is not None:
            structure = {"jsonSchema": {"name": "reply", "schema": json.dumps(schema)}}
            body["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": structure}}
        body |= _encode_options(request, target)
        # A model that always thinks cannot be forced to call a tool.
        choice = _encode_tool_choice(request.options.tool_choice, tools, family)
        thinking = get_object(get_object(body, "additionalModelRequestFields"), "thinking")
        if choice and specs and not declared and thinking.get("type", "disabled") == "disabled":
            body["toolConfig"]["toolChoice"] = choice
        body = merge_provider_options(body, request, self.name, _OWNED)
        _, not_run = describe_provider_tools(request.provider_tools, (), self.name)
        described = _describe_options(request, body, declared=declared)
        fitting = describe_fitting(BEDROCK.name, turns, media, tools, described, left_out=not_run)
        streams = family.streams_tools or not encoded
        path = f"/model/{quote(request.model, safe='')}/{'converse-stream' if streams else 'converse'}"
        headers = {"accept": EVENT_STREAM if streams else "application/json", **self.headers}
        return HttpRequest(path, headers, body, fitting, _ENCODER)

    def sign(self, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Sign a request with the worker's AWS credentials, unless it has Bedrock's key; raises as `Signer` says."""
        if self.api_key or self.credentials is None:
            return {}
        return self.credentials.sign(url, headers["content-type"], body, service="bedrock", region=self.region)

    def get_media_forms(self, model: str) -> MediaForms:
        """Return what a model's requests may have of images and files."""
        return find_family(model).dialect.media

    def make_decoder(self, request: ModelRequest) -> BedrockDecoder:
        """Make a decoder for the reply to a request."""
        tools = fit_tools(request.tools, find_family(request.model).dialect.tools)
        return BedrockDecoder(self.name, request.model, tools)

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the name of AWS's exception, or else by the tables in `errors`."""
        return read_bedrock_error(answer)


@dataclass(frozen=True, slots=True)
class _Target:
    """The model that a request is for.

    Attributes:
        provider: The provider's name.
        model: The model's name.
        family: The model's family.
        tools: The request's tools.
        blobs: The bytes of the parts that are sent, by the digests of their blobs.
    """

    provider: str
    model: str
    family: Family
    tools: FittedTools
    blobs: Mapping[str, bytes] = field(default_factory=dict)


# Tools


def _choose_tools(request: ModelRequest, tools: FittedTools, family: Family) -> tuple[list[ToolSpec], bool]:
    """Choose the tools of a request, and whether they are only declared because they were called.

    Converse has no `none`: then the request has no tools, but for those of its history, which it must declare.
    """
    if tools.specs and request.options.tool_choice != "none":
        return tools.specs, False
    declared = declare_called_tools(request.messages, family.dialect)
    return declared, bool(declared)


def _encode_tool(spec: ToolSpec, family: Family) -> Block:
    schema: Mapping[str, Any] = spec["parameters"]
    if family.plain_root:
        schema = {name: schema[name] for name in _ROOT_KEYWORDS if name in schema}
    tool: Block = {"name": spec["name"], "inputSchema": {"json": schema}}
    if spec["description"]:
        tool["description"] = spec["description"]
    return {"toolSpec": tool}


def _encode_tool_choice(choice: str | None, tools: FittedTools, family: Family) -> Block | None:
    if choice == "required" and family.any_tool:
        return {"any": {}}
    tool = tools.by_name.get(choice or "") if family.named_tool else None
    return {"tool": {"name": tool.spec["name"]}} if tool else None


# Messages


def _encode_messages(messages: Sequence[Message], target: _Target) -> Turns:
    """Encode messages as turns."""
    ids = choose_call_ids(messages, target.provider, target.model, target.family.dialect)
    encoded = [
        EncodedMessage(message["role"], _encode_blocks(message, call_ids, target))
        for message, call_ids in zip(messages, ids, strict=True)
    ]
    shown = [message for message in encoded if message.blocks and message.role != "system"]
    divided = shown if target.family.mixes else list(_divide(shown))
    turns = group_turns(divided, _make_text)
    added = turns.added + len(divided) - len(shown)
    return replace(turns, added=added, dropped=sum(not message.blocks for message in encoded))


def _divide(messages: Iterable[EncodedMessage]) -> Iterator[EncodedMessage]:
    """Divide texts from tools' calls, and from tools' results.

    "Conversation blocks and tool result blocks cannot be provided in the same turn."
    """
    before = ""
    for message in messages:
        if message.role == "user" and before == "tool":
            yield EncodedMessage("assistant", [_make_text(BRIDGE)])
        texts = [block for block in message.blocks if "text" in block]
        if message.role == "assistant" and texts and any("toolUse" in block for block in message.blocks):
            yield EncodedMessage("assistant", texts)
            yield EncodedMessage("user", [_make_text(CONTINUE)])
            yield EncodedMessage("assistant", [block for block in message.blocks if "text" not in block])
        else:
            yield message
        before = message.role


def _encode_blocks(message: Message, call_ids: Sequence[str], target: _Target) -> list[Block]:
    """Encode a message as content blocks. Converse refuses blank texts, so they are omitted."""
    content = get_text(message["content"])
    if message["role"] == "tool":
        blocks = _encode_parts(message["content"], target) or [_make_text(NO_OUTPUT)]
        return [{"toolResult": {"toolUseId": call_ids[0], "content": blocks}}]
    if message["role"] == "user" and not isinstance(message["content"], str):
        return _encode_parts(message["content"], target)
    if message["role"] != "assistant":
        return [_make_text(content)] if content.strip() else []
    blocks = _find_own_blocks(message, target)
    text_of_blocks = "".join(block["text"] for block in blocks if "text" in block)
    if content.startswith(text_of_blocks):
        content = content[len(text_of_blocks) :]
    else:
        blocks = [block for block in blocks if "text" not in block]
    blocks = [block for block in blocks if "text" not in block or block["text"].strip()]
    if content.strip():
        blocks.append(_make_text(content))
    for call, call_id in zip(message.get("tool_calls", []), call_ids, strict=True):
        name, arguments = target.tools.encode_call(call["name"], call["arguments"], target.family.dialect.tools)
        blocks.append({"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}})
    # A turn of reasoning alone counts as a beginning of the reply, and is refused.
    return blocks if any("reasoningContent" not in block for block in blocks) else []


def _find_own_blocks(message: Message, target: _Target) -> list[Block]:
    """Select the blocks that this model sent and expects back unchanged; none if another one sent them."""
    data, family = get_own_data(message, target.provider), target.family
    if data is None or data.get("model") != target.model or not family.returns_reasoning:
        return []
    blocks = [block for block in data["blocks"] if block.keys() & {"reasoningContent", "text"}]
    if family.signs_reasoning and not all(map(_is_signed, blocks)):
        return []
    return blocks


def _encode_parts(content: Content, target: _Target) -> list[Block]:
    """Encode a content. A document needs a text beside it."""
    if isinstance(content, str):
        return [_make_text(content)] if content.strip() else []
    blocks = [_encode_part(part, target) for part in content]
    lacks_text = not any("text" in block for block in blocks)
    names = [describe_part(part) for part in content] if lacks_text else []
    return [*([_make_text("\n".join(names))] if names else []), *blocks]


def _encode_part(part: Part, target: _Target) -> Block:
    if part["type"] == "text":
        return _make_text(part["text"])
    source = {"bytes": encode_base64(part, target.blobs)}
    if find_sort(part) == "image":
        return {"image": {"format": get_media_type(part).partition("/")[2], "source": source}}
    # Names with other characters are refused.
    name = (
        re.sub(r"[^A-Za-z0-9()\[\]-]+", " ", name_file(part, "").removesuffix(".pdf"))
        .strip()[:_DOCUMENT_CHARACTERS]
        .strip()
    )
    return {"document": {"format": "pdf", "name": name or "document", "source": source}}


_DOCUMENT_NAME = re.compile(r"[A-Za-z0-9()\[\]-]+(?: [A-Za-z0-9()\[\]-]+)*")
_DOCUMENT_CHARACTERS = 200


def distinguish_documents(turns: Iterable[Block]) -> None:
    """Rename the documents that have the name of an earlier one: Converse refuses a name that stands there twice."""
    taken: set[str] = set()
    for turn in turns:
        for block in turn["content"]:
            for one in (block, *block.get("toolResult", {}).get("content", ())):
                if document := one.get("document"):
                    document["name"] = rewrite_name(
                        document["name"], _DOCUMENT_NAME, _DOCUMENT_CHARACTERS, taken, mark="-"
                    )
                    taken.add(document["name"])


def _is_signed(block: Block) -> bool:
    reasoning = block.get("reasoningContent", {}).get("reasoningText")
    return reasoning is None or bool(reasoning.get("signature"))


def _add_cache_points(system: list[Block], tools: list[Block], turns: list[Block], family: Family) -> None:
    """Add cache points after the parts that stay when the conversation is truncated, and after its end.

    Those are the tools, the system prompt and the summary. A request may have four points.
    """
    if family.caches == "nowhere":
        return
    points = min(len(system), 2)
    for place in range(points, 0, -1):
        system.insert(place, dict(_CACHE_POINT))
    if tools and not points and family.caches == "everywhere":
        tools.append(dict(_CACHE_POINT))
    last = turns[-1]["content"]
    if family.caches == "everywhere" or "text" in last[-1]:
        last.append(dict(_CACHE_POINT))


def _make_text(text: str) -> Block:
    return {"text": text}


# Options


def _encode_options(request: ModelRequest, target: _Target) -> dict[str, Any]:
    options, family = request.options, target.family
    assert options.max_output_tokens is not None  # ModelRequest guarantees it
    reasoning = _encode_reasoning(request, target)
    samples = family.samples
    if family.reasoning == "thinking":
        # Claude takes one of the two, and neither beside thinking.
        samples = find_generation(request.model).sampling and "thinking" not in reasoning
    top_p = options.top_p if options.temperature is None or family.reasoning != "thinking" else None
    inference = {
        "maxTokens": options.max_output_tokens,
        "temperature": min(options.temperature, 1.0) if samples and options.temperature is not None else None,
        "topP": top_p if samples else None,
        "stopSequences": list(filter(str.strip, options.stop or ())) or None if family.stops else None,
    }
    encoded: dict[str, Any] = {
        "inferenceConfig": {name: value for name, value in inference.items() if value is not None}
    }
    if reasoning:
        encoded["additionalModelRequestFields"] = reasoning
    if options.service_tier in _TIERS:
        encoded["serviceTier"] = {"type": options.service_tier}
    return encoded


def _encode_reasoning(request: ModelRequest, target: _Target) -> dict[str, Any]:
    """Make the model's own fields that ask for reasoning."""
    family = target.family
    effort = choose_effort(request.options.reasoning_effort, family.efforts)
    match family.reasoning:
        case "thinking":
            return _encode_thinking(request, target)
        case "reasoningConfig" if effort:
            return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": effort}}
        case "reasoning" if effort:
            return {"reasoning": {"effort": effort}}
        case "reasoning_effort" | "reasoning_config" if effort:
            return {family.reasoning: effort}
    return {}


def _encode_thinking(request: ModelRequest, target: _Target) -> dict[str, Any]:
    """Make the fields of Anthropic's models, which have the names of its own API."""
    options, generation = request.options, find_generation(request.model)
    thinking = generation.choose_thinking(
        options.reasoning_effort, options.max_output_tokens or 0, forced=_is_forced(request)
    )
    if thinking and "budget_tokens" in thinking and _lacks_thinking_in_round(request.messages, target):
        thinking = None
    fields: dict[str, Any] = {} if thinking is None else {"thinking": thinking}
    if "block_binding" in fields.get("thinking", {}):
        fields["anthropic_beta"] = [BINDING_BETA]
    if effort := generation.choose_effort(options.reasoning_effort):
        fields["output_config"] = {"effort": effort}
    return fields


def _is_forced(request: ModelRequest) -> bool:
    return bool(request.tools) and request.options.tool_choice not in (None, "auto", "none")


def _lacks_thinking_in_round(messages: Sequence[Message], target: _Target) -> bool:
    """Whether an assistant's message since the newest user's message has nothing that this model has thought.

    With a thinking budget, the model refuses such a message that does not begin with thinking.
    """
    return any(
        message["role"] == "assistant" and not _find_own_blocks(message, target)
        for message in iterate_open_turn(messages)
    )


def _describe_options(request: ModelRequest, body: Mapping[str, Any], *, declared: bool) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    options, inference = request.options, get_object(body, "inferenceConfig")
    sent = {
        "seed": None,
        "verbosity": None,
        "temperature": inference.get("temperature"),
        "top_p": inference.get("topP"),
        "stop": inference.get("stopSequences"),
        "service_tier": options.service_tier if "serviceTier" in body else None,
    }
    described = describe_options(options, sent)
    has_choice = "toolChoice" in get_object(body, "toolConfig")
    if (options.tool_choice == "none" and declared) or (
        options.tool_choice not in (None, "auto", "none") and request.tools and not has_choice
    ):
        described["tool_choice"] = "left out"
    if (effort := _describe_effort(options.reasoning_effort, body)) is not None:
        described["reasoning_effort"] = effort
    if request.output_schema is not None and "outputConfig" not in body:
        described["output_schema"] = "in the prompt"
    return described


def _describe_effort(wanted: str | None, body: Mapping[str, Any]) -> str | None:
    """Describe the level of reasoning that a request has; None: it is the one that is wanted."""
    if wanted is None:
        return None
    fields = get_object(body, "additionalModelRequestFields")
    sent = (
        get_object(fields, "output_config").get("effort")
        or get_object(fields, "reasoningConfig").get("maxReasoningEffort")
        or get_object(fields, "reasoning").get("effort")
        or fields.get("reasoning_effort")
        or fields.get("reasoning_config")
    )
    if sent is None:
        return None if "thinking" in fields else "left out"
    return None if sent == wanted else str(sent)
