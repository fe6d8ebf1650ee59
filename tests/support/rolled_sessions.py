"""Random sessions whose older entries are in an archive, each context compared with those of the complete thread.

    python -m tests.support.rolled_sessions [--seed 1] [--steps 100000]

A session of a harness rolls over, hibernates, is forked, and recalls what its calls need, as the workflow and its
activities do it, with answers that are cut to a size. Beside it stands its complete thread. Every context that the
session, a reader of the archive or the audit builds equals that of the complete thread, or is refused as archived.
That of the complete thread equals the naive reference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from rich.console import Console

from clew.contract import ContextPolicy, ContextQuery, LateResultInput, SummarizeInput, WindowQuery
from clew.errors import Archived, ClewError, NothingToSummarize, Refusal
from clew_activities.archive import hibernation
from clew_activities.archive.hibernation import fit_answer
from clew_activities.archive.read_for_clients import project_call
from clew_workflows.contract.content import Content
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import AppliedWithdraw, ConfigPayload, OperationPayload, UserMessage
from clew_workflows.contract.policy import ClearMedia, ClearToolResults
from clew_workflows.protocol import (
    ArchiveRef,
    CallModel,
    Failure,
    ModelAnswered,
    ModelReply,
    Prepare,
    RequestedTool,
    RunTools,
    Summarize,
    Summarized,
    WrittenSummary,
)
from clew_workflows.session import carried, summaries, views
from clew_workflows.session.advance import Session
from clew_workflows.session.budgets import find_policy
from clew_workflows.thread.context.archived import load_lane, load_thread, make_archived_thread
from clew_workflows.thread.context.contexts import find_own_settings, rebuild_context
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Draft, Entry
from clew_workflows.thread.source import FrozenThread
from clew_workflows.thread.thread import Thread
from tests.support.reference import build_expected
from tests.support.session_harness import SessionHarness
from tests.support.threads import Back, assert_valid

LANES = ("default", "draft")
STEPS = 250
"""Steps of a session."""
IMAGE: Any = {"type": "image", "url": "https://example.org/a.png"}
KINDS: tuple[Any, ...] = (
    ("message", "tool_call", "tool_result", "summary"),
    ("message", "tool_call", "tool_result"),
    ("message",),
    ("tool_call", "tool_result", "summary"),
)


class Differs(AssertionError):
    """A context is not the complete thread's."""


def make_policy(chance: random.Random) -> ContextPolicy:
    """Make a random policy, most of whose fields are not set."""
    if chance.random() < 0.1:
        return chance.choice((ContextPolicy.short_context, ContextPolicy.long_context, ContextPolicy.tool_focused))()
    fields: dict[str, Any] = {
        "max_input_tokens": chance.choice((700, 1500, 3000, 6000)),
        "reserve_output_tokens": chance.choice((0, 100, 200)),
        "window": chance.choice(("sliding", "epoch")),
    }
    rare: dict[str, Callable[[], Any]] = {
        "low_water": lambda: chance.choice((0.1, 0.5, 0.9)),
        "keep_last_turns": lambda: chance.randint(0, 4),
        "max_messages": lambda: chance.choice((0, 2, 5, 12)),
        "include_kinds": lambda: chance.choice(KINDS),
        "summarization": lambda: chance.choice(("none", "use_existing", "request_new", "compact")),
        "summary_role": lambda: "user",
        "summarize_threshold": lambda: chance.randint(1, 30),
        "max_thread_tokens": lambda: chance.randint(500, 5000),
        "clear_tool_results": lambda: ClearToolResults(
            keep=chance.randint(0, 4),
            min_tokens=chance.choice((0, 50, 400)),
            exclude_tools=chance.choice(((), ("add",))),
        ),
        "clear_media": lambda: ClearMedia(keep=chance.randint(0, 2), min_tokens=chance.choice((0, 500))),
    }
    if fields["window"] == "sliding":
        rare["token_estimator"] = lambda: "heuristic"
    return ContextPolicy(**fields | {name: make() for name, make in rare.items() if chance.random() < 0.2})


def project(build: Callable[[], Any]) -> Any:
    """Build a context, or name why there is none."""
    try:
        return build()
    except Archived:
        return "archived"
    except ClewError as error:
        return f"{type(error).__name__}: {error}"


def say(chance: random.Random) -> str:
    """Make a text of some words, or of many."""
    return " ".join(chance.choices(("well", "perhaps", "tomorrow", "日本語", "a"), k=chance.choice((1, 5, 40, 160))))


class RolledSession:
    """A session, and its complete thread.

    Attributes:
        chance: The source of all that happens.
        session: The session. Its thread holds a part of its entries.
        complete: All of its entries.
        archived_upto: The seq of the newest archived entry; -1: none is.
        shown: The context of each call that a model has answered.
        counts: How often what was compared.
    """

    def __init__(self, seed: int, policy: ContextPolicy | None = None) -> None:
        self.chance = chance = random.Random(f"rolled-{seed}")
        self.counts = Counter[str]()
        self.complete = Thread()
        self.archived_upto = -1
        self.shown: dict[str, Projection] = {}
        self.number = 0
        self.session = SessionHarness(
            context_policy=policy or make_policy(chance),
            system_prompt=chance.choice((None, "Be brief.")),
            tools=("add", "look", "order_outside"),
            on_busy="queue",
            max_iterations=30,
        )
        self._mirror()

    def step(self) -> None:
        """Let something happen, and compare what follows from it."""
        chance, session = self.chance, self.session
        self.number += 1
        if session.effect is not None and chance.random() < 0.75:
            self.answer()
        else:
            happenings = (
                (self.ask, 8),
                (self.steer, 2),
                (self.configure, 2),
                (self.operate, 3),
                (self.summarize, 1),
                (self.withdraw, 1),
                (self.cancel, 1),
                (self.return_late, 2),
                (self.roll_over, 4),
                (self.fork, 1),
                (self.look_around, 4),
            )
            (happening,) = chance.choices(*zip(*happenings, strict=True))
            try:
                happening()
            except Refusal:
                self.counts["refused"] += 1
        self._mirror()

    def _mirror(self) -> None:
        for entry in self.session.thread.slice(self.complete.rev, self.session.thread.last_seq):
            self.complete.append(entry)

    # What happens.

    def ask(self) -> None:
        chance, own = self.chance, dict[str, Any]()
        if chance.random() < 0.2:
            own["context_policy"] = make_policy(chance)
        if chance.random() < 0.3:
            own["output_schema"] = {"type": "object"}
        if chance.random() < 0.1:
            own["tools"] = ("add",)
        content: Content = say(chance)
        if chance.random() < 0.1:
            content = [{"type": "text", "text": say(chance)}, IMAGE]
        self.session.ask(content, f"r-{self.number}", **own)

    def steer(self) -> None:
        self.session.steer(say(self.chance), f"i-{self.number}", at=self.chance.choice(("step", "terminal")))

    def configure(self) -> None:
        chance = self.chance
        changed: dict[str, Any] = chance.choice(
            (
                {"context_policy": make_policy(chance)},
                {"context_policy": make_policy(chance)},
                {"system_prompt": chance.choice((None, "Be brief.", "Be kind."))},
                {"model": chance.choice(("openai:gpt-4o", "anthropic:claude"))},
                {"tools": chance.choice(((), ("add", "look")))},
            )
        )
        self.session.configure(**changed)

    def operate(self) -> None:
        chance, rev = self.chance, self.complete.rev
        kind = chance.choice(
            ("replace", "replace", "compaction", "compact", "switch", "pin", "pin", "unpin", "expand")
        )
        lane = chance.choice((None, None, *LANES))
        fields: dict[str, Any] = {}
        match kind:
            case "replace" | "compaction":
                fields["result_context"] = {"messages": self._make_snapshot()}
                fields["base_seq"] = chance.choice((None, max(rev - chance.randint(0, 60), 0)))
            case "compact":
                fields["result_context"] = None
                fields["base_seq"] = chance.choice((None, max(rev - chance.randint(1, 60), 0)))
            case "pin" | "unpin":
                fields["seqs"] = [max(rev - chance.randint(1, 80), 0) for _ in range(chance.randint(1, 2))]
        if kind in ("compaction", "compact"):
            kind, fields["reason"] = "replace", "compaction"
        self.session.operate(f"o-{self.number}", kind, lane, **fields)
        self._recall_changed(lane or self.session.state.context_ref)

    def _make_snapshot(self) -> list[dict[str, Any]]:
        chance = self.chance
        calls = [{"id": "x", "name": "add", "arguments": {}}]
        snapshots: list[list[dict[str, Any]]] = [
            [],
            [{"role": "user", "content": say(chance)}],
            [
                {"role": "user", "content": say(chance)},
                {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "content": say(chance), "tool_call_id": "x", "name": "add"},
            ],
        ]
        return chance.choice(snapshots)

    def summarize(self) -> None:
        chance, last = self.chance, self.complete.last_seq
        to_seq = chance.choice((None, max(last - chance.randint(0, 60), 0)))
        from_seq = chance.choice((None, None, 0))
        self.session.do(SummarizeInput(to_seq=to_seq, from_seq=from_seq, context_ref=chance.choice((None, *LANES))))

    def withdraw(self) -> None:
        """Withdraw the messages of a run that has called no model, as a hook has it."""
        session = self.session
        if session.state.busy or session.effect is not None:
            return
        lane, first = session.state.context_ref, session.thread.rev
        for _ in range(self.chance.randint(1, 2)):
            message = UserMessage(context_ref=lane, role="user", content=say(self.chance))
            session.commit(Draft(message, {"run_id": f"w-{self.number}"}))
        if self.chance.random() < 0.3:
            self.roll_over()
            self._mirror()
        operation = AppliedWithdraw(type="withdraw", reason="system", from_seq=first)
        session.commit(Draft(OperationPayload(op_id=f"w-{self.number}", context_ref=lane, operation=operation)))

    def cancel(self) -> None:
        self.session.cancel(inputs=self.chance.choice(("drop", "follow_up")))

    def return_late(self) -> None:
        """Let a call return whose run has ended."""
        session, state = self.session, self.session.state
        if state.late_calls:
            session.answer_call(self.chance.choice(state.late_calls).tool_call_id, say(self.chance))
        elif state.detached_calls:
            call = self.chance.choice(state.detached_calls)
            session.do(LateResultInput(tool_call_id=call.tool_call_id, content=say(self.chance)))

    def roll_over(self) -> None:
        """Go on in another workflow run, or after a hibernation: the same to a thread."""
        session, chance = self.session, self.chance
        self._mirror()
        if not isinstance(session.effect, CallModel | None):
            return
        last = self.complete.last_seq
        # Entries may have been committed while the archive was written.
        self.archived_upto = max(last - chance.choice((0, 0, 0, 1, 3, 10)), self.archived_upto)
        archive = ArchiveRef(execution="x", family="s-1", upto=self.archived_upto)
        state = replace(session.state, archive=archive)
        size = chance.choice((0, 3000, 6000, 20_000, 500_000))
        with patch.object(carried, "MAX_CARRIED_BYTES", size):
            start = carried.carry(replace(session.session, state=state), recent_entries=chance.choice((0, 3, 30)))
        self._resume(carried.restore(json.loads(json.dumps(start))))
        self.counts["rolled over"] += 1

    def _resume(self, session: Session) -> None:
        harness = self.session
        harness.state, harness.thread, harness.effect = session.state, session.thread, session.effect

    def fork(self) -> None:
        """Go on as a fork of the session."""
        session, chance = self.session, self.chance
        self._mirror()
        if session.effect is not None or self.archived_upto < 0:
            return
        at_seq = self.complete.last_seq - chance.choice((0, 5, 40))
        if at_seq < 0 or session.thread.find_config(session.thread.last_seq) is None:
            return
        complete = Thread(self.complete.slice(0, at_seq))
        thread = asyncio.run(load_thread(Back(complete, at_seq)))
        state = carried.make_fork_state(session.session, thread, "s-1", ())
        if state.settings.tools is None or state.settings.agent_due:
            return
        payload = carried.make_fork_payload("forked_from", "s-0", at_seq, None)
        origin = Entry(at_seq + 1, f"fork-{self.number}", "fork", "", payload.as_dict(), {"session_id": "s-1"}, 0)
        for one in (complete, thread):
            one.append(origin)
        self.archived_upto = at_seq + 1
        state = replace(state, archive=ArchiveRef(execution="x", family="s-1", upto=self.archived_upto))
        self.complete = complete
        self.shown = {call_id: shown for call_id, shown in self.shown.items() if complete.find_reply(call_id)}
        self._resume(carried.restore(carried.carry(Session(state, thread))))
        self.counts["forked"] += 1

    # What the effects come to.

    def answer(self) -> None:
        session, chance = self.session, self.chance
        match session.effect:
            case Prepare():
                session.answer_preparation()
            case CallModel() as call:
                self.answer_model(call)
            case RunTools() as effect if effect.calls:
                called = chance.choice(effect.calls).call
                if chance.random() < 0.1:
                    session.answer_call(called.tool_call_id, failure=Failure(type="tool_failed", message="no"))
                else:
                    content = say(chance) if chance.random() < 0.7 else "word " * chance.choice((200, 2000))
                    session.answer_call(called.tool_call_id, content)
            case Summarize() as effect:
                self.write_summary(effect)
            case _:
                session.cancel()

    def answer_model(self, call: CallModel) -> None:
        session, chance = self.session, self.chance
        if session.state.stopping:
            return
        query = ContextQuery(call_id=call.call_id)
        policy = session.state.settings.policy.overlay(call.context_policy)
        shown = self._recall(
            call.context_ref, policy, lambda: views.build_projection(session.state, session.thread, query)
        )
        self._check_complete("call", shown, query)
        if isinstance(shown, str):
            session.fail("context_overflow")
            return
        assert_valid(shown.messages)
        self._compare_reference(call, shown)
        meta = shown.meta
        if chance.random() < 0.03:
            details = {"counted": meta.estimated_tokens, "status": 400}
            session.take_event(Failure(type="context_length_exceeded", message="too long", details=details))
            return
        tools = tuple(
            RequestedTool(name=chance.choice(("add", "look"))) for _ in range(chance.choice((0, 0, 1, 1, 3)))
        )
        wrong = not tools and session.state.run is not None and session.state.run.request.output_schema is not None
        wrong = wrong and chance.random() < 0.6
        self.counts["corrected"] += wrong
        counted = int(meta.estimated_tokens * chance.choice((1, 1, 1, 1.3)))
        self.shown[call.call_id] = shown
        session.take_event(
            ModelAnswered(
                reply=ModelReply(
                    content=say(chance),
                    stop_reason="paused" if not tools and chance.random() < 0.1 else "stop",
                    tool_calls=tools,
                    usage=Usage(input_tokens=counted, output_tokens=1),
                ),
                digest=meta.digest,
                policy_hash=meta.policy_hash,
                input_tokens=meta.estimated_tokens,
                epoch=meta.epoch,
                shared_prefix_tokens=meta.shared_prefix_tokens,
                attempt=1,
                needs_summary=meta.needs_summary,
                schema_problem="it is no object" if wrong else None,
            )
        )

    def write_summary(self, effect: Summarize) -> None:
        session, lane = self.session, effect.context_ref

        def find(thread: Thread) -> Any:
            try:
                return summaries.find_range(session.state, thread, effect)
            except Archived:
                raise
            except Refusal as refusal:
                return refusal.type

        ranged = self._recall(lane, find_policy(session.state.settings), lambda: find(session.thread))
        expected, held = find(self.complete), session.thread.get_lane(lane)
        # A range that is to end in the archive, or at a round there that was answered late, may be another, or none.
        has_late = any(entry.payload.get("late") for entry in self.complete if entry.lane == lane)
        is_known = held is not None and not isinstance(expected, str) and expected.to_seq >= held.gap.newest_seq
        ends_there = ranged == NothingToSummarize.type and not is_known
        if ranged != expected and effect.to_seq is None and not has_late and not ends_there:
            raise Differs(f"the range of a summary: {ranged} instead of {expected}")
        self.counts["summary"] += 1
        if isinstance(ranged, str):
            session.fail(NothingToSummarize.type)
            return
        written = WrittenSummary(content=say(self.chance), source_digest="d", source_tokens=9)
        session.take_event(Summarized(effect=ranged, summary=written))

    # Recalling, as the workflow and the activity do it.

    def _recall(self, lane: str, policy: ContextPolicy, build: Callable[[], Any]) -> Any:
        session = self.session
        self._mirror()
        while True:
            shown = project(build)
            if shown != "archived":
                return shown
            archive, before = session.state.archive, session.thread.get_lane(lane)
            if archive is None:
                raise Differs("archived without an archive")
            request = carried.make_recall(session.thread, archive, lane, policy)
            archived = Back(self.complete, archive.upto)
            part = asyncio.run(load_lane(archived, lane, request.policies, request.layers, request.before))
            thread = make_archived_thread(archive.upto, part.entries, {lane: part.gap})
            with patch.object(hibernation, "MAX_RECALLED_BYTES", self.chance.choice((20_000, 60_000, 1_500_000))):
                answer = fit_answer(thread, request)
            session.thread = carried.add_recalled(session.thread, lane, answer)
            self.counts["recalled"] += 1
            held = session.thread.get_lane(lane)
            if project(build) == "archived" and held and before and held.gap == before.gap:
                raise Differs(f"the recall of {lane} brings nothing")

    def _recall_changed(self, lane: str) -> None:
        session, state = self.session, self.session.state
        query = ContextQuery(context_ref=lane)
        # While a configuration is prepared, contexts still have the policy of the one before.
        if session.effect is None and not state.busy and state.archive:
            self._recall(lane, state.settings.policy, lambda: views.build_projection(state, session.thread, query))

    # What is compared.

    def _check_complete(self, name: str, shown: Projection | str, query: ContextQuery) -> None:
        state = self.session.state
        expected = project(lambda: views.build_projection(state, self.complete, query))
        self.counts[name] += 1
        if shown != expected:
            raise Differs(f"{name}: {query}\n{describe(shown)}\ninstead of\n{describe(expected)}")

    def _compare_reference(self, call: CallModel, shown: Projection) -> None:
        run, complete = self.session.state.run, self.complete
        entry = complete.find_config(call.at_seq)
        assert run is not None
        assert entry is not None
        config = entry.read(ConfigPayload)
        policy = config.policy.overlay(call.context_policy)
        if policy.window == "epoch":
            return
        names = run.request.tools
        system = [str(message["content"]) for message in shown.messages[:1] if message["role"] == "system"]
        prompted = bool(system) and not system[0].startswith("Summary of earlier")
        expected = build_expected(
            ProjectionInput(
                complete,
                policy,
                system=system[0] if prompted else None,
                tools=[tool for tool in config.tools if names is None or tool["name"] in names],
                context_ref=call.context_ref,
                at_seq=call.at_seq,
                provider=call.model.partition(":")[0],
                model=config.model,
                encoding="heuristic",
            )
        )
        self.counts["reference"] += 1
        if shown.messages != expected.messages:
            raise Differs(f"reference: {shown.messages}\ninstead of\n{expected.messages}")

    def look_around(self) -> None:
        """Compare contexts of earlier calls, of other lanes, seqs and policies, and those that readers build."""
        chance, state, thread = self.chance, self.session.state, self.session.thread
        self._mirror()
        frozen = FrozenThread(
            self.complete.last_seq,
            tuple(self.complete.slice(self.archived_upto + 1, self.complete.last_seq)),
            Back(self.complete, self.archived_upto) if self.archived_upto >= 0 else None,
        )
        for call_id in chance.sample(sorted(self.shown), min(len(self.shown), 3)):
            recipe = self.complete.find_reply(call_id)
            assert recipe is not None
            assert recipe.recipe is not None
            query = ContextQuery(call_id=call_id)
            live = project(partial(views.build_projection, state, thread, query))
            read = asyncio.run(project_call(frozen, recipe.recipe))
            own = find_own_settings(self.complete, recipe.recipe)
            audited = rebuild_context(self.complete, recipe.recipe, own)
            for name, context in (("live", live), ("read", read), ("audited", audited)):
                self.counts[name] += context != "archived"
                if context not in ("archived", self.shown[call_id]) or (context == "archived" and name != "live"):
                    raise Differs(f"{name} {query}\n{describe(context)}\ninstead of\n{describe(self.shown[call_id])}")
        queries = [
            ContextQuery(context_ref=lane, at_seq=at_seq, context_policy=policy)
            for lane in (None, *LANES)
            for at_seq in (None, max(self.complete.last_seq - chance.randint(0, 40), 0))
            for policy in (None, make_policy(chance))
        ]
        for query in queries:
            live = project(partial(views.build_projection, state, thread, query))
            if live != "archived":
                self._check_complete("query", live, query)
        window = WindowQuery(token_budget=chance.choice((100, 2000)))
        live = project(lambda: views.answer_window(state, thread, window))
        if live not in ("archived", project(lambda: views.answer_window(state, self.complete, window))):
            raise Differs(f"window: {live}")


def describe(context: Projection | str) -> str:
    """Describe a context by its seqs and its meta."""
    if isinstance(context, str):
        return context
    seqs = [seq for block in context.blocks for seq in block.seqs]
    return f"{seqs}\n{context.meta.as_dict()}"


def run_session(seed: int, steps: int = STEPS) -> Counter[str]:
    """Run a session of so many steps; returns how often what was compared.

    Raises:
        Differs: A context is not the complete thread's.
    """
    rolled = RolledSession(seed)
    for _ in range(steps):
        try:
            rolled.step()
        except Exception as error:
            error.add_note(f"seed {seed}, step {rolled.number}")
            raise
    return rolled.counts


def main() -> None:
    """Run sessions until they have made so many steps, and stop at the first difference."""
    parser = argparse.ArgumentParser(description="Search for contexts that are not those of the complete thread.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    console, begun, counts = Console(), time.monotonic(), Counter[str]()
    for number in range(-(-options.steps // STEPS)):
        counts += run_session(options.seed + number)
    console.print(
        f"{options.steps} steps from seed {options.seed} on in {time.monotonic() - begun:.0f} s: no difference"
    )
    console.print(dict(counts))


if __name__ == "__main__":
    main()
