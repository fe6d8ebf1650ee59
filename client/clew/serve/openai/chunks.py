"""Chat Completions, made from the events of a response. Pure.

A completion has one text. The texts of a request's replies follow each other, with an empty line between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from clew.serve.openai import events
from clew.serve.openai.events import Event
from clew.serve.openai.frames import Frame
from clew.serve.openai.ids import encode
from clew.serve.openai.refusals import RequestEnded
from clew.serve.problems import Problem

BETWEEN_REPLIES = "\n\n"
"""Between the texts of two replies."""


class ReplyRestarted(Problem):
    """A reply has started over with another text than the one that was sent, and a completion cannot take it back."""

    type = "reply_restarted"
    status = HTTPStatus.INTERNAL_SERVER_ERROR


def name_completion(frame: Frame) -> str:
    """Name the completion of a response."""
    name = frame.name
    part = () if name.after_seq is None else (str(name.after_seq),)
    return encode("chatcmpl", name.session_id, name.request_id, *part)


class Chunks:
    """Makes the chunks of a completion's stream.

    Attributes:
        name: The completion's id.
    """

    def __init__(self, frame: Frame, *, include_usage: bool) -> None:
        self.name = name_completion(frame)
        self._frame = frame
        self._include_usage = include_usage
        self._messages = 0
        self._calls = 0
        # An answer that must meet a schema may be void. Its text is sent when the session has judged it.
        self._held: list[str] | None = [] if frame.output_schema is not None else None

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Make the chunks that an event of the response leads to.

        Raises:
            RequestEnded: The request has failed, or was cancelled.
            ReplyRestarted: What was sent of a reply is void.
        """
        match event["type"]:
            case "response.created":
                yield self._make({"role": "assistant", "content": "", "refusal": None})
            case "response.output_text.delta":
                yield from self._add_text(event["delta"])
            case "response.refusal.delta":
                yield self._make({"refusal": event["delta"]})
            case "response.content_part.added" if event["part"]["type"] == "output_text":
                if self._messages:
                    yield from self._add_text(BETWEEN_REPLIES)
                self._messages += 1
            case "response.output_item.done":
                yield from self._take_item(event["item"])
            case kind if kind in events.UNNUMBERED:
                # The field is one of Clew's: programs that do not know it read a chunk without text.
                told = {name: value for name, value in event.items() if name not in ("type", "sequence_number")}
                yield self._make({}) | {kind.replace(":", "_"): told}
            case "response.failed" | "response.incomplete" | "response.completed":
                response = event["response"]
                check_outcome(response)
                yield self._make({}, find_finish_reason(response))
                if self._include_usage:
                    yield self._make(None, usage=make_usage(response))

    def _add_text(self, text: str) -> Iterator[dict[str, Any]]:
        if self._held is not None:
            self._held.append(text)
        else:
            yield self._make({"content": text})

    def _take_item(self, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        is_void = item["type"] == "message" and item["status"] == "incomplete" and item.get("phase") == "commentary"
        if is_void and self._held is None:
            raise ReplyRestarted(
                "the reply has started over with another text: repeat the request with the same Idempotency-Key, or "
                "read its session"
            )
        if self._held is not None and item["type"] == "message":
            held, self._held = self._held, []
            if is_void:
                self._messages -= 1
            elif text := "".join(held):
                yield self._make({"content": text})
        if item["type"] == "function_call":
            yield self._make({"tool_calls": [{"index": self._calls, **make_call(item)}]})
            self._calls += 1

    def _make(
        self, delta: dict[str, Any] | None, finish_reason: str | None = None, usage: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choices = [] if delta is None else [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        ]  # fmt: skip
        made = {**_make_envelope(self.name, self._frame), "object": "chat.completion.chunk", "choices": choices}
        return made | {"usage": usage} if self._include_usage else made


def check_outcome(response: Mapping[str, Any]) -> None:
    """Check that a request has an answer.

    Raises:
        RequestEnded: It has none.
    """
    error = response["error"]
    if response["status"] in ("failed", "cancelled"):
        raise RequestEnded(error["code"] if error else "cancelled", error["message"] if error else "it was cancelled")


def make_completion(frame: Frame, response: Mapping[str, Any]) -> dict[str, Any]:
    """Make a completion of a response that has ended."""
    texts, annotations, calls, refusals = [], [], [], []
    for item in response["output"]:
        if item["type"] == "message":
            written = [part for part in item["content"] if part["type"] == "output_text"]
            texts += [part["text"] for part in written]
            annotations += [annotation for part in written for annotation in part["annotations"]]
            refusals += [part["refusal"] for part in item["content"] if part["type"] == "refusal"]
        elif item["type"] == "function_call":
            calls.append(make_call(item))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": BETWEEN_REPLIES.join(texts) if texts or not (calls or refusals) else None,
        "refusal": BETWEEN_REPLIES.join(refusals) if refusals else None,
        "annotations": [_make_annotation(annotation) for annotation in annotations],
    }
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": find_finish_reason(response)}
    envelope = _make_envelope(name_completion(frame), frame)
    return {**envelope, "object": "chat.completion", "choices": [choice], "usage": make_usage(response)}


def _make_envelope(name: str, frame: Frame) -> dict[str, Any]:
    return {"id": name, "created": int(frame.created_at), "model": frame.model, "service_tier": None}


def make_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Make the call of a function."""
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _make_annotation(annotation: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in annotation.items() if name != "type"}
    return {"type": "url_citation", "url_citation": fields}


def find_finish_reason(response: Mapping[str, Any]) -> str:
    """Find why a completion has ended."""
    details = response["incomplete_details"]
    if details and details["reason"] == "content_filter":
        return "content_filter"
    if any(item["type"] == "function_call" for item in response["output"]):
        return "tool_calls"
    return "length" if details else "stop"


def make_usage(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make the usage of a completion."""
    usage = response["usage"]
    if usage is None:
        return None
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": usage["input_tokens_details"]["cached_tokens"],
            "cache_write_tokens": usage["input_tokens_details"]["cache_write_tokens"],
        },
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
