"""What the scripted model says, and what it notes about the requests.

A message may say what the model does: `[tools 3]` makes it call the tool three times, one after the other, before it
answers; `[hold NAME]` lets its first answer after the tool calls wait forever.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.peers.conversation import ANSWER, TOOL
from clew.local import Reply, ToolCall, scripted_model


@dataclass(frozen=True)
class Context:
    """What a request shows the model.

    Attributes:
        users: User messages, by their texts.
        assistants: Assistant messages without tool calls.
        results: Results of tools.
    """

    users: Counter[str]
    assistants: int
    results: int

    @classmethod
    def read(cls, messages: list[dict[str, Any]]) -> Context:
        """Read the messages of a request."""
        roles = Counter(message["role"] for message in messages)
        answers = sum(message["role"] == "assistant" and not message.get("tool_calls") for message in messages)
        users = Counter(read_text(message) for message in messages if message["role"] == "user")
        return cls(users, answers, roles["tool"])


@dataclass
class Script:
    """The model.

    Attributes:
        calls: Requests by their newest user message.
        messages: The messages of the newest request.
        held: Set for the names of answers that wait, or waited.
    """

    calls: Counter[str] = field(default_factory=Counter)
    messages: list[dict[str, Any]] = field(default_factory=list)
    held: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Make the reply to a request."""
        self.messages = messages = body["messages"]
        newest = max(index for index, message in enumerate(messages) if message["role"] == "user")
        text = read_text(messages[newest])
        self.calls[text] += 1
        results = sum(message["role"] == "tool" for message in messages[newest:])
        wanted = re.search(r"\[tools (\d+)\]", text)
        if wanted and results < int(wanted[1]):
            call_id = f"call_{newest}_{results}"
            return Reply(tool_calls=(ToolCall(TOOL, {"number": results}, id=call_id),))
        hold = re.search(r"\[hold (\w+)\]", text)
        if hold and not self.held[hold[1]].is_set():
            self.held[hold[1]].set()
            return Reply(hangs=True)
        return Reply(ANSWER)

    async def wait_until_held(self, name: str) -> None:
        """Wait until the answer with a name waits."""
        await self.held[name].wait()


@asynccontextmanager
async def serve_script() -> AsyncIterator[tuple[Script, str]]:
    """Serve the model; yields its script and its base URL. The server keeps no requests."""
    script = Script()

    def answer(body: dict[str, Any]) -> Reply:
        model.requests.clear()
        return script(body)

    async with scripted_model(answer) as model:
        yield script, model.base_url


def read_text(message: dict[str, Any]) -> str:
    """Read the text of a message, which may be in parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
