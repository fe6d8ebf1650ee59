"""What the providers of all APIs share: a server with a URL and a key, and what a request has otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from clew_activities.providers.fit_messages import FittedMessages, Turns
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import ErrorAnswer, ProviderError, classify_response
from clew_activities.providers.request_media import FittedMedia
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.payloads import Fitting


@dataclass(frozen=True)
class Server:
    """A server of one of the APIs.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        api_key: The key; None: the server needs none, or takes something else.
    """

    name: str
    base_url: str
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, if there is one."""
        return (self.api_key,) if self.api_key else ()

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The headers that may hold a secret."""
        return ("authorization",)

    @property
    def headers(self) -> dict[str, str]:
        """The key as a bearer token."""
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

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
