"""The text that a model reads of an MCP tool's result. Pure, and without the package `mcp`: results come as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json, to_json


def make_result_text(result: Mapping[str, Any]) -> str:
    """Make the text of a `CallToolResult`: its texts, descriptions of other content, and structured content as JSON.

    Structured content that the texts say already is left out.
    """
    content = result.get("content") or []
    parts = list(_describe_parts(content))
    structured = result.get("structuredContent")
    texts = [part["text"] for part in content if part.get("type") == "text"]
    if structured is not None and not _have_content(texts, structured):
        parts.append(to_json(structured).decode())
    return "\n".join(parts)


def _describe_parts(content: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for part in content:
        match part.get("type"):
            case "text":
                yield part["text"]
            case "resource" if "text" in part["resource"]:
                yield part["resource"]["text"]
            case "resource":
                resource = part["resource"]
                yield f"[resource {resource['uri']}: {_describe_data(resource, 'blob')}]"
            case "resource_link":
                yield f"[link to {part.get('title') or part.get('name') or 'a resource'}: {part['uri']}]"
            case kind:
                yield f"[{kind}: {_describe_data(part, 'data')}]"


def _describe_data(part: Mapping[str, Any], member: str) -> str:
    # Base64 has four characters for three bytes.
    size = len((part.get(member) or "").rstrip("=")) * 3 // 4
    return f"{part.get('mimeType') or 'unknown type'}, {size} bytes"


def _have_content(texts: list[str], structured: Any) -> bool:
    """Check whether texts are a form of the structured content. Python servers put values into `{"result": …}`."""
    values = [_parse(text) for text in texts]
    is_wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
    forms = [structured, *([structured["result"]] if is_wrapped else [])]
    return any(form in values or form in texts or form in (values, texts) for form in forms)


def _parse(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text
