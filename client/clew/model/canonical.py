"""The canonical bytes of a JSON value (RFC 8785), and the digest over them."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

# Larger integers are not exact as IEEE 754 doubles, the numbers of RFC 8785.
_EXACT_INTEGER = 2**53 - 1
# A fixed depth rather than the end of the interpreter's stack, so that all workers accept the same values. Pydantic
# reads as many levels.
_MAX_DEPTH = 200


def canonicalize(value: Any) -> bytes:
    """Encode a JSON value as RFC 8785 says.

    An integer beyond 2^53 becomes the nearest double, as it does for readers without big integers.

    Raises:
        ValueError: The value has a NaN, an infinity or a lone surrogate, or over 200 levels.
    """
    check_depth(value, _MAX_DEPTH)
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_convert_large_integers(value))


def compute_digest(value: Any) -> str:
    """Compute the SHA-256 of the canonical form, as 64 hexadecimal digits."""
    return hashlib.sha256(canonicalize(value)).hexdigest()


def check_depth(value: Any, max_depth: int) -> None:
    """Check how deep a JSON value is nested.

    Raises:
        ValueError: The value has over `max_depth` levels.
    """
    level = [value]
    for _ in range(max_depth + 1):
        containers = [item for item in level if isinstance(item, dict | list | tuple)]
        if not containers:
            return
        level = [item for inner in containers for item in (inner.values() if isinstance(inner, dict) else inner)]
    raise ValueError(f"nested over {max_depth} levels deep")


def _convert_large_integers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_INTEGER:
        try:
            return float(value)
        except OverflowError:
            raise ValueError("an integer beyond the range of a double") from None
    if isinstance(value, dict):
        return {key: _convert_large_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_large_integers(item) for item in value]
    return value
