"""Messages of any context become what a dialect accepts, and nothing of their text is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers.dialects import DIALECTS, STRICT, Dialect
from clew_activities.providers.fit_messages import (
    BRIDGE,
    CONTINUE,
    OMITTED,
    EncodedMessage,
    Turn,
    choose_call_ids,
    fit_messages,
    group_turns,
    iterate_open_turn,
)
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Message
from tests.support.provider_server import make_call, make_result

SYSTEM: Message = {"role": "system", "content": "Be brief."}
SUMMARY: Message = {"role": "system", "content": "Summary of earlier conversation: none."}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def list_shown(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message["role"], get_text(message["content"])) for message in messages]


def test_a_prompt_and_a_summary_are_one_system_message_at_the_beginning() -> None:
    fitted = fit_messages([SYSTEM, SUMMARY, user("hi")], STRICT)
    text = f"{SYSTEM['content']}\n\n{SUMMARY['content']}"
    assert list_shown(fitted.messages) == [("system", text), ("user", "hi")]
    assert (fitted.merged, fitted.added) == (1, 0)


def test_a_template_without_a_system_role_reads_the_prompt_before_the_first_message() -> None:
    fitted = fit_messages([SYSTEM, user("hi")], replace(STRICT, system="user"))
    assert list_shown(fitted.messages) == [("user", "Be brief.\n\nhi")]


def test_two_messages_of_a_user_in_a_row_are_one() -> None:
    """They stand in a thread after a run that failed or was cancelled."""
    fitted = fit_messages([user("one"), user("two")], STRICT)
    assert list_shown(fitted.messages) == [("user", "one\n\ntwo")]
    assert fitted.merged == 1


def test_many_messages_are_merged_in_linear_time() -> None:
    """Each merge copied all text before it."""
    began = time.process_time()
    fitted = fit_messages([user("x" * 1000)] * 20_000, STRICT)
    assert (len(fitted.messages), fitted.merged) == (1, 19_999)
    assert time.process_time() - began < 2


def test_an_id_that_repeats_many_times_is_replaced_in_linear_time() -> None:
    """A caller's snapshot may have one id in all rounds."""
    messages = [make_call(call_id="same"), make_result("1", "same")] * 5_000
    began = time.process_time()
    ids = choose_call_ids(messages, "p", "m", STRICT)
    assert len({row[0] for row in ids}) == 5_000
    assert time.process_time() - began < 2


def test_a_user_right_after_a_result_is_bridged() -> None:
    fitted = fit_messages([user("add"), make_call(a=1), make_result("1"), user("and now?")], STRICT)
    assert list_shown(fitted.messages)[2:] == [("tool", "1"), ("assistant", BRIDGE), ("user", "and now?")]
    assert fitted.added == 1


def test_a_conversation_begins_and_ends_with_a_user() -> None:
    fitted = fit_messages([SYSTEM, assistant("hello"), user("hi"), assistant("yes?")], STRICT)
    assert [text for _, text in list_shown(fitted.messages)[1:]] == [OMITTED, "hello", "hi", "yes?", CONTINUE]


def test_a_context_without_any_message_still_has_a_user() -> None:
    assert list_shown(fit_messages([SYSTEM], STRICT).messages) == [("system", "Be brief."), ("user", OMITTED)]


def test_openai_gets_the_context_as_it_is() -> None:
    messages = [
        SYSTEM,
        SUMMARY,
        assistant("hello"),
        user("one"),
        user("two"),
        make_call(a=1),
        make_result("1"),
        user("?"),
    ]
    fitted = fit_messages(messages, DIALECTS["openai"])
    assert fitted.messages == messages
    assert (fitted.merged, fitted.added, fitted.dropped) == (0, 0, 0)


def test_parallel_calls_are_one_after_the_other_where_a_template_takes_one() -> None:
    first, second = _make_round([0, 1], "x")[1:]
    data: Any = {"provider": "p", "blocks": [{"reasoning": "hm"}], "calls": [{"id": "a"}, {"id": "b"}]}
    parallel: Message = {**_make_round([0, 1], "both")[0], "provider_data": data}
    fitted = fit_messages([user("add"), parallel, second, first], replace(STRICT, single_calls=True))
    assert [(message["role"], message["content"]) for message in fitted.messages] == [
        ("user", "add"),
        ("assistant", "both"),
        ("tool", "x"),
        ("assistant", ""),
        ("tool", "x"),
    ]
    assert choose_call_ids(fitted.messages, "p", "m", STRICT) == [[], ["a"], ["a"], ["b"], ["b"]]
    assert [message["provider_data"]["blocks"] for message in fitted.messages if "provider_data" in message] == [
        [{"reasoning": "hm"}],
        [],
    ]


def test_data_of_another_number_of_calls_does_not_go_back_with_any() -> None:
    """A caller's snapshot may have such data."""
    parallel: Message = {
        **_make_round([0, 1], "x")[0],
        "provider_data": {"provider": "p", "blocks": [], "calls": [{}]},
    }
    fitted = fit_messages([parallel, *_make_round([0, 1], "x")[1:]], replace(STRICT, single_calls=True))
    own = [message["provider_data"].get("calls") for message in fitted.messages if "provider_data" in message]
    assert own == [[{}], [{}]]


_texts = st.text("ab", min_size=1, max_size=3)


def _make_round(numbers: list[int], text: str) -> list[Message]:
    calls: list[Any] = [{"id": f"c{number}", "name": "add", "arguments": {}} for number in numbers]
    return [
        {"role": "assistant", "content": text, "tool_calls": calls},
        *(make_result(text, call["id"]) for call in calls),
    ]


_pieces = st.one_of(
    _texts.map(lambda text: [user(text)]),
    _texts.map(lambda text: [assistant(text)]),
    st.builds(_make_round, st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), _texts),
)


def assert_valid(messages: list[Message], dialect: Dialect) -> None:
    """Assert what templates with strict alternation demand. It shares no code with the fitting."""
    others = [message for message in messages if message["role"] != "system"]
    assert messages[len(messages) - len(others) :] == others, "system messages stand first"
    assert len(messages) - len(others) <= (1 if dialect.system == "one" else 0)
    assert others[0]["role"] == "user"
    assert others[-1]["role"] in ("user", "tool")
    for before, after in pairwise(others):
        assert before["role"] != after["role"] or after["role"] == "tool"
        assert (before["role"], after["role"]) != ("tool", "user")


@pytest.mark.parametrize("system", ["one", "user"])
@given(pieces=st.lists(_pieces, max_size=8), prompts=st.lists(_texts, max_size=2))
def test_whatever_a_context_holds_is_valid_and_complete(
    system: Any, pieces: list[list[Message]], prompts: list[str]
) -> None:
    dialect = replace(STRICT, system=system)
    messages: list[Message] = [{"role": "system", "content": prompt} for prompt in prompts]
    messages += [message for piece in pieces for message in piece]
    fitted = fit_messages(messages, dialect)
    assert_valid(fitted.messages, dialect)
    added = {OMITTED, BRIDGE, CONTINUE}
    shown = "".join(
        text
        for message in fitted.messages
        for text in get_text(message["content"]).split("\n\n")
        if text not in added
    )
    assert shown == "".join(get_text(message["content"]) for message in messages)
    calls = [call for message in fitted.messages for call in message.get("tool_calls", [])]
    assert calls == [call for message in messages for call in message.get("tool_calls", [])]


def make_own(message: Message, *ids: str, provider: str = "mistral") -> Message:
    return {**message, "provider_data": {"provider": provider, "blocks": [], "calls": [{"id": own} for own in ids]}}


def test_a_provider_gets_its_own_id_back() -> None:
    messages = [user("add"), make_own(make_call(a=1), "aB3xK9mP2"), make_result("1")]
    assert choose_call_ids(messages, "mistral", "m", DIALECTS["mistral"]) == [[], ["aB3xK9mP2"], ["aB3xK9mP2"]]
    other = choose_call_ids(messages, "openai", "m", DIALECTS["openai"])
    assert other == [[], ["tc_1"], ["tc_1"]]


def test_the_first_call_keeps_an_id_that_a_provider_repeats() -> None:
    """So the next request begins as this one did, and prompt caches hold."""
    messages = [
        make_own(make_call(call_id="tool00001"), "functions.add:0", provider="kimi"),
        make_result("1", "tool00001"),
        make_own(make_call(call_id="tool00002"), "functions.add:0", provider="kimi"),
        make_result("2", "tool00002"),
    ]
    ids = choose_call_ids(messages, "kimi", "m", DIALECTS["kimi"])
    assert ids == [["functions.add:0"], ["functions.add:0"], ["functions.add:1"], ["functions.add:1"]]
    assert choose_call_ids(messages[:2], "kimi", "m", DIALECTS["kimi"]) == ids[:2]


def test_an_id_in_another_form_is_made_short_and_stays_unique() -> None:
    """Callers' snapshots have ids of their own, and may repeat them in another round."""
    messages = [make_call(), make_result("1"), make_call(), make_result("2")]
    ids = choose_call_ids(messages, "mistral", "m", DIALECTS["mistral"])
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert all(DIALECTS["mistral"].ids.fullmatch(row[0]) for row in ids)
    assert ids == choose_call_ids(messages, "mistral", "m", DIALECTS["mistral"])


def make_block(text: str) -> dict[str, Any]:
    return {"text": text}


def encode(role: str, *texts: str, place: int = 0) -> EncodedMessage:
    return EncodedMessage(role, [make_block(text) for text in texts], place)


def list_turns(messages: list[EncodedMessage], *, goes_on: bool = False) -> list[tuple[str, list[str]]]:
    turns = group_turns(messages, make_block, goes_on=goes_on).turns
    return [(role, [block["text"] for block in blocks]) for role, blocks in turns]


def test_turns_alternate_and_results_come_first_in_theirs() -> None:
    """Results stand in their places, before what a user says; messages without blocks are left out."""
    messages = [
        encode("user", "one"),
        encode("user"),
        encode("user", "two"),
        encode("assistant", "text", "calls"),
        encode("tool", "second", place=1),
        encode("user", "and?"),
        encode("tool", "first", place=0),
    ]
    assert list_turns(messages) == [
        ("user", ["one", "two"]),
        ("assistant", ["text", "calls"]),
        ("user", ["first", "second", "and?"]),
    ]
    grouped = group_turns(messages, make_block)
    assert (grouped.merged, grouped.added, grouped.dropped) == (2, 0, 1)


@pytest.mark.parametrize("messages", [[], [encode("user")]])
def test_turns_without_any_message_are_one_of_a_user(messages: list[EncodedMessage]) -> None:
    """A format with turns takes no request without one."""
    grouped = group_turns(messages, make_block)
    assert grouped.turns == [Turn("user", [make_block(OMITTED)])]
    assert grouped.added == 1


def test_turns_begin_and_end_with_a_user_unless_the_model_goes_on() -> None:
    """A paused reply is the last turn of its request."""
    messages = [encode("assistant", "hello")]
    assert list_turns(messages) == [("user", [OMITTED]), ("assistant", ["hello"]), ("user", [CONTINUE])]
    assert list_turns(messages, goes_on=True) == [("user", [OMITTED]), ("assistant", ["hello"])]


def test_the_open_turn_is_what_follows_the_newest_message_of_a_user() -> None:
    """The newest message comes first; there is none after a user's message."""
    call, result = make_call(a=1), make_result("1")
    assert list(iterate_open_turn([user("one"), assistant("yes"), user("two"), call, result])) == [result, call]
    assert list(iterate_open_turn([assistant("hello"), user("one")])) == []
