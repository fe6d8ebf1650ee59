"""The ledger of effects: the file that tools write to, and its comparison with the threads."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.contract.payloads import ApprovalPayload, AssistantMessage, ToolMessage
from clew.tools import Tool
from clew_workflows.host.execution import WORKERS_PER_TOOL_CALL
from clew_workflows.thread.entries import Entry
from tests.chaos import tools
from tests.chaos.hooks import is_refused_call

NOT_RUN = "[not run"
"""The beginning of a result that says that the tool has not run."""
TOOLS: Mapping[str, Tool[..., str]] = {
    one.name: one for one in (tools.note, tools.charge, tools.wire, tools.flaky, tools.nap, tools.big)
}


@dataclass(frozen=True)
class Effect:
    """What one attempt of a tool call did.

    Attributes:
        tool: The tool.
        key: The call's idempotency key.
        session: The session.
        call: The call.
        attempt: The number of the attempt, from 1.
    """

    tool: str
    key: str
    session: str
    call: str
    attempt: int


def read_effects(path: Path) -> list[Effect]:
    """Read the file that the tools have written; none if there is no file."""
    return [Effect(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def check_effects(
    effects: Sequence[Effect],
    threads: Mapping[str, Sequence[Entry]],
    inherited: Mapping[str, int],
    gone: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Compare the effects with the threads. Yields sessions with what is wrong.

    Args:
        effects: All effects.
        threads: The complete thread of each session.
        inherited: The seq up to which the thread of a fork is its parent's.
        gone: The sessions that were deleted: nobody can read whether a model called for their effects.
    """
    by_call: dict[tuple[str, str], list[Effect]] = defaultdict(list)
    for effect in effects:
        by_call[effect.session, effect.call].append(effect)
    for (session, call), made in by_call.items():
        name = f"call {call} of {made[0].tool}"
        permission = () if session in gone else _check_permission(made, threads.get(session))
        for problem in (*_check_repetition(made), *permission):
            yield session, f"{name} {problem}"
    for session, entries in threads.items():
        # A fork's calls of inherited messages were made, and have their effects, in its parent.
        calls = _list_own_calls(entries, inherited.get(session, -1))
        for result in (entry.body for entry in entries if entry.seq > inherited.get(session, -1)):
            if not isinstance(result, ToolMessage) or result.tool_call_id not in calls or result.name not in TOOLS:
                continue
            ran = (session, result.tool_call_id) in by_call
            if result.text.startswith(NOT_RUN) and ran:
                yield session, f"call {result.tool_call_id} of {result.name} ran, but its result says that it did not"
            if not (result.is_error or result.in_doubt or result.text.startswith(NOT_RUN)) and not ran:
                yield session, f"call {result.tool_call_id} of {result.name} has a result without an effect"


def _list_own_calls(entries: Sequence[Entry], inherited: int) -> set[str]:
    said = (entry.body for entry in entries if entry.seq > inherited)
    return {call for one in said if isinstance(one, AssistantMessage) for call in one.call_ids}


def _check_repetition(made: Sequence[Effect]) -> Iterator[str]:
    tool = TOOLS[made[0].tool]
    most = tool.retries + WORKERS_PER_TOOL_CALL if tool.idempotent else 1
    if len(made) > most:
        yield f"took effect {len(made)} times, of at most {most}"
    for attempt, times in Counter(effect.attempt for effect in made).items():
        if times > 1:
            yield f"took effect {times} times in attempt {attempt}"


def _check_permission(made: Sequence[Effect], entries: Sequence[Entry] | None) -> Iterator[str]:
    effect = made[0]
    if entries is None:
        yield "took effect for a session that does not exist"
        return
    replies = [said for said in (entry.body for entry in entries) if isinstance(said, AssistantMessage)]
    calls = {call["id"]: call["arguments"] for said in replies for call in said.tool_calls or ()}
    arguments = calls.get(effect.call)
    if arguments is None:
        yield "took effect, but no model's reply has it"
    elif is_refused_call(effect.tool, arguments):
        yield f"took effect with {arguments}, which the hooks refuse"
    if TOOLS[effect.tool].requires_approval:
        decisions = [
            said.decision
            for said in (entry.body for entry in entries)
            if isinstance(said, ApprovalPayload) and said.tool_call_id == effect.call
        ]
        if decisions != ["approve"]:
            yield f"took effect with the decisions {decisions}"
