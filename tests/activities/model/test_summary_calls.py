"""The requests of a summary follow from the thread: each is made again as it was sent, however many there are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.model.summary_calls import (
    INSTRUCTIONS,
    INSTRUCTIONS_VERSION,
    MEDIA_INSTRUCTIONS,
    EarlierCall,
    SummaryPlan,
    decode_earlier_calls,
    encode_earlier_calls,
    read_basis,
    rebuild_calls,
)
from clew_activities.providers.interface import ModelRequest
from clew_workflows.contract.content import get_text
from clew_workflows.contract.errors import Archived, NewerVersion
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.payloads import SentRequest, SummaryPayload, UserMessage
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import Summarize
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import histories, make_part, write
from tests.support.threads import Writer, assistant_calls, assistant_says, tool_returns, user_says

ENCODING = load_encoding("heuristic")
LONG = "many words of a user " * 400


def make_effect(thread: Thread, from_seq: int = 0, builds_on: int | None = None, **fields: object) -> Summarize:
    """Make the effect of a summary of the default lane up to the thread's end."""
    effect = Summarize(
        summary_id="summary-1",
        context_ref="default",
        model="local:tiny",
        encoding="heuristic",
        max_input_tokens=1000,
        max_output_tokens=100,
        from_seq=from_seq,
        to_seq=thread.last_seq,
        builds_on=builds_on,
    )
    return effect.model_copy(update=fields)


def record(request: ModelRequest) -> SentRequest:
    """Record a request as a provider's encoder does: by the digest of all that it is made of."""
    row = [request.model, list(request.messages), request.options.model_dump(mode="json")]
    return SentRequest(digest=compute_digest(row), encoder="test/1")


def play(
    thread: Thread, effect: Summarize, piece_tokens: int, refusals: Sequence[bool] = ()
) -> tuple[SummaryPlan, list[ModelRequest]]:
    """Have a summary written by a model that refuses some requests as too long. Returns the accepted ones, too."""
    basis = "" if effect.builds_on is None else read_basis(thread[effect.builds_on])
    plan, left = SummaryPlan(effect, basis, piece_tokens, ENCODING), iter(refusals)
    accepted: list[ModelRequest] = []
    for seq in range(effect.from_seq or 0, (effect.to_seq or 0) + 1):
        plan.add(thread[seq])
        plan.is_complete = seq == effect.to_seq
        while call := plan.find_call():
            if next(left, False) and plan.shorten():
                continue
            accepted.append(call)
            plan.take_text(f"summary {len(accepted)} of {len(get_text(call.messages[1]['content']))}", record(call))
    return plan, accepted


def make_payload(plan: SummaryPlan, effect: Summarize) -> SummaryPayload:
    return SummaryPayload(
        context_ref=effect.context_ref,
        content=plan.text,
        format="text",
        from_seq=effect.from_seq or 0,
        to_seq=effect.to_seq or 0,
        model=effect.model,
        source_digest=plan.conversation.digest,
        recipe=plan.make_recipe("0" * 64 if len(plan.calls) > 1 else None),
    )


def make_again(thread: Thread, plan: SummaryPlan, effect: Summarize) -> list[tuple[ModelRequest, SentRequest]]:
    """Make the requests again, from what the entry and the archive have."""
    payload = SummaryPayload.from_json(json.loads(json.dumps(make_payload(plan, effect).as_dict())))
    assert payload.recipe
    earlier = decode_earlier_calls(encode_earlier_calls(plan.calls[:-1])) if plan.calls[1:] else []
    return list(rebuild_calls(thread, payload, payload.recipe, earlier))


@pytest.mark.slow
@examples(200)
@given(
    steps=histories,
    piece_tokens=st.integers(1, 2000),
    refusals=st.lists(st.booleans(), max_size=12),
    data=st.data(),
)
def test_each_request_is_made_again_as_it_was_sent(
    steps: list[object], piece_tokens: int, refusals: list[bool], data: st.DataObject
) -> None:
    """For every thread and range, window, series of refusals, withdrawal, and entry that a summary builds on."""
    thread = write(steps)  # type: ignore[arg-type]
    from_seq = data.draw(st.integers(0, thread.last_seq))
    bases = [
        entry.seq
        for entry in thread.slice(0, from_seq - 1)
        if entry.lane == "default"
        and (entry.kind == "summary" or entry.payload.get("operation", {}).get("type") == "replace")
    ]
    effect = make_effect(
        thread,
        from_seq,
        data.draw(st.sampled_from([None, *bases])),
        withdrawn=data.draw(st.sampled_from([(), ((from_seq, from_seq + 2),)])),
    )
    plan, accepted = play(thread, effect, piece_tokens, refusals)
    if not plan.calls:
        kept = [
            entry
            for entry in thread.slice(from_seq, thread.last_seq)
            if entry.lane == "default" and not any(first <= entry.seq <= last for first, last in effect.withdrawn)
        ]
        assert all(entry.kind != "ai_message" or isinstance(entry.body, UserMessage) for entry in kept)
        return
    again = make_again(thread, plan, effect)
    assert [request for request, _ in again] == accepted
    assert [sent for _, sent in again] == [record(request) for request in accepted]
    assert plan.calls[-1].end == plan.conversation.length


def test_a_long_conversation_is_read_to_the_character() -> None:
    """The pieces together are the conversation; each call but the first reads what the one before has written."""
    thread = Writer().talk(user_says(LONG), assistant_says("Fine."), user_says(LONG + "end")).thread
    effect = make_effect(thread)
    plan, accepted = play(thread, effect, 700, [False, True, True])
    contents = [get_text(request.messages[1]["content"]) for request in accepted]
    pieces = [content.partition("The conversation since:\n\n")[2] for content in contents[1:]]
    read = contents[0].removeprefix("The conversation:\n\n") + "".join(pieces)
    assert read.replace("\n", "") == f"user: {LONG}assistant: Fine.user: {LONG}end"
    assert len(accepted) > 4
    for number, content in enumerate(contents[1:], 1):
        assert f"summary {number} of " in content
    assert plan.text.startswith(f"summary {len(accepted)} of ")


def test_the_entry_stays_small_however_many_pieces_there_are() -> None:
    """A summary of a hundred calls has a recipe as large as one of two calls, to a few digits."""
    sizes = []
    for turns in (2, 100):
        thread = Writer().talk(*[user_says(LONG)] * turns).thread
        effect = make_effect(thread)
        plan, accepted = play(thread, effect, 2500)
        assert len(accepted) >= turns // 2 + 1
        recipe = plan.make_recipe("0" * 64)
        sizes.append(len(json.dumps(recipe.as_dict())))
    assert sizes[1] - sizes[0] <= 2
    assert sizes[1] < 400


def test_markers_of_media_have_their_instructions_from_their_piece_on() -> None:
    """A call that has read no marker is not told of them; those after the first marker are."""
    picture = [{"type": "text", "text": "look"}, make_part("image")]
    thread = Writer().talk(user_says(LONG), user_says(picture), user_says(LONG)).thread  # type: ignore[arg-type]
    plan, accepted = play(thread, make_effect(thread), 1500)
    told = [request.messages[0]["content"] == INSTRUCTIONS + MEDIA_INSTRUCTIONS for request in accepted]
    assert told == sorted(told)
    assert {True, False} == set(told)
    assert [request for request, _ in make_again(thread, plan, make_effect(thread))] == accepted


def test_another_text_gives_another_request() -> None:
    """A changed entry of the range changes the request of its piece, and no other one."""
    thread = Writer().talk(user_says(LONG), assistant_says("Fine."), user_says(LONG)).thread
    effect = make_effect(thread)
    plan, accepted = play(thread, effect, 1500)
    assert len(accepted) > 2
    changed = [
        replace(entry, payload={**entry.payload, "content": "Nine."}) if entry.seq == 1 else entry for entry in thread
    ]
    again = [record(request) == sent for request, sent in make_again(Thread(changed), plan, effect)]
    assert again.count(False) == 1


def test_what_the_thread_does_not_have_is_not_made_again() -> None:
    """A thread without its beginning refuses; so does a recipe of another number of calls."""
    thread = Writer().talk(*[user_says(LONG)] * 3).thread
    effect = make_effect(thread)
    plan, _ = play(thread, effect, 1500)
    payload = make_payload(plan, effect)
    assert payload.recipe
    with pytest.raises(Archived):
        list(rebuild_calls(Thread(thread.slice(1, 2), 1), payload, payload.recipe, plan.calls[:-1]))
    with pytest.raises(ValueError, match="earlier"):
        list(rebuild_calls(thread, payload, payload.recipe, plan.calls[:-2]))


def test_stored_calls_of_a_newer_version_are_not_read() -> None:
    """The object in the archive has a version; one that is damaged is no list of calls."""
    call = EarlierCall(end=3, text="so", request=SentRequest(digest="0" * 64, encoder="test/1", dialect="1h"))
    data = encode_earlier_calls([call])
    assert decode_earlier_calls(data) == [call]
    with pytest.raises(NewerVersion):
        decode_earlier_calls(data.replace(b'"version":1', b'"version":2'))
    for damaged in (b"{}", b"[]", b'{"calls":[{}],"version":1}', data.replace(b'"version":1', b'"version":"1"')):
        with pytest.raises(ValueError, match=r"[cC]all|version"):
            decode_earlier_calls(damaged)


PROMPTS = {"summary/1": "b3d52e6fd5cc44d390f65e3692bf10ce1270dc1ba2666708e1cc5a7b0a83871d"}
"""The digest of the requests of `make_sample`, by the version of the instructions."""


def make_sample() -> list[ModelRequest]:
    """Make the requests of a conversation with all that the prompt shows: calls, results, media, a basis, pieces."""
    call = assistant_calls("tool00001", name="add")
    call["tool_calls"][0]["arguments"] = {"b": 2, "a": [1, None]}
    picture = [{"type": "text", "text": "look"}, make_part("image", 1)]
    writer = Writer().talk(user_says("Hello.\nAgain."), call, tool_returns("tool00001", "3", "add"))
    writer.replace([user_says("before"), assistant_says("yes")])
    writer.talk(user_says(picture), assistant_says("I see."), user_says(LONG))  # type: ignore[arg-type]
    thread = writer.thread
    return [*play(thread, make_effect(thread), 1500)[1], *play(thread, make_effect(thread, 4, 3), 1500)[1]]


def test_the_prompt_of_a_version_never_changes() -> None:
    """Audits compare summaries of earlier releases with what this one would send.

    If this fails, raise `INSTRUCTIONS_VERSION`, and add its digest. Before the first release the version may stay.
    """
    rows = [list(request.messages) for request in make_sample()]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    assert PROMPTS[INSTRUCTIONS_VERSION] == digest
