"""One byte form for every JSON value (RFC 8785), and the digest over it."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

# Above this an integer is no longer exact as an IEEE 754 double, which is all that RFC 8785 knows.
_EXACT_INTEGER = 2**53 - 1
# A fixed depth, and not where the interpreter's stack happens to end, so that what one worker can write every
# other can too. It is as deep as pydantic reads.
_MAX_DEPTH = 200


def canonicalize(value: Any) -> bytes:
    """The RFC 8785 form of a JSON value.

    Integers beyond 2^53 take the double nearest to them, as every RFC 8785 implementation in a language
    without big integers does on reading them.

    Raises:
        ValueError: the value is not JSON: NaN, an infinity, a lone surrogate, or nested over 200 levels deep.
    """
    check_depth(value, _MAX_DEPTH)
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_convert_large_integers(value))


def compute_digest(value: Any) -> str:
    """SHA-256 over the canonical form, as 64 hexadecimal digits."""
    return hashlib.sha256(canonicalize(value)).hexdigest()


def check_depth(value: Any, most: int) -> None:
    """Raise where a JSON value is nested too deep.

    Raises:
        ValueError: it is nested over `most` levels deep.
    """
    level = [value]
    for _ in range(most + 1):
        containers = [item for item in level if isinstance(item, dict | list | tuple)]
        if not containers:
            return
        level = [item for some in containers for item in (some.values() if isinstance(some, dict) else some)]
    raise ValueError(f"nested over {most} levels deep")


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
