"""The rules of hooks, models and their fallbacks, structured answers, images, subagents and lost signals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from clew.contract.payloads import (
    AppliedWithdraw,
    AssistantMessage,
    MessagePayload,
    OperationPayload,
    RunPayload,
    SessionPayload,
    ToolMessage,
    UserMessage,
)
from clew_activities.archive.blob_store import list_blobs
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.protocol import OUTAGES
from clew_workflows.thread.entries import Entry
from tests.chaos.hooks import is_refused
from tests.chaos.model import SECRET, SPARE, Verdict

CLOSING_SECONDS = 5.0
"""Seconds before the entry of a close in which a signal may already have met a session that takes nothing more."""
_SIGNATURE = re.compile(r"\(by (\w+)\)")
_SHOWN = re.compile(r"^(\S+) shows (\w+) ")
_ARCHIVED = "[the answer is in the archive"
"""The beginning of the result of a subagent that has archived its answer."""


@dataclass(frozen=True)
class Span:
    """A time in which something happened.

    Attributes:
        began: Its begin, in seconds since 1970.
        ended: Its end.
    """

    began: float
    ended: float

    def meets(self, other: Span) -> bool:
        """Whether both have a moment in common."""
        return self.began <= other.ended and other.began <= self.ended


def find_lost_signals(signals: Mapping[str, Span], closes: Sequence[Span], entries: Sequence[Entry]) -> Iterator[str]:
    """Find the signals that may have left nothing: those that were sent while the session was being closed.

    Args:
        signals: When each signal was sent.
        closes: Closes of which the thread may say nothing. A workflow that such a close has ended lived between two
            entries.
        entries: The thread.
    """
    moments = [datetime.fromisoformat(entry.at).timestamp() for entry in entries]
    spans = [
        Span(began - CLOSING_SECONDS, ended)
        for entry, began, ended in zip(entries, moments, [*moments[1:], math.inf], strict=True)
        if isinstance(entry.body, SessionPayload) and entry.body.event == "closed"
    ]
    for close in closes:
        began = max((moment for moment in moments if moment <= close.began), default=-math.inf)
        ended = min((moment for moment in moments if moment > close.ended), default=math.inf)
        spans.append(Span(began, ended))
    yield from (name for name, sent in signals.items() if any(sent.meets(span) for span in spans))


def check_hooks(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that the model saw no message that the hooks refuse, and that no request has such an answer.

    A session that learns of the hooks with its first model call has committed the message, and withdraws it.
    """
    refused: dict[str, int] = {}
    for entry in entries:
        run = entry.refs.get("run_id", "")
        match entry.body:
            case UserMessage() as said if is_refused(said.text):
                refused[run] = entry.seq
            case OperationPayload(operation=AppliedWithdraw()):
                refused.pop(run, None)
            case AssistantMessage() if run in refused:
                yield f"the model has answered the message at {refused[run]}, which the hooks refuse"
            case RunPayload(status="completed", answer_seq=int(seq)) if SECRET in _read_text(entries, seq):
                yield f"the answer at {seq} is one that the hooks refuse"
    yield from (f"the message at {seq} is one that the hooks refuse" for seq in refused.values())


def check_models(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that each reply was written by the model that its recipe names, and that runs keep their fallbacks."""
    models: dict[str, str] = {}
    for entry in entries:
        run = entry.refs.get("run_id", "")
        match entry.body:
            case AssistantMessage(recipe=recipe) as said if recipe:
                signed, model = _SIGNATURE.search(said.text), recipe.model
                if signed and signed[1] != model.partition(":")[2]:
                    yield f"the reply at {entry.seq} is by {signed[1]}, but its recipe names {model}"
                if models.get(run) == SPARE != model:
                    yield f"the run of the reply at {entry.seq} had a fallback already, but {model} was called"
                models[run] = model
            case RunPayload(status="completed", fallback=fallback) if run in models:
                if fallback != (SPARE if models[run] == SPARE else None):
                    yield f"the outcome at {entry.seq} names the fallback {fallback}, after a reply by {models[run]}"


def check_images(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that the model saw the image of each message that it was to look at."""
    digests: dict[str, set[str]] = {}
    for entry in entries:
        match entry.body:
            case UserMessage() as said:
                digests[said.text.partition(": ")[0]] = {blob["digest"] for blob in list_blobs(entry)}
            case AssistantMessage() as said if shown := _SHOWN.match(said.text):
                name, digest = shown.groups()
                if digest not in digests.get(name, ()):
                    yield f"the model was shown {digest} before the reply at {entry.seq}, no image of {name}"


def check_answers(
    messages: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, RequestOutcome], entries: Sequence[Entry]
) -> Iterator[str]:
    """Check the outcomes of messages with settings of their own: a schema, a fallback.

    Args:
        messages: The arguments of the messages, by request id.
        outcomes: The outcomes that callers got.
        entries: The thread.
    """
    for request_id, outcome in outcomes.items():
        arguments = messages.get(request_id, {})
        if arguments.get("output_schema") and outcome.status == "completed":
            text = "" if outcome.answer_seq is None else _read_text(entries, outcome.answer_seq)
            try:
                Verdict.model_validate_json(text)
            except ValidationError:
                yield f"the answer to {request_id} is not of the form asked for: {text[:100]}"
        if arguments.get("fallbacks") and outcome.error and outcome.error.type in OUTAGES:
            yield f"{request_id} failed with {outcome.error.type}, though {SPARE} was there to answer it"


def check_subagents(
    threads: Mapping[str, Sequence[Entry]], inherited: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Check the subagents of each session. Yields sessions with what is wrong.

    Args:
        threads: The complete thread of each session.
        inherited: The seq up to which the thread of a fork is its parent's.
    """
    for session, entries in threads.items():
        own = [entry.body for entry in entries if entry.seq > inherited.get(session, -1)]
        replies = [said for said in own if isinstance(said, AssistantMessage)]
        calls = {call["id"]: call for said in replies for call in said.tool_calls or ()}
        for result in own:
            if not isinstance(result, ToolMessage) or result.subagent is None or result.tool_call_id not in calls:
                continue
            name = result.subagent.session_id
            thread = threads.get(name, ())
            tasks = [said.text for said in (entry.body for entry in thread) if isinstance(said, UserMessage)]
            task = calls[result.tool_call_id]["arguments"]["task"]
            if tasks[:1] not in ([], [task]):
                yield session, f"the subagent {name} was to do {task!r}, and was asked {tasks[0]!r}"
            if result.is_error or result.in_doubt or result.text.startswith(_ARCHIVED):
                continue
            answers = [
                _read_text(thread, body.answer_seq)
                for body in (entry.body for entry in thread)
                if isinstance(body, RunPayload) and body.status == "completed" and body.answer_seq is not None
            ]
            if result.text not in answers:
                yield (
                    session,
                    f"the subagent {name} answered {answers}, but its call has {result.text!r}",
                )


def list_subagents(entries: Sequence[Entry]) -> list[str]:
    """List the sessions that a thread names as its subagents."""
    results = (entry.body for entry in entries)
    return [said.subagent.session_id for said in results if isinstance(said, ToolMessage) and said.subagent]


def _read_text(entries: Sequence[Entry], seq: int) -> str:
    said = entries[seq].body if seq < len(entries) else None
    return said.text if isinstance(said, MessagePayload) else ""
