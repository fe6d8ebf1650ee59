"""What a model provider is: a pure encoder of requests and a pure decoder of what streams back.

The one HTTP boundary between the two is `clew_activities.providers.http`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from clew.contract import ModelOptions
from clew.model.messages import Message, ToolSpec
from clew_workflows.protocol import ModelReply


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model call, provider-neutral.

    `model` is the name without its provider. `options.max_output_tokens` is set. With `output_schema`, a JSON
    Schema, the reply's text is asked to be a JSON value of it. Requests with one `cache_key` tend to begin alike.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    options: ModelOptions
    output_schema: dict[str, Any] | None = None
    cache_key: str | None = None


@dataclass(frozen=True)
class HttpRequest:
    """A POST: the path below the provider's base URL, the headers with the key among them, the JSON body."""

    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: dict[str, Any]


def safe_name(name: str) -> str:
    """A tool's name as every provider takes it back.

    Models make names up, and a thread keeps what they said; the provider that gave out `my tool` refuses
    every later request that holds it.
    """
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


class Decoder(Protocol):
    """A fold over the server-sent events of one reply, in time linear in their length.

    It may be looked at at any time, also while another thread feeds it.

    Raises:
        ProviderError: from `feed`, the error that the provider sent inside the stream.
    """

    def feed(self, event: str, data: str) -> None:
        """Take one event: its name (`message` where it had none) and its data.

        A whole JSON reply, from a server that does not stream, is taken as an event like any other.
        """
        ...

    @property
    def text(self) -> str:
        """The reply's text so far."""
        ...

    @property
    def thinking(self) -> str:
        """What the model has thought aloud so far."""
        ...

    @property
    def tool_name(self) -> str | None:
        """The tool whose arguments are arriving, or arrived last."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the provider's end marker came; nothing after it matters."""
        ...

    def finish(self) -> ModelReply:
        """The reply, once the stream is over.

        Raises:
            ContentRefused: the model or its provider declined.
            EmptyReply: there is neither text nor a tool call.
            TruncatedStream: neither an end marker nor a reason to stop came.
        """
        ...


class Provider(Protocol):
    """A model provider, as configured for this worker. Its repr shows no key."""

    @property
    def name(self) -> str:
        """What stands before the colon in a session's model."""
        ...

    @property
    def base_url(self) -> str:
        """Without a slash at its end."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """What its requests carry that nobody else may see."""
        ...

    def encode(self, request: ModelRequest) -> HttpRequest:
        """The request in the provider's format."""
        ...

    def decoder(self) -> Decoder:
        """A fresh decoder, for one reply."""
        ...
