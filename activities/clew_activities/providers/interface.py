"""The contract between Clew and a model provider, the code that implements one wire format.

A provider is pure. It encodes a request as the body of one HTTP POST, and decodes the response: server-sent events,
the events of AWS's binary stream, or one JSON value. Only `clew_activities.providers.http` sends and receives. A
provider that is a `Signer` too is pure except for its signatures: they need the time, and credentials that expire.

A module named in the variable CLEW_PROVIDERS defines one function, `make_providers` (`ProvidersModule`). The built-in
providers are defined in the same way and use the same modules:

| module | holds |
|---|---|
| `interface` | this contract |
| `provider_errors` | the errors to raise, and `classify_response` and `classify_event`, for those of most servers |
| `reply` | `DraftDecoder`, which folds pieces into a reply and keeps every size within its bound |
| `answer_object` | functions for answers with a schema, `rewrite_schema` and `list_subschemas` for any JSON Schema |
| `dialects` | the table of what each server accepts and sends |
| `fit_messages` | `fit_messages` and `group_turns`, which order messages as servers accept them; `choose_call_ids` |
| `fit_tools` | `fit_tools`, which makes the tools of any session acceptable to a dialect |
| `endpoint` | `Server`, a URL and a key, and what a request has otherwise than its context |
| `options` | levels of reasoning, and the caller's own fields for a provider |
| `sanitize` | functions that make texts and JSON values safe to store |
| `request_media` | `fit_media`, which chooses the images, recordings and files of a request; their encodings |
| `loading` | `read_key` and `read_url`, for the variables that configure a provider |

The steps of one model call:

    request = provider.encode(model_request)
    headers = provider.sign(url, headers, body), if the provider is a `Signer`
    `http` sends the POST
    status 200:  decoder = provider.make_decoder(model_request)
                 decoder.feed(event, data) for each event
                 decoder.finish()
    status 3xx:  an error; redirects are not followed
    otherwise:   provider.read_error(answer)

What a provider can rely on:

- Each tool result follows the call that it answers. The first message may be an assistant's, if earlier ones were
  left out. Two messages of one role may follow one another.
- `provider_data` in a message came from a provider of the same name.
- Clew redacts the worker's secrets from replies and errors, in whatever form the server repeats them.
- Clew bounds the size of every reply, every event and every error's body.

What a provider must never do:

- Read a clock, the environment, a file or the network; keep state between two requests.
- Change the request that it receives.
- Put a secret anywhere but in a header named in `secret_headers`.
- Send a request to any URL that is not below `base_url`. Sessions and replies cannot choose a host.
- Retry. Temporal retries, if the error's class is retryable.

A provider omits from the request what its wire format does not support, without an error:

| not supported | what happens |
|---|---|
| `output_schema` | the session still validates the reply, and asks the model to correct an invalid one |
| `tools` | the model calls no tools |
| images, recordings, files | their text markers are shown (`get_text`); `media.TakesMedia` says what is taken |
| an option, `cache_key` | the server uses its default |
| streaming | one JSON value is a complete reply; clients see no text before its end |
| thinking, `provider_data` | the reply has none |
| usage | it is estimated, and does not correct the context's token estimate |

The worker knows prices and context windows by the model's name. For an unknown model, the session's `context_policy`
sets the size of its context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from clew_activities.providers.provider_errors import ErrorAnswer, ProviderError
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.content import MediaSort
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import Fitting
from clew_workflows.protocol import ModelReply

__all__ = [
    "Decoder",
    "ErrorAnswer",
    "HttpRequest",
    "ModelRequest",
    "Provider",
    "ProvidersModule",
    "Signer",
]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model call, provider-neutral.

    Attributes:
        model: The model's name, without its provider.
        messages: The context, oldest message first. Any number of them have the role `system`.
        tools: The tools that the model may call.
        options: `max_output_tokens` is always set. The server chooses the other options that are absent.
        provider_tools: The tools that the provider may run itself; one that it does not have is left out.
        output_schema: A JSON Schema that the reply's text must match as a JSON value, and whose root is an object;
            None: any text.
        cache_key: Requests with the same key usually share a prefix. It reveals nothing about the session.
        takes: What the model takes of images, recordings and files.
        blobs: The bytes of the parts that are sent, by the digests of their blobs.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    options: ModelOptions
    provider_tools: Sequence[str] = ()
    output_schema: dict[str, Any] | None = None
    cache_key: str | None = None
    takes: frozenset[MediaSort] = frozenset()
    blobs: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class HttpRequest:
    """A POST.

    Attributes:
        path: Appended to the provider's base URL. It begins with a slash and may contain a query.
        headers: Names in lower case. `http` adds `accept`, `accept-encoding` and `content-type`.
        body: A JSON object.
        fitting: What the request has otherwise than its context; None: nothing.
        encoder: The encoder and its version, such as `openai-chat/1`: a new version may write other bytes for the
            same call. Audits encode the calls of Clew's own encoders again.
        dialect: The dialect, where the encoder has several.
    """

    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: dict[str, Any]
    fitting: Fitting | None = None
    encoder: str = "unknown"
    dialect: str | None = None


class Decoder(Protocol):
    """Folds the events of one reply, in time linear in their length.

    The worker reads the properties while another thread feeds events, and streams them to the session's readers.
    """

    def feed(self, event: str, data: str) -> None:
        """Fold one event: its name (`message` if it has none) and its data, which is not empty.

        A complete JSON reply, from a server that does not stream, is one event named `message`. Ignore unknown kinds
        of event.

        Raises:
            ProviderError: The server sent an error inside the stream.
            TruncatedStream: The event cannot be parsed, so a part of the reply is missing.
        """
        ...

    @property
    def text(self) -> str:
        """The reply's text so far. Events only append to it."""
        ...

    @property
    def thinking(self) -> str:
        """The model's thinking so far. Events only append to it."""
        ...

    @property
    def tool_name(self) -> str | None:
        """The tool whose arguments are arriving, or arrived last."""
        ...

    @property
    def arguments_size(self) -> int:
        """Characters of tool calls' arguments so far."""
        ...

    @property
    def usage(self) -> Usage:
        """The usage that the server has reported so far; zero where it has reported none."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the server's end marker has arrived; no event is fed after it."""
        ...

    def finish(self) -> ModelReply:
        """Return the reply, after the end of the stream. It may be called more than once.

        Raises:
            ContentRefused: The model or the server declined.
            EmptyReply: The reply has neither text nor a tool call.
            OutputExhausted: The reply has neither text nor a tool call, because it reached the limit of tokens.
            TruncatedStream: The stream ended without an end marker and without a reason to stop.
        """
        ...


class Provider(Protocol):
    """A model provider, as this worker's environment configures it. Its repr shows no secret."""

    @property
    def name(self) -> str:
        """The part of a session's model before the colon: 1 to 64 characters of a to z, digits, `_` and `-`."""
        ...

    @property
    def base_url(self) -> str:
        """The server's URL: http or https, without user, query, fragment and without a slash at its end."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret values: keys, tokens, passwords.

        Clew redacts them, in plain and in common encodings, from replies, errors and the worker's log, for every
        provider. It does not redact a secret of less than 8 characters.
        """
        ...

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """Names, in lower case, of the headers that hold a secret.

        If an error's message quotes such a header, Clew redacts its value even if it is not in `secrets`.
        """
        ...

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request in the provider's format. Equal requests give equal bytes.

        Raises:
            BadRequest: The format cannot express the request. Any other exception becomes a `BadRequest`.
        """
        ...

    def make_decoder(self, request: ModelRequest) -> Decoder:
        """Make a decoder for the reply to a request."""
        ...

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Make the error of a response whose status is neither 200 nor 3xx.

        `classify_response` recognizes the errors of OpenAI, Anthropic and compatible servers; it classifies others by
        their status. The error's class decides whether Temporal retries the call. Users see its message.
        """
        ...


@runtime_checkable
class Signer(Protocol):
    """A provider that signs its requests. A `Provider` may have this method, and needs it for APIs of AWS alone."""

    def sign(self, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Sign a request that is otherwise complete, and return the headers to add, with names in lower case.

        It runs in a thread, and may read the clock, and files and servers that hold credentials; nothing else of a
        provider may. It may keep credentials until they expire.

        Raises:
            ProviderError: There are no credentials (`Unauthorized`), or they cannot be renewed at present
                (`ProviderUnavailable`).
        """
        ...


class ProvidersModule(Protocol):
    """A module that makes providers."""

    def make_providers(self, environ: Mapping[str, str]) -> Iterable[Provider]:
        """Make the providers that an environment configures; none if their variables are not set.

        Raises:
            ValueError: A variable's value cannot be used. The message names the variable, never the value.
        """
        ...
