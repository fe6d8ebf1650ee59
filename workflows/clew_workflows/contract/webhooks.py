"""Webhooks: requests that workers send to a URL when something happens in a session, by Standard Webhooks."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import MAX_WEBHOOK_URL_CHARACTERS, MAX_WEBHOOKS
from clew_workflows.contract.outcomes import Output, Usage
from clew_workflows.contract.validation import Input

EventType = Literal["request.ended", "approval.wanted", "external_call.waiting", "limit.reached"]
"""What webhooks tell: the `type` of their messages."""

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_URL = re.compile(r"[!-~]+")


def find_url_problem(url: str) -> str | None:
    """Find why no webhook can have a URL; None: it can. Whether a worker sends to its host is the worker's to say."""
    # Programs disagree on what a backslash and white space mean in a URL.
    if not _URL.fullmatch(url) or any(character in url for character in '\\<>"^`{}|'):
        return "it has characters that a URL has only percent-encoded"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("https", "http"):
        return "its scheme must be https"
    if "@" in parts.netloc:
        return "it has a user or a password"
    host = parts.netloc if port is None else parts.netloc.removesuffix(f":{port}")
    if not _HOST.fullmatch(host) or port == 0:
        return "it has no valid host and port"
    return "it has a fragment" if "#" in url else None


def _check_url(url: str) -> str:
    if problem := find_url_problem(url):
        raise PydanticCustomError("webhook_url", "no URL of a webhook: {problem}", {"problem": problem})
    return url


WebhookUrl = Annotated[str, StringConstraints(max_length=MAX_WEBHOOK_URL_CHARACTERS), AfterValidator(_check_url)]
SecretName = Annotated[
    str,
    Form(r"^[a-z][a-z0-9_]{0,39}$", "a secret's name has 1 to 40 lower-case letters, digits and '_', a letter first"),
]
"""The name of a secret that the workers have. No configuration holds a secret."""


class Webhook(Input):
    """A URL that is told of events of sessions.

    Attributes:
        url: The URL; `https`. Workers send to no private address, and to no `http`, unless they were told to.
        secret: The name of the secret that signs the messages. The workers have it as
            `CLEW_WEBHOOK_SECRET_<NAME>`.
        events: The types of the events; absent: all.
    """

    url: WebhookUrl
    secret: SecretName
    events: Annotated[tuple[EventType, ...], Field(min_length=1, max_length=8)] | None = None

    def wants(self, event: EventType) -> bool:
        """Whether the URL is told of events of a type."""
        return self.events is None or event in self.events


Webhooks = Annotated[tuple[Webhook, ...], Field(max_length=MAX_WEBHOOKS)]


class WaitingCall(Output):
    """A tool call that waits.

    Attributes:
        tool_call_id: The call.
        name: The tool.
    """

    tool_call_id: str
    name: str


class WebhookError(Output):
    """The error of a failed request, without its message, which may quote texts.

    Attributes:
        type: The type of the error, a word of the contract's list.
        retryable: Whether the same message may succeed another time.
    """

    type: str
    retryable: bool = False


class WebhookData(Output):
    """What a webhook tells of an event. It holds no text of a conversation.

    Attributes:
        session_id: The session.
        parent_session_id: The session that has started this one as a subagent.
        request_id: The request.
        run_id: The run that serves it.
        seq: The newest entry when the event happened; of `request.ended` the request's `run` entry.
        status: How the request has ended.
        termination_reason: Why the run has ended.
        answer_seq: The entry with the answer.
        iterations: Model calls of the run.
        usage: The usage of the run.
        subagent_usage: The usage of the subagents that the run has started.
        error: The error of a failed request.
        tool_calls: The calls that wait, at most 50 of them.
        waiting: The number of the calls that wait.
    """

    session_id: str
    parent_session_id: str | None = None
    request_id: str
    run_id: str
    seq: int
    status: Literal["completed", "failed", "cancelled"] | None = None
    termination_reason: str | None = None
    answer_seq: int | None = None
    iterations: int | None = None
    usage: Usage | None = None
    subagent_usage: Usage | None = None
    error: WebhookError | None = None
    tool_calls: tuple[WaitingCall, ...] | None = None
    waiting: int | None = None


class WebhookMessage(Output):
    """The body of a webhook's request.

    Attributes:
        type: What has happened: a request has ended (`request.ended`), tool calls wait for approval
            (`approval.wanted`) or for results from outside (`external_call.waiting`), a run has ended at a limit of
            tokens, cost or model calls (`limit.reached`).
        timestamp: When it happened, RFC 3339 in UTC.
        data: The details.
    """

    type: EventType
    timestamp: str
    data: WebhookData
