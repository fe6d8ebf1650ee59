"""A decoder that redacts the worker's secrets in the reply, while it grows and at its end."""

from __future__ import annotations

import time

from clew_activities.providers.interface import Decoder
from clew_activities.providers.redaction import GrowingText, Redaction
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import Fitting
from clew_workflows.protocol import ModelReply, RequestedTool


class RedactedDecoder:
    """Wraps a decoder and redacts everything that is read from it.

    Attributes:
        begun_after: Seconds until the reply began; None: it has not begun.
        fitting: What the request had otherwise than its context; None until it is sent.
    """

    def __init__(self, decoder: Decoder, redaction: Redaction) -> None:
        self.redaction = redaction
        self._decoder = decoder
        self._text = GrowingText(redaction)
        self._thinking = GrowingText(redaction)
        self._made_at = time.monotonic()
        self.begun_after: float | None = None
        self.fitting: Fitting | None = None

    def feed(self, event: str, data: str) -> None:
        """Take one event, as `Decoder.feed` says. Its errors may quote what was received."""
        self._decoder.feed(event, data)
        if self.begun_after is None and (self._decoder.text or self._decoder.thinking or self._decoder.tool_name):
            self.begun_after = time.monotonic() - self._made_at

    @property
    def text(self) -> str:
        """The reply's text so far, without an end that may become a secret."""
        return self._text.show(self._decoder.text)

    @property
    def thinking(self) -> str:
        """The thinking so far, without an end that may become a secret."""
        return self._thinking.show(self._decoder.thinking)

    @property
    def tool_name(self) -> str | None:
        """The tool whose arguments are arriving, or arrived last."""
        name = self._decoder.tool_name
        return None if name is None else self.redaction.redact_text(name)

    @property
    def arguments_size(self) -> int:
        """Characters of tool calls' arguments so far."""
        return self._decoder.arguments_size

    @property
    def usage(self) -> Usage:
        """The usage that the server has reported so far."""
        return self._decoder.usage

    @property
    def ended(self) -> bool:
        """Whether the provider's end marker came."""
        return self._decoder.ended

    @property
    def size(self) -> int:
        """The characters received so far."""
        return len(self._decoder.text) + len(self._decoder.thinking) + self._decoder.arguments_size

    def finish(self) -> ModelReply:
        """The reply; raises as `Decoder.finish` says. Its errors may quote what was received."""
        reply = self._decoder.finish()
        data = reply.provider_data
        return reply.model_copy(
            update={
                "content": self.redaction.redact_text(reply.content),
                "thinking": None if reply.thinking is None else self.redaction.redact_text(reply.thinking),
                "tool_calls": tuple(map(self._screen, reply.tool_calls)),
                # A provider refuses its data if it was changed, so drop it.
                "provider_data": data if self.redaction.redact_value(data) == data else None,
            }
        )

    def _screen(self, call: RequestedTool) -> RequestedTool:
        malformed = call.malformed
        return call.model_copy(
            update={
                "name": self.redaction.redact_text(call.name),
                "arguments": self.redaction.redact_value(call.arguments),
                "malformed": None if malformed is None else self.redaction.redact_text(malformed),
            }
        )
