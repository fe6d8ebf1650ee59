"""Scripts: the replies of a model in a test."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from clew.local import Reply, ScriptedModel
from clew_activities.providers import Providers, load_providers

PROVIDER = "scripted"
"""The provider of the scripted models' names: `scripted:…`."""


@dataclass(frozen=True)
class ScriptedRequest:
    """A model call, as the scripted model received it.

    Attributes:
        number: The number of the call among those of its model, from 1 on.
        body: The body of the request, in the format of OpenAI's Chat Completions.
    """

    number: int
    body: Mapping[str, Any] = field(repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, oldest first; the system prompt is the first one."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def last(self) -> dict[str, Any]:
        """The last message."""
        return self.messages[-1]

    @property
    def text(self) -> str:
        """The text of the last message."""
        return str(self.last["content"])

    @property
    def role(self) -> str:
        """The role of the last message: `user` or `tool`."""
        return str(self.last["role"])

    @property
    def system_prompt(self) -> str | None:
        """The system prompt."""
        first = self.messages[0]
        return str(first["content"]) if first["role"] == "system" else None

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [tool["function"]["name"] for tool in self.body.get("tools", ())]


ScriptedAnswer = Reply | str
"""A reply; a string is its text."""
Script = (
    ScriptedAnswer
    | Sequence[ScriptedAnswer]
    | Callable[[ScriptedRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]
)
"""The replies of a model.

- A reply or a string: it is the reply to every call.
- A list: its replies, one a call. A call after the last one fails its request.
- A function: it makes the reply from the request. A sync function runs in a thread of its own and may block, an async
  one runs on the stack's event loop. If it raises, the request fails with the error.
"""


class Scripts:
    """The scripts of the models of a stack, by the model's name, and the requests that they have received."""

    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}
        self._requests: dict[str, list[ScriptedRequest]] = {}
        self._lock = threading.Lock()

    def add_model(self, name: str | None, script: Script, like: str | None = None) -> str:
        """Add a model, or replace the script of one. Returns it as `provider:name`; None: a new name is made.

        A new name ends with the name of `like`, so that its window, its encoding and its prices are those of `like`.
        """
        with self._lock:
            if name is None:
                name = "/".join(filter(None, (f"model-{len(self._scripts)}", like and like.partition(":")[2])))
            self._scripts[name] = script
            self._requests.setdefault(name, [])
        return f"{PROVIDER}:{name}"

    def get_requests(self, model: str) -> list[ScriptedRequest]:
        """Get the requests that a model has received, oldest first. The model is named as `provider:name`.

        Raises:
            KeyError: There is no such model.
        """
        return list(self._requests[model.removeprefix(f"{PROVIDER}:")])

    async def answer(self, body: dict[str, Any]) -> Reply:
        """Make the reply to the body of a request."""
        name = str(body.get("model"))
        if name not in self._scripts:
            return Reply.error(HTTPStatus.NOT_FOUND, f"no script has the name {name!r}")
        requests, script = self._requests[name], self._scripts[name]
        request = ScriptedRequest(len(requests) + 1, body)
        requests.append(request)
        try:
            answer = await _play(script, request)
        except Exception as error:
            # This error is not retried: an assertion of the script ends the test.
            return Reply.error(HTTPStatus.BAD_REQUEST, f"the script raised {type(error).__name__}: {error}")
        return Reply(answer) if isinstance(answer, str) else answer


def make_providers(served: ScriptedModel) -> Providers:
    """Make the provider of the scripted models that a server serves."""
    return load_providers({f"CLEW_PROVIDER_{PROVIDER.upper()}_BASE_URL": served.base_url})


async def _play(script: Script, request: ScriptedRequest) -> ScriptedAnswer:
    match script:
        case str() | Reply():
            return script
        case Sequence():
            if request.number > len(script):
                raise IndexError(f"it has {len(script)} replies, and this is call {request.number}")
            return script[request.number - 1]
        case _:
            if inspect.iscoroutinefunction(script):
                answer: Any = script(request)
            else:
                answer = await asyncio.to_thread(_call, script, request)
            # A sync function may return an awaitable, too.
            reply: ScriptedAnswer = await answer if inspect.isawaitable(answer) else answer
            return reply


def _call(script: Callable[[ScriptedRequest], Any], request: ScriptedRequest) -> Any:
    return script(request)
