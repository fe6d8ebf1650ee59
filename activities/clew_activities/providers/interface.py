"""What a model provider is: the contract between Clew and the code that speaks one wire format.

A provider is pure. It encodes a request as the body of one HTTP POST, and decodes the server-sent events, or the one
JSON value, that come back. `clew_activities.providers.http` sends and receives; it is the only code that does.

A module that the variable CLEW_PROVIDERS names defines one function, `make_providers` (`ProvidersModule`). The
built-in providers are made in the same way, and of the same parts:

| module | holds |
|---|---|
| `interface` | this contract |
| `errors` | the errors to raise, and `classify_response` and `classify_event`, which classify most servers' errors |
| `reply` | `ReplyDraft`, which folds pieces into a reply and keeps every size within its bound |
| `sanitize` | texts and JSON values that are safe to store |
| `variables` | `read_key` and `read_url`, for the variables that configure a provider |

One call goes through a provider like this:

    request = provider.encode(model_request)
    the POST is sent
    status 200:  decoder = provider.make_decoder(); decoder.feed(event, data) for each event; decoder.finish()
    redirects:   an error, and never followed
    otherwise:   provider.read_error(answer)

What a provider can rely on:

- Each result of a tool follows the call that it answers. The first message is an assistant's where earlier ones
  were cut, and two messages of one role may follow one another.
- `provider_data` in a message came from a provider of the same name.
- No secret of the worker leaves the boundary in a reply or an error, however the server repeats it.
- Every reply, every event and every error's body has a bounded size.

What a provider must never do:

- Read a clock, the environment, a file or the network; keep state between two requests.
- Change the request that it is given.
- Put a secret anywhere but in a header named in `secret_headers`.
- Send a request elsewhere than below `base_url`: no session and no reply names a host.
- Retry. Temporal's retry policy does, as the error's class says.

What a wire format has no word for is left out of the request, in silence, and the session does without:

| not supported | what happens |
|---|---|
| `output_schema` | the reply is checked against the schema all the same, and the model is asked to correct it |
| `tools` | the model calls none |
| an option, `cache_key` | the server's own default |
| streaming | one JSON value is a whole reply; nothing is shown before its end |
| thinking, `provider_data` | the reply has none |
| usage | the call counts for nothing in `max_total_tokens`, and the context's budget is not corrected by it |

Prices and context windows are the worker's knowledge, by the model's name; of a model that it does not know, the
session's `context_policy` says how large its context may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from clew.contract import ModelOptions
from clew.model.messages import Message, ToolSpec
from clew_activities.providers.errors import ErrorAnswer, ProviderError
from clew_workflows.protocol import ModelReply

__all__ = [
    "Decoder",
    "ErrorAnswer",
    "HttpRequest",
    "ModelRequest",
    "Provider",
    "ProvidersModule",
    "make_safe_name",
]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model call, provider-neutral.

    Attributes:
        model: The model's name, without its provider.
        messages: The context, oldest message first. Any number of them have the role `system`.
        tools: The tools that the model may call.
        options: `max_output_tokens` is set; of the others, what is absent is left to the server.
        output_schema: A JSON Schema. The reply's text is asked to be a JSON value of it.
        cache_key: Requests with the same key tend to begin alike. It tells nothing of the session.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    options: ModelOptions
    output_schema: dict[str, Any] | None = None
    cache_key: str | None = None


@dataclass(frozen=True)
class HttpRequest:
    """A POST.

    Attributes:
        path: What follows the provider's base URL. It begins with a slash, and may hold a query.
        headers: Names in lower case. `accept`, `accept-encoding` and `content-type` are set without them.
        body: A JSON object.
    """

    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: dict[str, Any]


class Decoder(Protocol):
    """A fold over the events of one reply, in time linear in their length.

    Its properties may be read at any time, also while another thread feeds it: what they hold is streamed to the
    session's readers.
    """

    def feed(self, event: str, data: str) -> None:
        """Take one event: its name (`message` where it has none) and its data, which is not empty.

        A whole JSON reply, from a server that does not stream, is taken as an event like any other. Events of a
        kind that is not known are passed over.

        Raises:
            ProviderError: the error that the server sent inside the stream.
            TruncatedStream: the event cannot be read, so that something of the reply is missing.
        """
        ...

    @property
    def text(self) -> str:
        """The reply's text so far. It only ever grows at its end."""
        ...

    @property
    def thinking(self) -> str:
        """What the model has thought aloud so far. It only ever grows at its end."""
        ...

    @property
    def tool_name(self) -> str | None:
        """The tool whose arguments are arriving, or arrived last."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the server's end marker has come; nothing after it is fed."""
        ...

    def finish(self) -> ModelReply:
        """The reply, once the stream is over. It may be asked for more than once.

        Raises:
            ContentRefused: the model or the server declined.
            EmptyReply: there is neither text nor a tool call.
            OutputExhausted: there is neither, because the limit of tokens was reached.
            TruncatedStream: neither an end marker nor a reason to stop came.
        """
        ...


class Provider(Protocol):
    """A model provider, as this worker's environment configures it. Its repr shows no secret."""

    @property
    def name(self) -> str:
        """What stands before the colon in a session's model: 1 to 64 of a to z, digits, `_` and `-`."""
        ...

    @property
    def base_url(self) -> str:
        """Where it is reached: http or https, without user, query, fragment and without a slash at its end."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that nobody else may see: keys, tokens, passwords.

        They are redacted, by value and in every common encoding, from replies, errors and the worker's log, whichever
        provider is called. A secret of less than 8 characters is not looked for.
        """
        ...

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """Names, in lower case, of the headers that hold a secret.

        Where an error's message quotes such a header, its value is redacted even if it is none of `secrets`.
        """
        ...

    def encode(self, request: ModelRequest) -> HttpRequest:
        """The request in the provider's format. The same request gives the same bytes.

        Raises:
            BadRequest: the format cannot express it. Any other exception is taken for one, and is not retried.
        """
        ...

    def make_decoder(self) -> Decoder:
        """A fresh decoder, for one reply."""
        ...

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """The error that an answer with another status than 200 stands for.

        `classify_response` reads the errors of OpenAI, Anthropic and servers with the same wording, and classifies
        all others by their status. The error's class decides whether the call is retried. Users read its message.
        """
        ...


class ProvidersModule(Protocol):
    """A module that makes providers."""

    def make_providers(self, environ: Mapping[str, str]) -> Iterable[Provider]:
        """The providers that an environment configures; none where their variables are not set.

        Raises:
            ValueError: a variable's value cannot be used. The message names the variable, never the value.
        """
        ...


def make_safe_name(name: str) -> str:
    """A tool's name as every provider takes it back.

    Models make names up, and a thread keeps what they said; the provider that gave out `my tool` refuses
    every later request that holds it.
    """
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"
