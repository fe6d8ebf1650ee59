"""What sessions fetch of their archived lanes."""

from __future__ import annotations

import itertools
import random
from string import ascii_lowercase

import pytest

from clew.errors import Archived
from clew_activities.archive.hibernation import MAX_RECALLED_BYTES, fit_answer
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import ArchiveRef, Recall
from clew_workflows.session.carried import add_recalled
from clew_workflows.thread.context.archived import make_archived_thread
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.lane import ArchivedPart, Layers
from clew_workflows.thread.thread import Thread
from tests.support.examples import mark_slow_except
from tests.support.threads import Writer, assistant_calls, assistant_says, tool_returns, user_says

CALLS = 64
BYTES = 65_000
WORDS = random.Random(1).choices([*ascii_lowercase, *" " * 5], k=BYTES + CALLS)


def count_recalls(archived: Thread, policy: ContextPolicy) -> tuple[int, Projection]:
    """Recall what the next context needs, as a session does that holds nothing of its lane.

    Returns:
        How many answers that takes, and the context.
    """
    upto = archived.last_seq
    held = make_archived_thread(upto, archived.configs, {DEFAULT_LANE: ArchivedPart(upto, no_user_after=upto)})
    complete = make_archived_thread(upto, archived, {DEFAULT_LANE: ArchivedPart()})
    for answers in range(100):
        try:
            return answers, build_context(held, policy=policy)
        except Archived:
            before = held.find_first_held_seq(DEFAULT_LANE)
            recall = Recall(
                archive=ArchiveRef(execution="e", family="f", upto=upto),
                context_ref=DEFAULT_LANE,
                policies=(policy,),
                before=before,
            )
            answer = fit_answer(complete, recall)
            assert len(answer.packed.zlib) <= MAX_RECALLED_BYTES
            held = add_recalled(held, DEFAULT_LANE, answer)
            assert held.find_first_held_seq(DEFAULT_LANE) < before
    raise AssertionError("the context is never covered")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "window"),
    mark_slow_except(
        (("words", "sliding"), ("\x01", "epoch")), itertools.product(("words", "\n", "\x01"), ("sliding", "epoch"))
    ),
)
def test_a_round_larger_than_an_answer_is_fetched_in_parts(text: str, window: str) -> None:
    """Each answer brings more of it, and the context is the complete thread's."""
    writer = Writer().talk(user_says("before"), assistant_says("yes"), run="r1").talk(user_says("go"), run="r2")
    ids = [f"tool{number:05d}" for number in range(CALLS)]
    writer.talk(assistant_calls(*ids), run="r2")
    for number, call_id in enumerate(ids):
        content = "".join(WORDS[number : number + BYTES]) if text == "words" else text * BYTES
        writer.talk(tool_returns(call_id, content), run="r2")
    policy = ContextPolicy.model_validate({"window": window}).complete()
    answers, context = count_recalls(writer.thread, policy)
    assert 1 < answers < 20
    assert context == build_context(writer.thread, policy=policy)


def test_layers_that_a_session_has_lost_are_fetched() -> None:
    """A lane that was recalled at a newer seq than a rollover keeps has its messages, and has to fetch its layers."""
    writer = Writer().talk(user_says("before"), assistant_says("yes"), run="r1").talk(user_says("go"), run="r2")
    archived, policy = writer.thread, ContextPolicy().complete()
    upto = archived.last_seq
    held = make_archived_thread(upto, archived, {DEFAULT_LANE: ArchivedPart(layers=Layers(()))})
    with pytest.raises(Archived):
        build_context(held, policy=policy)
    complete = make_archived_thread(upto, archived, {DEFAULT_LANE: ArchivedPart()})
    recall = Recall(
        archive=ArchiveRef(execution="e", family="f", upto=upto),
        context_ref=DEFAULT_LANE,
        policies=(policy,),
        before=held.find_first_held_seq(DEFAULT_LANE),
    )
    held = add_recalled(held, DEFAULT_LANE, fit_answer(complete, recall))
    assert build_context(held, policy=policy) == build_context(archived, policy=policy)
