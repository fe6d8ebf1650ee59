"""What the servers of both APIs have in common: a name, a URL, and a key that is sent as a bearer token."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from clew_activities.providers.errors import ErrorAnswer, ProviderError, classify_response


@dataclass(frozen=True)
class Server:
    """A server of one of OpenAI's APIs.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        api_key: The key, sent as a bearer token, which Azure's `/openai/v1` takes too; None: the server needs none.
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
        """The header that holds the key."""
        return ("authorization",)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of all requests."""
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the tables in `errors`."""
        return classify_response(answer)
