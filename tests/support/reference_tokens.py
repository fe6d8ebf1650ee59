"""Canonical JSON and the tokens of a message, written from the design: tests compare the real ones with them."""

from __future__ import annotations

import json
from typing import Any

from clew_workflows.contract.messages import Message
from clew_workflows.contract.tokens import Encoding


def canonical_json(value: Any) -> str:
    """Make the RFC 8785 form of a value without fractions and with ASCII keys, without the library."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def count_tokens(message: Message, by: Encoding) -> int:
    """Count the tokens of a message: text, extras as sorted compact JSON, name and framing."""
    extras = [message.get(name) for name in ("tool_calls", "provider_data")]
    texts = [
        json.dumps(extra, sort_keys=True, separators=(",", ":"), ensure_ascii=False) for extra in extras if extra
    ]
    return by.framing + sum(map(by.count, [message["content"], message.get("name", ""), *texts]))
