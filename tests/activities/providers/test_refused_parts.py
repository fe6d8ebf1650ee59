"""What a refusal names, what is tried without it, and the requests without what was refused."""

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.encoders import get_forms
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.provider_errors import ErrorAnswer, ItemRefused, PromptRefused, classify_response
from clew_activities.providers.refused_parts import (
    MAX_TRIES,
    TEXT_MARKER,
    Search,
    identify_own_data,
    identify_part,
    identify_text,
    identify_tool,
    leave_out,
    list_candidates,
)
from clew_workflows.contract.content import Content, list_media
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.payloads import Fitting, Refused
from clew_workflows.protocol import ModelReply, RequestedTool
from tests.support.media import make_png
from tests.support.provider_server import ADD, make_request

DIGESTS = {number: f"{number:x}".ljust(64, "0") for number in range(1, 10)}
PROVIDER = Anthropic("anthropic", "http://localhost")


def make_part(number: int, **fields: Any) -> Any:
    blob = {"digest": DIGESTS[number], "bytes": 70, "media_type": "image/png", "width": 2, "height": 2}
    return {"type": "image", "blob": blob | fields}


def ask(*content: Any) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": "look"}, *content]}


def answer(number: int) -> Message:
    own: Any = {
        "provider": "anthropic",
        "blocks": [{"type": "thinking", "thinking": "hm", "signature": f"sig-{number}-ned"}],
    }
    call: Any = {"id": f"tc_{number}", "name": "add", "arguments": {}}
    return {"role": "assistant", "content": "", "tool_calls": [call], "provider_data": own}


def result(number: int, *parts: Any) -> Message:
    content: Content = [{"type": "text", "text": "3"}, *parts] if parts else "3"
    return {"role": "tool", "content": content, "tool_call_id": f"tc_{number}", "name": "add"}


CONTEXT: tuple[Message, ...] = (
    ask(make_part(1), make_part(2, name="two.png")),
    answer(1),
    result(1, make_part(3)),
    answer(2),
    result(2),
    ask(make_part(4)),
)


def make(*messages: Message, **options: Any) -> ModelRequest:
    request = make_request(*(messages or CONTEXT), model="claude-sonnet-4-6", tools=(ADD,), **options)
    blobs = {digest: make_png(number) for number, digest in DIGESTS.items()}
    return replace(request, takes=frozenset({"image"}), blobs=blobs)


def refuse(message: str, status: int = 400) -> ItemRefused:
    body = f'{{"type": "error", "error": {{"type": "invalid_request_error", "message": "{message}"}}}}'
    error = classify_response(ErrorAnswer(status=status, headers={}, body=body, at=0))
    assert isinstance(error, ItemRefused)
    return error


def search(request: ModelRequest) -> Search:
    return Search(request, get_forms(PROVIDER, request.model), "anthropic", ())


def take(found: Search, message: str) -> list[tuple[str, tuple[str, ...]]]:
    """Refuse the next try in these words. Returns what the try after it leaves out."""
    sent = found.reduced.request
    found.take(refuse(message), sent, PROVIDER.encode(sent).body)
    return [(group.kind, group.ids) for group in found.reduced.refused] if found.has_next else []


def part(number: int) -> str:
    return identify_part(make_part(number))


def test_a_path_names_the_part_that_is_left_out() -> None:
    found = search(make())
    assert take(found, "messages.2.content.0.tool_result.content.1.image: Could not process image") == [
        ("media", (part(3),))
    ]
    (message,) = [
        one for one in found.reduced.request.messages if one["role"] == "tool" and one["tool_call_id"] == "tc_1"
    ]
    assert not list_media(message["content"])
    assert "the provider refused it: messages.2" in str(message["content"])


def test_without_a_name_the_newest_suspect_is_left_out_first_then_the_next_then_all() -> None:
    found = search(make())
    tries = [take(found, "Could not process image") for _ in range(5)]
    assert tries[:4] == [[("media", (part(number),))] for number in (4, 3, 2, 1)]
    assert {name for _, names in tries[4] for name in names} == {part(number) for number in (1, 2, 3, 4)}


def test_what_has_changed_the_refusal_stays_left_out() -> None:
    found = search(make())
    take(found, "Could not process image")
    left_out = take(found, "messages.1.content.0: Invalid `signature` in `thinking` block")
    assert ("media", (part(4),)) in left_out
    assert ("own_data", (identify_own_data(answer(1)),)) in left_out


@pytest.mark.parametrize(
    "words",
    [
        "cannot identify image file <_io.BytesIO object at 0x7f5e{}>",
        "unknown variant `image_url`, expected `text` at line 1 column 24253{}",
        "Unable to process input image (request id: 2025041714412132{})",
    ],
)
def test_what_differs_in_two_messages_about_one_item_is_no_other_refusal(words: str) -> None:
    """Else what was tried in vain would stay left out."""
    found = search(make())
    tries = [take(found, words.format(number)) for number in range(3)]
    assert tries == [[("media", (part(number),))] for number in (4, 3, 2)]


def test_own_data_that_is_refused_one_after_another_is_left_out_together() -> None:
    """Keys that have changed make hundreds of items unreadable."""
    messages = [ask(), *(one for number in range(40) for one in (answer(number), result(number)))]
    found, tries = search(make(*messages)), 0
    while len(found.reduced.request.messages) and any(
        "provider_data" in one for one in found.reduced.request.messages
    ):
        sent = found.reduced.request
        body = PROVIDER.encode(sent).body
        first = next(number for number, one in enumerate(body["messages"]) if "signature" in str(one))
        found.take(refuse(f"messages.{first}.content.0: Invalid `signature` in `thinking` block"), sent, body)
        assert found.has_next
        tries += 1
    assert tries <= 4


def test_a_refusal_that_nothing_changes_ends_the_search() -> None:
    for message in ("Could not process image", "something is wrong", "tools.0.custom.input_schema: no"):
        found, tries = search(make()), 0
        while found.has_next:
            take(found, message)
            tries += 1
        assert tries <= MAX_TRIES + 1


def test_a_request_with_nothing_to_leave_out_is_not_repeated() -> None:
    found = search(replace(make({"role": "user", "content": "hello"}), tools=()))
    assert take(found, "something is wrong") == []


def test_a_text_that_was_never_accepted_is_a_suspect_of_a_refusal_that_says_nothing() -> None:
    """The newest is left out first, then all. A refusal of images, or of an item that it names, means no text."""
    new: tuple[Message, ...] = (say("assistant", "two"), say("user", "bad"), say("user", "worse"))
    request = replace(make(say("user", "one"), *new, say("user", "newest")), tools=())
    found, ids = search(request), [identify_text(message) for message in reversed(new)]
    tries = [take(found, "something is wrong") for _ in range(5)]
    assert tries[:3] == [[("text", (one,))] for one in ids]
    assert [{name for _, names in last for name in names} for last in tries[3:]] == [{*ids}, set()]
    assert take(search(request), "Could not process image") == []


def test_a_schema_is_simplified_before_its_tool_is_left_out() -> None:
    found = search(make())
    words = "tools.0.custom.input_schema: JSON schema is invalid."
    assert take(found, words) == [("tool_schema", (identify_tool(ADD),))]
    (spec,) = found.reduced.request.tools
    assert spec["parameters"]["properties"].keys() == {"a", "b"}
    assert take(found, words) == [("tool", (identify_tool(ADD),))]
    assert not found.reduced.request.tools


def test_a_refused_name_is_another_one_in_tools_and_calls_and_comes_back_as_the_tool() -> None:
    request = make(tool_choice="add")
    found = search(request)
    assert take(found, "tools.0.custom.name: String should match pattern")[0] == ("tool_name", ("add",))
    reduced = found.reduced
    (spec,) = reduced.request.tools
    names = {call["name"] for one in reduced.request.messages for call in one.get("tool_calls", ())}
    assert names == {spec["name"]} != {"add"}
    assert reduced.request.options.tool_choice == spec["name"]
    reply = ModelReply(tool_calls=(RequestedTool(name=spec["name"]), RequestedTool(name="other")))
    assert [call.name for call in reduced.restore_names(reply).tool_calls] == ["add", "other"]


def test_a_tool_that_was_renamed_may_still_be_refused() -> None:
    found = search(make())
    take(found, "tools.0.custom.name: String should match pattern")
    words = "tools.0.custom.input_schema: JSON schema is invalid."
    assert ("tool_schema", (identify_tool(ADD),)) in take(found, words)
    assert ("tool", (identify_tool(ADD),)) in take(found, words)
    assert not found.reduced.request.tools


def test_a_changed_tool_gets_another_chance() -> None:
    refused = Refused(kind="tool", ids=(identify_tool(ADD),), reason="no")
    assert leave_out(make(), [refused]).request.tools == []
    changed: ToolSpec = {**ADD, "parameters": {"type": "object", "properties": {}}}
    assert leave_out(replace(make(), tools=(changed,)), [refused]).request.tools == [changed]


def test_a_request_says_only_what_it_has_left_out() -> None:
    """Of all that was ever refused, a recipe has what the context had."""
    refused = Refused(kind="media", ids=(part(1), part(9)), reason="no")
    reduced = leave_out(make(), [refused])
    assert reduced.refused == (Refused(kind="media", ids=(part(1),), reason="no"),)
    assert reduced.describe(None) == Fitting(
        dialect="", media={DIGESTS[1][:12]: "shown as a marker: the provider refused it: no"}
    )
    assert leave_out(make(), ()).describe(None) is None


@pytest.mark.parametrize(
    "text", ["", "[" * 1000, "messages.99999999.content", "messages.-1", "input[", "a...b", "\0"]
)
def test_any_words_are_taken(text: str) -> None:
    error = ItemRefused(text or "x", words=text)
    found, request = search(make()), make()
    found.take(error, request, PROVIDER.encode(request).body)
    assert found.reduced.request.messages


def test_candidates_are_listed_newest_first_and_once() -> None:
    request = make(*CONTEXT, ask(make_part(1)))
    forms = get_forms(PROVIDER, request.model)
    steps = [one.steps[-1] for one in list_candidates(request, forms, "anthropic", tools=request.tools)]
    own = [("own_data", identify_own_data(answer(number))) for number in (2, 1)]
    tool = ("tool", identify_tool(ADD))
    media = [("media", part(number)) for number in (1, 4, 3, 2)]
    assert steps == [*media[:2], own[0], media[2], own[1], media[3], tool]


# Texts.


BLOCKED = PromptRefused("the prompt was flagged", status=400)


def say(role: str, text: str, call: str = "") -> Message:
    if role == "tool":
        return {"role": "tool", "content": text, "tool_call_id": f"tc_{call}", "name": "add"}
    message: Any = {"role": role, "content": text}
    if call:
        message["tool_calls"] = [{"id": f"tc_{call}", "name": "add", "arguments": {}}]
    return cast("Message", message)


CONVERSATION = (
    say("user", "one"),
    say("assistant", "two"),
    say("user", "three"),
    say("assistant", "four", call="1"),
    say("tool", "five", call="1"),
)


@dataclass
class Filtered:
    """A session at a provider that refuses requests with some texts.

    Attributes:
        texts: The texts that it refuses.
        messages: The conversation.
        refused: What calls leave out.
    """

    texts: set[str]
    messages: list[Message] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def call(self) -> tuple[bool, list[str]]:
        """Make a call. Returns whether it was answered, and the contents of its last request."""
        request = make(*self.messages)
        found = Search(request, get_forms(PROVIDER, request.model), "anthropic", tuple(self.refused))
        for _ in range(MAX_TRIES + 1):
            reduced = found.reduced
            sent = [str(message["content"]) for message in reduced.request.messages]
            if not self.texts & set(sent):
                self.refused += reduced.refused
                return True, sent
            found.take(BLOCKED, reduced.request, PROVIDER.encode(reduced.request).body)
            if not found.has_next:
                failure = PromptRefused(BLOCKED.message)
                found.note_texts(failure, request.model, tried=True)
                self.refused.append(Refused(**failure.details["refused"]))
                return False, sent
        raise AssertionError("the search has no end")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("five", ["one", "two", "three", "four", TEXT_MARKER]),
        ("four", ["one", "two", "three", TEXT_MARKER, "five"]),
        ("two", [TEXT_MARKER, TEXT_MARKER, "three", "four", "five"]),
        ("one", [TEXT_MARKER, TEXT_MARKER, "three", "four", "five"]),
    ],
)
def test_a_text_of_a_tool_a_model_or_an_older_message_is_left_out_in_the_same_run(
    text: str, first: list[str]
) -> None:
    """What the provider has never accepted is the suspect, the newest first, and then what it has."""
    session = Filtered({text}, [*CONVERSATION])
    assert session.call() == (True, first)
    session.messages += [say("assistant", "six"), say("user", "seven")]
    assert session.call() == (True, [*first, "six", "seven"])


def test_the_newest_text_of_a_user_fails_its_request_alone() -> None:
    session = Filtered({"three"}, [*CONVERSATION[:3]])
    assert session.call()[0] is False
    assert [group.ids for group in session.refused] == [(identify_text(CONVERSATION[2]),)]
    session.messages.append(say("user", "four"))
    assert session.call() == (True, ["one", "two", TEXT_MARKER, "four"])


def test_several_texts_are_left_out_at_once_and_one_after_another() -> None:
    session = Filtered({"five", "one"}, [*CONVERSATION])
    answered, sent = session.call()
    assert answered
    assert (sent[2], sent[4]) == ("three", TEXT_MARKER)
    session.texts.add("three")
    session.messages += [say("assistant", "six"), say("user", "seven")]
    answered, sent = session.call()
    assert answered
    assert sent[-1] == "seven"


ROLES = st.sampled_from(("user", "assistant", "tool"))


@given(
    turns=st.lists(st.tuples(ROLES, st.sampled_from("abcdefgh")), min_size=1, max_size=14),
    refused=st.lists(st.frozensets(st.sampled_from("abcdefgh")), min_size=14, max_size=14),
)
def test_a_provider_may_refuse_any_texts_at_any_time(
    turns: list[tuple[str, str]], refused: list[frozenset[str]]
) -> None:
    """Every call ends. It is answered unless the newest text of the user is itself refused."""
    session = Filtered(set())
    for (role, text), now in zip(turns, refused, strict=False):
        if role != "user" and not any(message["role"] == "user" for message in session.messages):
            continue
        if role == "tool":
            number = str(len(session.messages))
            session.messages.append(say("assistant", "", call=number))
            session.messages.append(say("tool", text, call=number))
        else:
            session.messages.append(say(role, text))
        if role == "assistant":
            continue
        session.texts = set(now)
        newest = next(message["content"] for message in reversed(session.messages) if message["role"] == "user")
        assert session.call()[0] == (newest not in now)


# Names.


NAMES = st.sampled_from(("add", "find", "a.b", "tool_x")).flatmap(
    lambda name: st.sampled_from((name, f"tool_{sha256(name.encode()).hexdigest()[:8]}"))
)


@given(st.lists(NAMES, unique=True, max_size=8), st.sets(NAMES), st.lists(NAMES, max_size=3))
def test_renamed_tools_have_names_that_no_other_tool_has(
    names: list[str], refused: set[str], called: list[str]
) -> None:
    """What a provider calls goes back to the tool that it means, also where a tool is named as another would be."""
    calls = [say("assistant", "", call=str(number)) for number in range(len(called))]
    for message, name in zip(calls, called, strict=True):
        message["tool_calls"][0]["name"] = name
    request = replace(make(say("user", "one"), *calls), tools=[{**ADD, "name": name} for name in names])
    reduced = leave_out(request, [Refused(kind="tool_name", ids=tuple(sorted(refused)), reason="no")])
    sent = [spec["name"] for spec in reduced.request.tools]
    assert len(set(sent)) == len(names)
    assert not refused & {
        *sent,
        *(call["name"] for one in reduced.request.messages for call in one.get("tool_calls", ())),
    }
    for name, own in zip(sent, names, strict=True):
        reply = ModelReply(tool_calls=(RequestedTool(name=name),))
        assert reduced.restore_names(reply).tool_calls[0].name == own
