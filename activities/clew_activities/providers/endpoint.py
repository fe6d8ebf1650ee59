"""What the providers of all APIs share: a server with a URL and a key, and what a request has otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from clew_activities.providers.fit_messages import FittedMessages, Turns
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import ErrorAnswer, ProviderError, classify_response
from clew_activities.providers.request_media import FittedMedia
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.payloads import Fitting

_SECRET_NAME = re.compile(r"auth|cookie|cred|jwt|key|pass|secret|session|sign|token", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z]{1,20}(?:[ ,./:_-]+[A-Za-z]{1,20})*/?")
"""A value of words alone, such as a team's name or a site's address."""


@dataclass(frozen=True)
class CustomHeaders:
    """The headers that a worker's environment adds to each request of a provider. Its repr shows none.

    Attributes:
        pairs: The names, in lower case, and the values.
    """

    pairs: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The names of headers whose values are secrets: all, but values of words under a name that tells of none."""
        return tuple(name for name, value in self.pairs if _SECRET_NAME.search(name) or not _WORDS.fullmatch(value))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of those, and their parts: a server may repeat the token without its `Bearer`."""
        named = dict(self.pairs)
        values = [named[name] for name in self.secret_names]
        parts = [part for value in values for part in re.split(r"[\s,;=]+", value)]
        return tuple(dict.fromkeys([*values, *(part for part in parts if part and not _WORDS.fullmatch(part))]))


@dataclass(frozen=True)
class Server:
    """A server of one of the APIs.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        api_key: The key; None: the server needs none, or takes something else.
        custom: Headers of each request beside its own. One of the same name replaces that of the key.
    """

    name: str
    base_url: str
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)
    custom: CustomHeaders = CustomHeaders()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, if there is one, and the secrets among the custom headers."""
        return (*filter(None, [self.api_key]), *self.custom.secrets)

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The headers that may hold a secret."""
        return ("authorization", *self.custom.secret_names)

    @property
    def headers(self) -> dict[str, str]:
        """The key as a bearer token, and the custom headers."""
        own = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return own | dict(self.custom.pairs)

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the tables in `errors`."""
        return classify_response(answer)


def describe_fitting(
    dialect: str,
    messages: FittedMessages | Turns,
    media: FittedMedia,
    tools: FittedTools,
    options: Mapping[str, str],
    *,
    left_out: Mapping[str, str],
    dropped: int = 0,
) -> Fitting:
    """Describe what a request has otherwise than its context.

    Args:
        dialect: The dialect's name.
        messages: The messages.
        media: Their images, recordings and files.
        tools: The session's tools.
        options: The options that the request has otherwise, or not at all.
        left_out: The provider's own tools that are not in the request, and why.
        dropped: Messages without any text that were left out beside those of `messages`.
    """
    return Fitting(
        dialect=dialect,
        merged=messages.merged,
        added=messages.added + media.added,
        dropped=messages.dropped + dropped,
        tools=dict(tools.changes),
        tools_left_out={**tools.left_out, **left_out},
        options=dict(options),
        media=media.changes,
    )


def describe_options(
    options: ModelOptions, sent: Mapping[str, object], *, lacks_choice: bool = False
) -> dict[str, str]:
    """Describe the options that a request has otherwise than the session, or not at all.

    Args:
        options: The session's options.
        sent: What the request has, by the options' names; None: nothing.
        lacks_choice: The request has tools, and does not say how the model is to choose one.
    """
    wanted = options.model_dump(mode="json")
    described = {
        name: "left out" if value is None else str(value)
        for name, value in sent.items()
        if wanted[name] not in (None, value)
    }
    if lacks_choice and options.tool_choice not in (None, "auto"):
        described["tool_choice"] = "left out"
    return described
