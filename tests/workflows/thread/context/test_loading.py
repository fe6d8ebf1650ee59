"""Reading a thread piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from clew.errors import ContextOverflow
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.loading import load_thread
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import LANES, Step, histories, policies, write
from tests.support.threads import Writer, user_says


@dataclass
class Back:
    """Reads a thread that is complete in memory."""

    thread: Thread
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        for entry in reversed(self.thread.slice(from_seq, self.upto if to_seq is None else min(to_seq, self.upto))):
            if entry.kind == kind and context_ref in (None, entry.lane):
                yield entry


def answer(thread: Thread, lane: str | None, policy: ContextPolicy, at_seq: int | None) -> Projection | str:
    try:
        return build_context(thread, context_ref=lane, at_seq=at_seq, policy=policy)
    except ContextOverflow as error:
        return str(error)


def part(thread: Thread, upto: int, lane: str | None, policy: ContextPolicy) -> Thread:
    return asyncio.run(load_thread(Back(thread, upto), lane, lambda _in_force: policy))


@examples(100)
@given(
    steps=st.lists(histories, min_size=1, max_size=3).map(lambda some: [step for steps in some for step in steps]),
    policy=policies.map(ContextPolicy.complete),
    lane=st.sampled_from((None, *LANES)),
    data=st.data(),
)
def test_what_is_read_is_enough(
    steps: list[Step], policy: ContextPolicy, lane: str | None, data: st.DataObject
) -> None:
    """The context of the loaded part equals that of the full thread, at every seq."""
    thread = write(steps)
    at_seq = data.draw(st.integers(0, thread.last_seq))
    assert answer(part(thread, at_seq, lane, policy), lane, policy, None) == answer(thread, lane, policy, at_seq)


def test_the_configuration_that_set_the_prompt_is_read_too() -> None:
    """A snapshot's prompt that came after it stays in force, whatever else was configured since."""
    writer = Writer()
    writer.config(system_prompt="first")
    writer.replace([user_says("before")], system_prompt="the snapshot's")
    writer.config(system_prompt="first", model="openai:other")
    policy = ContextPolicy(max_input_tokens=4000)
    context = answer(part(writer.thread, 2, None, policy), None, policy, None)
    assert context == answer(writer.thread, None, policy, None)
    assert isinstance(context, Projection)
    assert context.messages[0]["content"] == "the snapshot's"
