"""Results of remote calls: what another worker's activity returns, as the text that the model reads."""

from __future__ import annotations

from pydantic_core import from_json

from clew.model.texts import replace_data, truncate_result
from clew_workflows.protocol import ToolAnswered

_JSON = ("json/plain", "json/protobuf")


def make_answer(encoding: str, data: bytes, limit: int) -> ToolAnswered:
    """Make the answer of a remote call from the payload of its activity's result.

    A JSON string is the text itself, any other JSON value is its JSON text. Data, such as an image, is described. A
    result over the limit is truncated, one that is not JSON is an error that the model reads.

    Args:
        encoding: The payload's encoding, from its metadata.
        data: The payload's data.
        limit: The most bytes of the text.
    """
    if encoding == "binary/null":
        return ToolAnswered(content="null")
    if encoding not in _JSON:
        return _make_error(f"its encoding is {encoding[:100]!r}, not JSON")
    try:
        value = from_json(data)
        text = replace_data(value if isinstance(value, str) else data.decode()).encode()
        content = text.decode() if len(text) <= limit else truncate_result(text, limit)[0]
    except ValueError as error:
        return _make_error(str(error)[:200])
    return ToolAnswered(content=content)


def _make_error(reason: str) -> ToolAnswered:
    return ToolAnswered(content=f"error: the tool has run, but its result cannot be read: {reason}", is_error=True)
