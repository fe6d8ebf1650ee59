"""Trims the conversation of `bench.projection` with `trim_messages` of `langchain-core`, for comparison.

The package is not installed with Clew. To install it into a folder of its own and to print the comparison:

    .venv/bin/pip install --target .venv/langchain --require-hashes --only-binary :all: -r constraints/bench.txt
    PYTHONPATH=.venv/langchain .venv/bin/python -m bench.projection
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clew_workflows.contract.messages import Message, canonicalize
from clew_workflows.contract.tokens import Encoding

INSTALL = (__doc__ or "").partition("\n\n")[2]
Counter = Callable[[Sequence[Any]], int]


class LangChain:
    """Its messages and its `trim_messages`.

    Raises:
        ImportError: It is not installed.
    """

    def __init__(self, by: Encoding) -> None:
        self._by = by
        # Imported by name: mypy runs without the package.
        self._kinds: Any = importlib.import_module("langchain_core.messages")
        self.version: str = importlib.import_module("langchain_core").__version__

    def convert(self, messages: Iterable[Message]) -> list[Any]:
        """Convert messages to its own objects."""
        return [self._convert_one(message) for message in messages]

    def _convert_one(self, message: Message) -> Any:
        kinds, content = self._kinds, message["content"]
        match message["role"]:
            case "system":
                return kinds.SystemMessage(content)
            case "user":
                return kinds.HumanMessage(content)
            case "tool":
                return kinds.ToolMessage(content, tool_call_id=message.get("tool_call_id"), name=message.get("name"))
            case _:
                calls = [
                    {"id": call["id"], "name": call["name"], "args": call["arguments"]}
                    for call in message.get("tool_calls", [])
                ]
                return kinds.AIMessage(content, tool_calls=calls)

    def count(self, message: Any) -> int:
        """Count the tokens of a message as Clew does."""
        by = self._by
        tokens = by.framing + by.count(message.content) + by.count(message.name or "")
        if calls := getattr(message, "tool_calls", None):
            asked = [{"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in calls]
            tokens += by.count(canonicalize(asked).decode())
        return tokens

    def make_counter(self) -> Counter:
        """Make a counter that counts each message anew."""
        return lambda messages: sum(map(self.count, messages))

    def make_caching_counter(self) -> Counter:
        """Make a counter that caches the count of each message."""
        known: dict[int, int] = {}

        def count_once(message: Any) -> int:
            if id(message) not in known:
                known[id(message)] = self.count(message)
            return known[id(message)]

        return lambda messages: sum(map(count_once, messages))

    def trim(self, messages: Sequence[Any], budget: int, counter: Counter) -> list[Any]:
        """Trim to the system prompt and the newest messages within a budget, beginning with a user's."""
        trimmed: list[Any] = self._kinds.trim_messages(
            messages,
            max_tokens=budget,
            strategy="last",
            token_counter=counter,
            start_on="human",
            include_system=True,
        )
        return trimmed
