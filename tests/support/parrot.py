"""A provider with a wire format of its own, as a user of Clew writes one: PARROT_URL and PARROT_KEY configure it.

A request is `POST /speak` with the header `x-parrot-token` and the body
`{"engine", "limit", "lines": [{"from", "says", "does"?, "about"?}], "tricks"?}`. The answer is a stream of the events
`word` (`{"say"}`), `thought` (`{"think"}`), `trick` (`{"do", "with"}`), `count` (`{"in", "out"}`) and `end`
(`{"why"}`); an event `squawk` and an answer with an error's status hold `{"squawk", "words"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clew_activities.providers.dialects import ToolLimits
from clew_activities.providers.fit_tools import fit_name
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.loading import read_key, read_url
from clew_activities.providers.provider_errors import (
    ErrorAnswer,
    Overloaded,
    ProviderError,
    RateLimited,
    classify_response,
    parse_retry_after,
)
from clew_activities.providers.reply import DraftDecoder, StopReason, get_member, parse_event, read_count, read_string
from clew_activities.providers.sanitize import clean, parse_json
from clew_workflows.contract.messages import Message
from clew_workflows.contract.outcomes import Usage

_STOP_REASONS: Mapping[str, StopReason] = {"breath": "length", "done": "stop"}


def make_providers(environ: Mapping[str, str]) -> Iterable[Parrot]:
    """Make the parrot's provider if PARROT_URL is set."""
    if url := read_url(environ, "PARROT_URL"):
        yield Parrot("parrot", url, read_key(environ, "PARROT_KEY"))


@dataclass(frozen=True)
class Parrot:
    """A provider of the format above.

    Attributes:
        name: Its name in model references.
        base_url: The URL of its server.
        key: Its API key; None: requests carry none.
    """

    name: str
    base_url: str
    key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.key,) if self.key else ()

    @property
    def secret_headers(self) -> tuple[str, ...]:
        return ("x-parrot-token",)

    def encode(self, request: ModelRequest) -> HttpRequest:
        body: dict[str, Any] = {
            "engine": request.model,
            "limit": request.options.max_output_tokens,
            "lines": [_line(message) for message in request.messages],
        }
        if request.tools:
            body["tricks"] = [{"name": tool["name"], "shape": tool["parameters"]} for tool in request.tools]
        return HttpRequest("/speak", {"x-parrot-token": self.key} if self.key else {}, body)

    def make_decoder(self, request: ModelRequest) -> ParrotDecoder:
        return ParrotDecoder()

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        body = parse_json(answer.body)
        if read_string(get_member(body, "squawk")) == "hoarse":
            return RateLimited(
                clean(read_string(get_member(body, "words"))),
                status=answer.status,
                retry_after=parse_retry_after(answer.headers, answer.at),
            )
        return classify_response(answer)


class ParrotDecoder(DraftDecoder):
    """Folds the events into a reply, of which `DraftDecoder` limits every size."""

    def feed(self, event: str, data: str) -> None:
        fields = parse_event(data)
        if event == "squawk":
            raise Overloaded(read_string(fields.get("words")))
        if event == "word":
            self.add_text(fields.get("say"))
        elif event == "thought":
            self.add_thinking(fields.get("think"))
        elif event == "trick":
            self.add_arguments(self.open_call("", fields.get("do")), fields.get("with"))
        elif event == "count":
            self.usage = Usage(
                input_tokens=read_count(fields.get("in")) or 0, output_tokens=read_count(fields.get("out")) or 0
            )
        elif event == "end":
            self.stop_reason = _STOP_REASONS.get(read_string(fields.get("why")), "stop")
            self.ended = True


def _line(message: Message) -> dict[str, Any]:
    line: dict[str, Any] = {"from": message["role"], "says": message["content"]}
    if calls := message.get("tool_calls"):
        line["does"] = [
            {"trick": fit_name(call["name"], ToolLimits()), "id": call["id"], "with": call["arguments"]}
            for call in calls
        ]
    if message["role"] == "tool":
        line["about"] = message.get("tool_call_id")
    return line
