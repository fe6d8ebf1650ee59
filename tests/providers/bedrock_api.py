"""Amazon Bedrock's Converse: its binary streams, its errors, its signatures, and what it refuses.

The service model of botocore says what a request may have. Anthropic's models refuse behind it what they refuse at
their own API, so the rules of `anthropic_messages` see the request in that API's form.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Any
from urllib.parse import quote
from zlib import crc32

import jsonschema_rs
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.session import Session
from botocore.validate import ParamValidator

from tests.providers import anthropic_messages as messages_api
from tests.providers.chat_completions import make_id, make_signature, make_thinking_block
from tests.providers.strict_server import DROP, Billing, Exchange, Refusal, Rule, Sent, Turn

Block = dict[str, Any]

REGION = "us-east-1"
ACCESS_KEY = "AKIA-OF-THE-TESTS"
SECRET_KEY = "secret-key-of-the-tests"
SESSION_TOKEN = "session-token-of-the-tests=="

_FIELDS_OF_MODEL = ("thinking", "anthropic_beta", "output_config")


def make_environ(url: str) -> dict[str, str]:
    """Make the variables that a user sets, with temporary credentials."""
    return {
        "CLEW_BEDROCK_REGION": REGION,
        "CLEW_BEDROCK_BASE_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
    }


def encode_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode a message of AWS's event stream: lengths, headers and payload, with their checksums."""
    encoded = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    message = prelude + struct.pack("!I", crc32(prelude)) + encoded + payload
    return message + struct.pack("!I", crc32(message))


def encode_event(name: str, value: Any, kind: str = "event") -> bytes:
    """Encode an event of a stream, or with the kind `exception` an error."""
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return encode_frame(headers, json.dumps(value).encode())


@dataclass(frozen=True)
class Converse:
    """ConverseStream for one model.

    Attributes:
        model: The model, which the path names.
        cut_reason: The stop reason of a reply that the token limit cuts.
        content_type: The content type of a stream.
    """

    model: str
    cut_reason: str = "max_tokens"
    content_type: str = "application/vnd.amazon.eventstream"

    @property
    def path(self) -> str:
        """The path of a request."""
        return f"/model/{quote(self.model, safe='')}/converse-stream"

    def encode_event(self, event: Any) -> bytes:
        """Encode an event as a frame. Real ones are padded, so that their lengths say nothing of the text."""
        name, value, kind = event
        return encode_event(name, {**value, "p": "abcdefghijkl"[: len(name) % 12]}, kind)

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response. Its headers name the exception."""
        return {"message": refusal.message}

    def list_error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        """List the headers of an error response."""
        kinds = {403: "AccessDeniedException", 404: "ResourceNotFoundException", 503: "ServiceUnavailableException"}
        name = refusal.code or kinds.get(refusal.status, "ValidationException")
        return {"x-amzn-errortype": f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/"}

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply. The model thinks only if the request says so."""
        number = sum(len(sent.calls) for sent in exchange.sent)
        thinking = thinking if messages_api.is_thinking(translate(exchange.body)) else ""
        name = make_id("tooluse_", 22)
        ids = [name(number + place, call.name) for place, call in enumerate(turn.calls)]
        blocks: list[tuple[Block | None, list[Block]]] = []
        if thinking:
            half = len(thinking) // 2
            signature = make_signature(number)
            parts: list[Block] = [{"text": thinking[:half]}, {"text": thinking[half:]}, {"signature": signature}]
            blocks.append((None, [{"reasoningContent": part} for part in parts]))
            blocks.append((None, [{"reasoningContent": {"redactedContent": make_signature(number + 1000)}}]))
        if turn.text:
            half = len(turn.text) // 2
            blocks.append((None, [{"text": part} for part in (turn.text[:half], turn.text[half:])]))
        for call, call_id in zip(turn.calls, ids, strict=True):
            raw = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
            pieces = ["", raw[: len(raw) // 2], raw[len(raw) // 2 :]] if raw != "{}" else [""]
            start = {"toolUse": {"toolUseId": call_id, "name": call.name}}
            blocks.append((start, [{"toolUse": {"input": piece}} for piece in pieces]))
        events: list[Any] = [("messageStart", {"role": "assistant"}, "event")]
        for index, (begin, deltas) in enumerate(blocks):
            place = {"contentBlockIndex": index}
            if begin:
                events.append(("contentBlockStart", {"start": begin, **place}, "event"))
            events += [("contentBlockDelta", {"delta": delta, **place}, "event") for delta in deltas]
            events.append(("contentBlockStop", place, "event"))
        middle = len(events) - 2
        reason = self.cut_reason if turn.ending == "length" else "tool_use" if turn.calls else "end_turn"
        events.append(("messageStop", {"stopReason": reason}, "event"))
        # A part of the prompt was read from the cache, a part was written to it.
        cached, written = billing.input_tokens // 2, billing.input_tokens // 4
        usage = {
            "inputTokens": billing.input_tokens - cached - written,
            "outputTokens": billing.output_tokens,
            "totalTokens": billing.input_tokens + billing.output_tokens,
            "cacheReadInputTokens": cached,
            "cacheWriteInputTokens": written,
        }
        events.append(("metadata", {"usage": usage, "metrics": {"latencyMs": 700}}, "event"))
        for kind, value, _ in events:
            _check(_get_events()[kind], value)
        match turn.fault.when if turn.fault else None:
            case "inside":
                error = {"message": "Bedrock is unable to process your request."}
                events = [*events[:middle], ("serviceUnavailableException", error, "exception")]
            case "cut":
                events = [*events[:middle], DROP]
            case "after":
                events = [*events[:-1], DROP]
        redacted = {"type": "redacted_thinking", "data": make_signature(number + 1000)}
        returns = {"thinking": [make_thinking_block(thinking, number), redacted]} if thinking else {}
        return events, Sent(thinking, returns, {call_id: {} for call_id in ids}, turn.text)


# Rules


def verify_signature(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse requests whose signature is not the one that botocore makes of them."""
    pattern = (
        r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>\d{8}/[^,]+/aws4_request), "
        r"SignedHeaders=(?P<names>[^,]+), Signature=(?P<signature>[0-9a-f]{64})"
    )
    headers = exchange.headers
    match = re.fullmatch(pattern, headers.get("authorization", ""))
    if match is None:
        yield Refusal("Missing Authentication Token", status=403, code="MissingAuthenticationTokenException")
        return
    stamp = headers.get("x-amz-date", "")
    if match["key"] != ACCESS_KEY or headers.get("x-amz-security-token") != SESSION_TOKEN:
        invalid = "The security token included in the request is invalid."
        yield Refusal(invalid, status=403, code="UnrecognizedClientException")
    if match["scope"] != f"{stamp[:8]}/{REGION}/bedrock/aws4_request":
        yield Refusal("Credential should be scoped to a valid region.", status=403, code="InvalidSignatureException")
        return
    age = datetime.now(UTC) - datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if abs(age.total_seconds()) > 300:
        yield Refusal(f"Signature expired: {stamp}", status=403, code="InvalidSignatureException")
    names = match["names"].split(";")
    if missing := {"host", "content-type", "x-amz-date", "x-amz-security-token"} - set(names):
        yield Refusal(f"{sorted(missing)} must be a 'SignedHeader'", status=403, code="InvalidSignatureException")
    signed = {name: headers[name] for name in names if name != "host"}
    request = AWSRequest("POST", f"http://{headers['host']}{exchange.path}", headers=signed, data=exchange.raw)
    request.context["timestamp"] = stamp
    auth = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY, SESSION_TOKEN), "bedrock", REGION)
    expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    if expected != match["signature"]:
        # gh:BerriAI/litellm#14763
        yield Refusal(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method. Consult the service documentation for details.",
            status=403,
            code="InvalidSignatureException",
        )


@cache
def _get_operation() -> Any:
    return Session().get_service_model("bedrock-runtime").operation_model("ConverseStream")


def _get_input() -> Any:
    return _get_operation().input_shape


def _get_events() -> Mapping[str, Any]:
    """The shapes of the events of a stream, by their names."""
    events: Mapping[str, Any] = _get_operation().output_shape.members["stream"].members
    return events


def _check(shape: Any, value: Any) -> None:
    """Check what the server sends by the service model.

    Raises:
        AssertionError: The value does not have the shape.
    """
    report = ParamValidator().validate(value, shape)
    assert not report.has_errors(), report.generate_report()


def match_model(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse what the service model does not have: unknown members, other types, sizes, patterns and words."""
    params = {"modelId": "model", **exchange.body}
    report = ParamValidator().validate(params, _get_input())
    if report.has_errors():
        yield Refusal(report.generate_report())
        return
    yield from _compare(_get_input(), params, "")


def _compare(shape: Any, value: Any, place: str) -> Iterator[Refusal]:
    """Compare a value with the limits of a shape that botocore leaves to the service."""
    begin = f"Value at '{place[1:]}' failed to satisfy constraint: Member must"
    match shape.type_name:
        case "structure" if not shape.is_document_type:
            for name, inner in value.items():
                yield from _compare(shape.members[name], inner, f"{place}.{name}")
        case "list":
            for index, inner in enumerate(value):
                yield from _compare(shape.member, inner, f"{place}.{index}")
        case "string":
            limits = shape.metadata
            if limits.get("enum") and value not in limits["enum"]:
                yield Refusal(f"{begin} satisfy enum value set: {limits['enum']}")
            if "max" in limits and len(value) > limits["max"]:
                yield Refusal(f"{begin} have length less than or equal to {limits['max']}")
            if (
                "pattern" in limits
                and not place.startswith(".modelId")
                and not re.fullmatch(limits["pattern"], value)
            ):
                yield Refusal(f"{begin} satisfy regular expression pattern: {limits['pattern']}")
        case "float" if value > shape.metadata.get("max", value):
            yield Refusal(f"{begin} have value less than or equal to {shape.metadata['max']}")


def order_messages(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse messages in a wrong order, and empty ones."""
    messages = exchange.body.get("messages") or []
    roles = [message["role"] for message in messages]
    if not roles or roles[0] != "user":
        # gh:langgenius/dify#12340
        yield Refusal(
            "A conversation must start with a user message. Try again with a conversation that starts with a user "
            "message."
        )
    if any(one == other for one, other in pairwise(roles)):
        # gh:langchain-ai/langchain-aws#130
        yield Refusal(
            "A conversation must alternate between user and assistant roles. Make sure the conversation alternates "
            "between user and assistant roles and try again."
        )
    for index, message in enumerate(messages):
        if not message["content"]:
            # gh:langchain-ai/langchain#26968
            yield Refusal(
                f"The content field in the Message object at messages.{index} is empty. Add a ContentBlock object to "
                "the content field and try again."
            )
        for place, block in enumerate(message["content"]):
            if "text" in block and not block["text"].strip():
                # gh:continuedev/continue#9767
                yield Refusal(
                    f"The text field in the ContentBlock object at messages.{index}.content.{place} is blank. Add "
                    "text to the text field, and try again."
                )


def pair_calls(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse calls without results in the next turn, results without calls, and either of them without tools."""
    body = exchange.body
    messages = body.get("messages") or []
    calls = [[b["toolUse"]["toolUseId"] for b in m["content"] if "toolUse" in b] for m in messages]
    results = [[b["toolResult"]["toolUseId"] for b in m["content"] if "toolResult" in b] for m in messages]
    for index, ids in enumerate(calls):
        answered = results[index + 1] if index + 1 < len(messages) else []
        if missing := [call_id for call_id in ids if call_id not in answered]:
            # gh:camel-ai/camel#3954
            yield Refusal(
                f"Expected toolResult blocks at messages.{index + 1}.content for the following Ids: "
                f"{', '.join(missing)}"
            )
        if len(set(ids)) < len(ids):
            yield Refusal(f"The toolUse blocks at messages.{index}.content contain duplicate Ids")
    for index, ids in enumerate(results):
        if len(ids) > len(calls[index - 1] if index else []):
            # gh:Just-Curieous/Curie#16
            yield Refusal(
                f"The number of toolResult blocks at messages.{index}.content exceeds the number of toolUse blocks "
                "of previous turn."
            )
    if any((*calls, *results)) and "toolConfig" not in body:
        # gh:langgenius/dify#17545
        yield Refusal("The toolConfig field must be defined when using toolUse and toolResult content blocks.")


def take_tools(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse tools that are not declared as the API wants it."""
    tools = [tool["toolSpec"] for tool in exchange.body.get("toolConfig", {}).get("tools", ()) if "toolSpec" in tool]
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        yield Refusal("The toolConfig field contains duplicate tool names")
    for index, tool in enumerate(tools):
        schema = tool["inputSchema"]["json"]
        if schema.get("type") != "object":
            # docs.aws.amazon.com/bedrock/latest/userguide/tool-use-inference-call.html
            yield Refusal(
                f"The value at toolConfig.tools.{index}.toolSpec.inputSchema.json.type must be one of the following: "
                "object."
            )
        try:
            jsonschema_rs.Draft202012Validator(schema)
        except (jsonschema_rs.ValidationError, ValueError):
            yield Refusal(f"The JSON schema at toolConfig.tools.{index} is invalid")


def limit_cache_points(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse more cache points than four."""
    if (found := json.dumps(exchange.body).count('"cachePoint"')) > 4:
        yield Refusal(f"A maximum of 4 blocks with cache_control may be provided. Found {found}.")


def refuse_for_nova(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse what Amazon's Nova refuses."""
    for index, tool in enumerate(exchange.body.get("toolConfig", {}).get("tools", ())):
        if "cachePoint" in tool:
            # gh:danny-avila/LibreChat#13838
            yield Refusal(
                f"Malformed input request: #/toolConfig/tools/{index}: extraneous key [cachePoint] is not permitted, "
                "please reformat your input and try again."
            )
        elif extra := tool["toolSpec"]["inputSchema"]["json"].keys() - {"type", "properties", "required"}:
            # docs.aws.amazon.com/nova/latest/userguide/tool-use.html
            yield Refusal(f"#/toolConfig/tools/{index}: extraneous keys {sorted(extra)} are not permitted")
    fields = exchange.body.get("additionalModelRequestFields", {})
    if extra := fields.keys() - {"reasoningConfig"}:
        yield Refusal(f"Malformed input request: #: extraneous keys {sorted(extra)} are not permitted")
    effort = fields.get("reasoningConfig", {}).get("maxReasoningEffort", "low")
    if effort not in ("low", "medium", "high"):
        # gh:UKGovernmentBEIS/inspect_ai#5301
        yield Refusal("Malformed input request: the provided reasoning config value is invalid")
    if effort == "high" and exchange.body["inferenceConfig"].keys() & {"maxTokens", "temperature", "topP"}:
        # gh:UKGovernmentBEIS/inspect_ai#3767
        yield Refusal("maxTokens, temperature and topP must be unset when maxReasoningEffort is high")
    if "outputConfig" in exchange.body:
        yield Refusal("This model doesn't support the outputConfig field. Remove outputConfig and try again.")


def separate_texts(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse texts beside calls or results, as most models do that are not Anthropic's or Amazon's."""
    for index, message in enumerate(exchange.body["messages"]):
        kinds = {key for block in message["content"] for key in block}
        for kind, name in (("toolUse", "tool use"), ("toolResult", "tool result")):
            if {"text", kind} <= kinds:
                # gh:langchain-ai/langchain-aws#141, gh:quarkiverse/quarkus-langchain4j#1983
                yield Refusal(
                    f"messages.{index}.content: Conversation blocks and {name} blocks cannot be provided in the same "
                    "turn."
                )


def refuse_fields(*names: str) -> Rule:
    """Make the rule of a model that does not have these fields, named by their paths."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for name in names:
            value: Any = exchange.body
            for key in name.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                # gh:langgenius/dify-official-plugins#1767, gh:strands-agents/harness-sdk#1241
                yield Refusal(f"This model doesn't support the {name} field. Remove {name} and try again.")

    return rule


# Anthropic's models


def translate(body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a request into the form of the Messages API, as Bedrock does for Anthropic's models."""
    config, fields = body.get("toolConfig", {}), body.get("additionalModelRequestFields", {})
    inference = body.get("inferenceConfig", {})
    names = {
        "maxTokens": "max_tokens",
        "temperature": "temperature",
        "topP": "top_p",
        "stopSequences": "stop_sequences",
    }
    translated: dict[str, Any] = {
        "messages": [
            {
                "role": message["role"],
                "content": [_translate_block(b) for b in message["content"] if "cachePoint" not in b],
            }
            for message in body.get("messages", ())
        ],
        "system": [{"type": "text", "text": block["text"]} for block in body.get("system", ()) if "text" in block],
        "tools": [
            {
                "name": tool["toolSpec"]["name"],
                "description": tool["toolSpec"].get("description"),
                "input_schema": tool["toolSpec"]["inputSchema"]["json"],
            }
            for tool in config.get("tools", ())
            if "toolSpec" in tool
        ],
        **{names[name]: value for name, value in inference.items()},
        **fields,
    }
    if choice := config.get("toolChoice"):
        translated["tool_choice"] = {"type": next(iter(choice))}
    return translated


def _translate_block(block: Block) -> Block:
    match block:
        case {"text": text}:
            return {"type": "text", "text": text}
        case {"toolUse": call}:
            return {"type": "tool_use", "id": call["toolUseId"], "name": call["name"], "input": call["input"]}
        case {"toolResult": result}:
            content = [_translate_block(one) for one in result["content"]]
            return {"type": "tool_result", "tool_use_id": result["toolUseId"], "content": content}
        case {"image": _} | {"document": _}:
            return {"type": next(iter(block))}
        case {"reasoningContent": {"redactedContent": data}}:
            return {"type": "redacted_thinking", "data": data}
        case {"reasoningContent": {"reasoningText": reasoning}}:
            return {"type": "thinking", "thinking": reasoning["text"], "signature": reasoning.get("signature", "")}
    raise AssertionError(f"a block of no known kind: {block}")


def _ask_model(rule: Rule) -> Rule:
    """Make the rule of a model from one of the Messages API. Bedrock says whose error it is."""

    def ask(exchange: Exchange) -> Iterator[Refusal]:
        for refusal in rule(Exchange(translate(exchange.body), exchange.headers, exchange.sent)):
            yield Refusal(f"The model returned the following errors: {refusal.message}")

    return ask


def take_model_fields(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse fields that Anthropic's models do not have, and answers' schemas that are not closed."""
    for name in exchange.body.get("additionalModelRequestFields", {}).keys() - set(_FIELDS_OF_MODEL):
        yield Refusal(f"The model returned the following errors: {name}: Extra inputs are not permitted")
    text_format = exchange.body.get("outputConfig", {}).get("textFormat")
    if text_format and '"additionalProperties": false' not in text_format["structure"]["jsonSchema"]["schema"]:
        yield Refusal(
            "The model returned the following errors: output_config.format.schema: For 'object' type, "
            "'additionalProperties' must be explicitly set to false"
        )


def _list_model_rules(names: tuple[Callable[[Exchange], Any], ...]) -> tuple[Rule, ...]:
    return tuple(map(_ask_model, names))


def name_documents(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse documents whose names have other characters, or twice the same, or that have no text beside them."""
    for index, message in enumerate(exchange.body.get("messages") or []):
        inner = [block["toolResult"]["content"] for block in message["content"] if "toolResult" in block]
        for blocks in (message["content"], *inner):
            names = [block["document"]["name"] for block in blocks if "document" in block]
            if names and not any("text" in block for block in blocks):
                yield Refusal(
                    f"The message at messages.{index} has a document and no text. Add a text block, and try again."
                )
            if not all(re.fullmatch(r"(?!.*\s\s)[A-Za-z0-9\s()\[\]-]{1,200}", name) for name in names):
                yield Refusal(
                    "The document file name can only contain alphanumeric characters, whitespace characters, "
                    "hyphens, parentheses, and square brackets. The name can't contain more than one consecutive "
                    "whitespace character. Edit the document name and retry your request."
                )
            if len(set(names)) < len(names):
                yield Refusal("The message contains documents with duplicate names. Use unique names, and try again.")


RULES: tuple[Rule, ...] = (match_model, name_documents, order_messages, pair_calls, take_tools, limit_cache_points)
"""What Converse refuses, whichever model it is for."""

CLAUDE: tuple[Rule, ...] = (
    verify_signature,
    *RULES,
    take_model_fields,
    *_list_model_rules(
        (
            messages_api.order_messages,
            messages_api.pair_calls,
            messages_api.have_content,
            messages_api.return_thinking,
            messages_api.take_tools,
            messages_api.take_options,
        )
    ),
)
"""What Converse refuses for Anthropic's models."""

CLAUDE_LOSSES: tuple[Rule, ...] = _list_model_rules((messages_api.keep_thinking, messages_api.keep_ids))
"""What it takes although something is lost."""
