"""What servers refuse of requests one day, in their own words: a part, own data, a tool's name or schema, a text.

A `Refusing` is a switch of a strict server. It refuses each request that has its target, as the real server does:
with the path of the item in the server's own form, with another name of it, or without saying which one it is.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clew.content import Media
from tests.providers.strict_server import Dialect, Exchange, Refusal, Sent, StrictServer

Kind = Literal["media", "own_data", "name", "schema", "text"]
Format = Literal["anthropic", "bedrock", "gemini", "responses", "chat"]
Path = tuple[str | int, ...]
_TYPES = {"image": "image/png", "file": "application/pdf"}
"""The types of the images and files of the sessions."""


@dataclass(frozen=True)
class Words:
    """How a server says it.

    Attributes:
        message: The message; `{path}`, `{text}` and `{name}` are the item's path, its text, shortened, and the tool.
        code: The code of the error.
        param: The parameter of the error, with the same replacements.
        status: The HTTP status.
        type: The type of the error.
        events: The events of a stream that say it, in place of an error.
    """

    message: str
    code: Any = None
    param: str | None = None
    status: int = 400
    type: str | None = "invalid_request_error"
    events: tuple[Any, ...] = ()


WORDS: Mapping[Format, Mapping[Kind, Sequence[Words]]] = {
    "anthropic": {
        "media": (
            Words("Could not process image"),
            Words("{path}.image.source.base64: The image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
            Words("{path}.document.source.base64.data: The PDF specified was not valid."),
            Words("{path}.image.source.base64.data: Image does not match the provided media type image/png"),
            Words("Request exceeds the maximum size", status=413, type="request_too_large"),
        ),
        "own_data": (
            Words("{path}: Invalid `signature` in `thinking` block"),
            Words("{path}: Invalid `data` in `redacted_thinking` block"),
            Words("Invalid `signature` in `thinking` block"),
            Words(
                "{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                "modified. These blocks must remain as they were in the original response."
            ),
        ),
        "name": (
            Words("tools.{tool}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"),
            Words("tools: Tool names must be unique."),
        ),
        "schema": (
            Words(
                "tools.{tool}.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
                "(https://json-schema.org/draft/2020-12). Learn more about tool use."
            ),
            Words("input_schema does not support oneOf, allOf, or anyOf at the top level"),
        ),
        "text": (
            Words("Content Exists Risk"),
            Words("The request was rejected because it was considered high risk", type="content_filter"),
            Words("input new_sensitive (1026)"),
        ),
    },
    "bedrock": {
        "media": (
            Words("The model returned the following errors: {path}.image.source.base64: Could not process image"),
            Words("The PDF specified was not valid."),
            Words(
                "The document file name can only contain alphanumeric characters, whitespace characters, hyphens, "
                "parentheses, and square brackets."
            ),
            Words("Could not process image"),
        ),
        "own_data": (
            Words("The model returned the following errors: {path}: Invalid `signature` in `thinking` block"),
            Words("The reasoningContent block has an invalid signature."),
        ),
        "name": (
            Words(
                "Value '{name}' at 'toolConfig.tools.{tool1}.member.toolSpec.name' failed to satisfy constraint: "
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
            ),
        ),
        "schema": (
            Words(
                "The value at toolConfig.tools.{tool}.toolSpec.inputSchema.json is invalid: schema is not supported."
            ),
            Words(
                "The model returned the following errors: tools.{tool}.custom.input_schema: JSON schema is invalid."
            ),
        ),
        "text": (
            Words(
                "This request has been blocked by our content filters. Our filters automatically flagged this prompt "
                "because it may conflict our AUP or AWS Responsible AI Policy."
            ),
        ),
    },
    "gemini": {
        "media": (
            Words("Unable to process input image. Please retry or report in https://developers.generativeai.google/"),
            Words("Provided image is not valid."),
            Words("The document has no pages."),
            Words("Request contains an invalid argument."),
            Words("Invalid value at '{path}.inline_data' (TYPE_BYTES), Base64 decoding failed"),
        ),
        "own_data": (
            Words("Thought signature is not valid"),
            Words("Unable to submit request because Thought signature is not valid."),
            Words("Corrupted thought signature."),
            Words("Request contains an invalid argument."),
        ),
        "name": (
            Words(
                "* GenerateContentRequest.tools[0].function_declarations[{tool}].name: Invalid function name. Must "
                "start with a letter or an underscore."
            ),
        ),
        "schema": (
            Words(
                "* GenerateContentRequest.tools[0].function_declarations[{tool}].parameters.properties: should be "
                "non-empty for OBJECT type"
            ),
            Words(
                'Invalid JSON payload received. Unknown name "x" at '
                "'tools[0].function_declarations[{tool}].parameters': Cannot find field."
            ),
            Words("Request contains an invalid argument."),
        ),
        "text": (
            # gh:simonw/llm-gemini#144
            Words(
                "the prompt was blocked",
                events=({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {}},),
            ),
            Words(
                "The prompt could not be submitted. This prompt contains sensitive words that violate Google's "
                "Responsible AI practices."
            ),
        ),
    },
    "responses": {
        "media": (
            Words(
                "You uploaded an unsupported image. Please make sure your image is valid.", code="image_parse_error"
            ),
            Words(
                "The image data you provided does not represent a valid image.", code="invalid_image", param="{path}"
            ),
            Words("Invalid 'input[{item}].content'. Failed to process the file.", code="invalid_value"),
        ),
        "own_data": (
            Words("The encrypted content {short} could not be verified.", code="invalid_encrypted_content"),
            Words(
                "The encrypted content for item {id} could not be verified. Reason: Encrypted content could not be "
                "decrypted or parsed.",
                code="invalid_encrypted_content",
            ),
            Words("Item with id '{id}' not found.", status=404, param="input"),
            Words("The encrypted content could not be verified.", code="invalid_encrypted_content"),
        ),
        "name": (
            Words(
                "Invalid 'tools[{tool}].name': string does not match pattern.",
                code="invalid_value",
                param="tools[{tool}].name",
            ),
        ),
        "schema": (
            Words(
                "Invalid schema for function '{name}': In context=(), object schema missing properties.",
                code="invalid_function_parameters",
                param="tools[{tool}].parameters",
            ),
            Words("Invalid schema for function '{name}': False is not of type 'array'."),
        ),
        "text": (
            Words(
                "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again "
                "with a different prompt.",
                code="invalid_prompt",
            ),
        ),
    },
    "chat": {
        "media": (
            Words(
                "You uploaded an unsupported image. Please make sure your image has of one the following formats: "
                "['png', 'jpeg', 'gif', 'webp'].",
                code="invalid_image_format",
            ),
            Words("Failed to load image or audio file"),
            Words("cannot identify image file <_io.BytesIO object at 0x7f>", status=500, type="InternalServerError"),
            Words("Invalid image data", param="{path}"),
            Words("invalid request, please check your request body"),
        ),
        "own_data": (
            Words("{path}: the reasoning_content is invalid"),
            Words("Invalid reasoning_details in the request."),
            Words("Thought signature is not valid"),
        ),
        "name": (
            Words(
                "Invalid 'tools[{tool}].function.name': string does not match pattern.",
                code="invalid_value",
                param="tools[{tool}].function.name",
            ),
            Words("Invalid function name {name}, must start with a letter"),
        ),
        "schema": (
            Words(
                "Invalid schema for function '{name}': In context=(), object schema missing properties.",
                code="invalid_function_parameters",
                param="tools[{tool}].function.parameters",
            ),
            Words("tools.{tool}.function.parameters is not a valid moonshot flavored json schema"),
        ),
        "text": (
            Words(
                "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. "
                "Please modify your prompt and retry.",
                code="content_filter",
            ),
            # gh:QwenLM/qwen-code#2905
            Words(
                "<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate content."
            ),
            Words("Content Exists Risk"),
        ),
    },
}
"""The words of each format's servers, as they were reported in public."""


def find_format(dialect: Dialect) -> Format:
    """Find the format of a dialect's server."""
    path = dialect.wire.path
    if "enerateContent" in path:
        return "gemini"
    if "converse" in path:
        return "bedrock"
    if "responses" in path:
        return "responses"
    return "anthropic" if path.endswith("/messages") else "chat"


def iterate_texts(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Iterate over all texts of a body, each with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from iterate_texts(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from iterate_texts(inner, (*path, index))


OWN_FIELDS = (
    "signature",
    "data",
    "encrypted_content",
    "thoughtSignature",
    "thought_signature",
    "reasoning_content",
    "reasoning",
    "redactedContent",
    "thinking",
)
"""The fields of own data, in all formats."""


def list_own_texts(body: Mapping[str, Any], sent: Sequence[Sent]) -> list[str]:
    """List the texts of a body that are the model's own: those that the server has sent before."""
    rows = [[one.thinking, *one.returns.values(), *map(dict[str, Any], one.calls.values())] for one in sent]
    written = json.dumps(rows, default=str)
    return [
        text
        for path, text in iterate_texts(body)
        if path[-1] in OWN_FIELDS and len(text) >= 8 and json.dumps(text)[1:-1] in written
    ]


def list_named_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the declarations of the session's tools, in any format."""
    tools: list[dict[str, Any]] = []
    for tool in body.get("tools") or body.get("toolConfig", {}).get("tools") or ():
        declarations = tool.get("functionDeclarations", [tool.get("function") or tool.get("toolSpec") or tool])
        tools += [spec for spec in declarations if "name" in spec]
    return tools


def find_schema(tool: Mapping[str, Any]) -> Any:
    """Find the schema of a tool's declaration."""
    names = ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
    return next((tool[name] for name in names if name in tool), None)


def make_refusing(
    server: StrictServer,
    kind: Kind,
    words: Words,
    media: Sequence[Media],
    chooser: random.Random,
    *,
    texts: Sequence[str] = (),
) -> Refusing | None:
    """Make the switch that refuses something that the server's last request has, one of the media that it takes, or
    a message with one of the texts.

    None: there is nothing of the kind.
    """
    form, body = find_format(server.dialect), server.exchanges[-1].body if server.exchanges else {}
    if kind == "media":
        taken = [one for one in media if _TYPES[one.kind] in server.dialect.media]
        data = [base64.b64encode(one.read()).decode() for one in taken]
        return Refusing(form, words, refuse_text(chooser.choice(data), within=True)) if data else None
    if kind == "text":
        return Refusing(form, words, refuse_text(chooser.choice(texts), within=True)) if texts else None
    if kind == "own_data":
        texts = list_own_texts(body, server.sent)
        return Refusing(form, words, refuse_text(chooser.choice(texts))) if texts else None
    if not (tools := list_named_tools(body)):
        return None
    tool = chooser.choice(tools)
    if kind == "name":
        return Refusing(form, words, refuse_tool_name(tool["name"]))
    return Refusing(form, words, refuse_schema(tool["name"], find_schema(tool)))


@dataclass
class Refusing:
    """Refuses one item from a moment on.

    Attributes:
        format: The server's format.
        words: Its words.
        has: Finds the path of the item in a body; None: the request has not got it.
        refused: The requests that were refused.
    """

    format: Format
    words: Words
    has: Callable[[Mapping[str, Any]], Path | None]
    refused: list[Exchange] = field(default_factory=list)

    def __call__(self, exchange: Exchange) -> Iterator[Refusal]:
        """Refuse a request that has the item."""
        path = self.has(exchange.body)
        if path is None:
            return
        self.refused.append(exchange)
        values = self._describe(exchange.body, path)
        words = self.words
        yield Refusal(
            words.message.format(**values),
            status=words.status,
            type=words.type,
            code=words.code,
            param=words.param and words.param.format(**values),
            events=words.events,
        )

    def _describe(self, body: Mapping[str, Any], path: Path) -> dict[str, Any]:
        node: Any = body
        found = {"id": "", "name": ""}
        for key in path:
            node = node[key]
            if isinstance(node, dict):
                found |= {name: node[name] for name in ("id", "name") if isinstance(node.get(name), str)}
        text = str(node)
        indices = [key for key in path if isinstance(key, int)]
        tool = indices[-1] if indices else 0
        return {
            **found,
            "path": _write(path, self.format),
            "short": f"{text[:4]}...{text[-4:]}",
            "tool": tool,
            "tool1": tool + 1,
            "item": indices[0] if indices else 0,
        }


def _write(path: Path, form: Format) -> str:
    """Write the path of an item: up to the part of the message that has it, with dots or brackets."""
    places = [place for place, key in enumerate(path) if isinstance(key, int)]
    shown = path[: places[:2][-1] + 1] if places else path
    if form in ("anthropic", "bedrock"):
        return ".".join(map(str, shown))
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in shown).lstrip(".")


def refuse_text(text: str, *, within: bool = False) -> Callable[[Mapping[str, Any]], Path | None]:
    """Refuse requests with a text that is this one, or `within` which it is."""

    def has(body: Mapping[str, Any]) -> Path | None:
        paths = (path for path, one in iterate_texts(body) if one == text or (within and text in one))
        return next(paths, None)

    return has


def refuse_tool_name(name: str) -> Callable[[Mapping[str, Any]], Path | None]:
    """Refuse requests that offer a tool of this name."""

    def has(body: Mapping[str, Any]) -> Path | None:
        return next((path for path, one in _iterate_tools(body) if one["name"] == name), None)

    return has


def refuse_schema(name: str, schema: Any) -> Callable[[Mapping[str, Any]], Path | None]:
    """Refuse requests that offer a tool of this name with this schema."""

    def has(body: Mapping[str, Any]) -> Path | None:
        tools = (path for path, one in _iterate_tools(body) if one["name"] == name and find_schema(one) == schema)
        return next(tools, None)

    return has


def _iterate_tools(body: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for base in (("tools",), ("toolConfig", "tools")):
        tools: Any = body
        for key in base:
            tools = tools.get(key) or {}
        for index, tool in enumerate(tools):
            if "functionDeclarations" in tool:
                for place, one in enumerate(tool["functionDeclarations"]):
                    yield (*base, index, "functionDeclarations", place), one
                continue
            inner = next((key for key in ("function", "toolSpec") if isinstance(tool.get(key), dict)), None)
            spec = tool[inner] if inner else tool
            if "name" in spec:
                yield ((*base, index, inner) if inner else (*base, index)), spec
