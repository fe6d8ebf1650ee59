"""Makes the messages of any context acceptable to a dialect: their order, their roles, the ids of tool calls. Pure.

A thread may have two messages of a user in a row, a user's message right after a tool's result, and several system
messages. Many servers refuse that, because the template of their model cannot express it.

`fit_messages` is for formats whose requests have messages. `group_turns` is for those with turns of blocks, in which
users and models alternate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import Any, Literal, NamedTuple

from clew_activities.providers.dialects import Dialect
from clew_workflows.contract.content import get_text, is_empty, join_contents
from clew_workflows.contract.messages import Message, ProviderData, list_call_ids

OMITTED = "(earlier messages are not shown)"
"""The first message of a conversation whose own first one, an assistant's, must not be the first."""
BRIDGE = "(the conversation goes on)"
"""An assistant's message between a tool's result and a user's message."""
CONTINUE = "(continue)"
"""The last message of a conversation whose own last one, an assistant's, must not be the last."""
NO_OUTPUT = "(no output)"
"""The result of a tool that returned no text, where the dialect wants some."""

_SEPARATOR = "\n\n"
_SHORT_ID_CHARACTERS = 9
_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class FittedMessages:
    """The messages of a request.

    Attributes:
        messages: The messages, in an order that the dialect accepts.
        merged: Messages that were joined to another one.
        added: Messages that the context does not have.
        dropped: Messages without any text, which are left out.
    """

    messages: list[Message]
    merged: int = 0
    added: int = 0
    dropped: int = 0


def fit_messages(messages: Sequence[Message], dialect: Dialect) -> FittedMessages:
    """Put messages into an order and into roles that a dialect accepts. Nothing of their contents is lost."""
    shown = [message for message in messages if not is_empty(message["content"]) or _may_be_empty(message)]
    system = [message for message in shown if message["role"] == "system"]
    others = [message for message in shown if message["role"] != "system"]
    added = merged = 0
    if dialect.single_calls:
        separate = _separate_calls(others)
        added += len(separate) - len(others)
        others = separate
    if not others or (dialect.user_first and others[0]["role"] == "assistant"):
        others.insert(0, {"role": "user", "content": OMITTED})
        added += 1
    if dialect.user_last and others[-1]["role"] == "assistant":
        others.append({"role": "user", "content": CONTINUE})
        added += 1
    if dialect.bridges_results:
        bridged = _bridge_results(others)
        added += len(bridged) - len(others)
        others = bridged
    if dialect.alternates:
        joined = _merge_neighbours(others)
        merged += len(others) - len(joined)
        others = joined
    if dialect.system == "anywhere":
        ordered = _restore_system(shown, others)
    else:
        ordered = _place_system(system, others, dialect)
        merged += len(system) + len(others) - len(ordered)
    return FittedMessages(ordered, merged, added, len(messages) - len(shown))


def _may_be_empty(message: Message) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _restore_system(shown: Sequence[Message], others: Sequence[Message]) -> list[Message]:
    """Put system messages back where they stood, between messages of which none was joined or moved."""
    if [message for message in shown if message["role"] != "system"] == others:
        return list(shown)
    # Those before the conversation stand first; the few later ones stand there, too.
    return [*(message for message in shown if message["role"] == "system"), *others]


def _place_system(system: Sequence[Message], others: Sequence[Message], dialect: Dialect) -> list[Message]:
    if not system:
        return list(others)
    if dialect.system == "first":
        return [*system, *others]
    text = _SEPARATOR.join(get_text(message["content"]) for message in system)
    if dialect.system == "one":
        return [{"role": "system", "content": text}, *others]
    first, *rest = others
    if first["role"] != "user":
        return [{"role": "user", "content": text}, first, *rest]
    return [{"role": "user", "content": join_contents((text, first["content"]), _SEPARATOR)}, *rest]


def _separate_calls(messages: Sequence[Message]) -> list[Message]:
    """Divide messages with several tool calls into one for each call, with its result after it."""
    separate: list[Message] = []
    position = 0
    while position < len(messages):
        message, calls = messages[position], messages[position].get("tool_calls", [])
        position += 1
        if len(calls) < 2:
            separate.append(message)
            continue
        results: dict[str, Message] = {}
        while position < len(messages) and messages[position]["role"] == "tool":
            results[messages[position].get("tool_call_id", "")] = messages[position]
            position += 1
        for number, call in enumerate(calls):
            part: Message = {**message, "content": "" if number else message["content"], "tool_calls": [call]}
            if data := message.get("provider_data"):
                own = list_own_calls(message, data["provider"])
                part["provider_data"] = {**data, "blocks": [] if number else data["blocks"], "calls": [own[number]]}
            separate += [part, results[call["id"]]] if call["id"] in results else [part]
    return separate


def _bridge_results(messages: Iterable[Message]) -> list[Message]:
    """Put an assistant's message between a tool's result and a user's message."""
    bridged: list[Message] = []
    for message in messages:
        if message["role"] == "user" and bridged and bridged[-1]["role"] == "tool":
            bridged.append({"role": "assistant", "content": BRIDGE})
        bridged.append(message)
    return bridged


def _merge_neighbours(messages: Iterable[Message]) -> list[Message]:
    """Join neighbours of one role, except for tool results. No results follow a first one of two assistants'."""
    joined: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        neighbours = list(group)
        if role == "tool" or len(neighbours) == 1:
            joined += neighbours
        else:
            content = join_contents((message["content"] for message in neighbours), _SEPARATOR)
            joined.append({**neighbours[-1], "content": content})
    return joined


class EncodedMessage(NamedTuple):
    """A message as blocks of a format.

    Attributes:
        role: The role of the message, which is not the system's.
        blocks: The blocks; empty: the message has no text, and is left out.
        place: The place of a tool's result among those of its turn; results of one place stay in their order.
    """

    role: str
    blocks: list[dict[str, Any]]
    place: int = 0


class Turn(NamedTuple):
    """A turn of a request: who says it, and its blocks."""

    role: Literal["user", "assistant"]
    blocks: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a request.

    Attributes:
        turns: The turns, of a user and a model in turn.
        merged: Messages that stand in the turn of another one; the results of tools together are one message.
        added: Turns that the context does not have.
        dropped: Messages without any text, which are left out.
    """

    turns: list[Turn]
    merged: int
    added: int
    dropped: int


def group_turns(
    messages: Sequence[EncodedMessage], make_text: Callable[[str], dict[str, Any]], *, goes_on: bool = False
) -> Turns:
    """Group messages into turns of alternating roles, a user's first and last; tool results come first in a turn.

    `make_text` makes a block of a text. `goes_on`: the model goes on with its last turn, so that none of a user's
    follows it.
    """
    shown = [message for message in messages if message.blocks]
    turns: list[Turn] = []
    merged = 0
    for is_assistant, group in groupby(shown, key=lambda message: message.role == "assistant"):
        members = sorted(group, key=lambda message: (message.role != "tool", message.place))
        merged += len(members) - max(sum(message.role == "tool" for message in members), 1)
        blocks = [block for message in members for block in message.blocks]
        turns.append(Turn("assistant" if is_assistant else "user", blocks))
    before = not turns or turns[0].role == "assistant"
    if before:
        turns.insert(0, Turn("user", [make_text(OMITTED)]))
    after = turns[-1].role == "assistant" and not goes_on
    if after:
        turns.append(Turn("user", [make_text(CONTINUE)]))
    return Turns(turns, merged, before + after, len(messages) - len(shown))


def list_system_texts(messages: Iterable[Message]) -> tuple[list[str], int]:
    """List the texts of the system's messages, and count those that are blank."""
    texts = [get_text(message["content"]) for message in messages if message["role"] == "system"]
    shown = list(filter(str.strip, texts))
    return shown, len(texts) - len(shown)


def iterate_open_turn(messages: Sequence[Message]) -> Iterator[Message]:
    """Iterate over the messages after the newest user's message, the newest first."""
    for message in reversed(messages):
        if message["role"] == "user":
            return
        yield message


def get_own_data(message: Message, provider: str) -> ProviderData | None:
    """Return what goes back to a provider with a message; None: nothing, or it is another provider's."""
    data = message.get("provider_data")
    return data if data is not None and data["provider"] == provider else None


def list_own_calls(message: Message, provider: str) -> list[dict[str, Any]]:
    """List what goes back to a provider with each tool call of a message; an empty object where there is nothing."""
    data = get_own_data(message, provider)
    calls = list_call_ids(message)
    own = (data.get("calls") or []) if data else []
    # Of another number, they belong to other calls.
    return list(own) if len(own) == len(calls) else [{} for _ in calls]


def choose_call_ids(messages: Sequence[Message], provider: str, model: str, dialect: Dialect) -> list[list[str]]:
    """Choose the ids of tool calls in a request, for each message: of its calls, or of the one that it answers.

    A provider gets its own id back; of several calls with the same one, the first call has it, so that a request
    begins as the one before it did. Other ids are Clew's, which are unique in a thread, or a caller's. One that the
    dialect refuses, or that stands there twice, is replaced by one made from it.
    """
    own_ids = [_list_own_ids(message, provider, model, dialect) for message in messages]
    used = {own_id for ids in own_ids for own_id in ids if own_id}
    own = set(used)
    made = _Ids(dialect, used)
    current: dict[str, str] = {}
    chosen: list[list[str]] = []
    number = 0
    for message, ids in zip(messages, own_ids, strict=True):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id", "")
            chosen.append([current.get(call_id) or made.make(call_id, message.get("name", ""), number)])
            continue
        row = []
        for call, own_id in zip(message.get("tool_calls", ()), ids, strict=True):
            call_id = call["id"]
            current[call_id] = own_id if own_id in own else made.make(call_id, call["name"], number)
            number += 1
            own.discard(own_id)
            row.append(current[call_id])
        chosen.append(row)
    return chosen


def _list_own_ids(message: Message, provider: str, model: str, dialect: Dialect) -> list[str]:
    """List the provider's ids of a message's calls, empty where it has none or would not take it back."""
    if not message.get("tool_calls"):
        return []
    ids = [str(own.get("id") or "") for own in list_own_calls(message, provider)]
    data = get_own_data(message, provider)
    is_same = data is not None and data.get("model", model) == model
    return [own_id if is_same or dialect.ids.fullmatch(own_id) else "" for own_id in ids]


class _Ids:
    """Makes ids that the dialect accepts, each another one."""

    def __init__(self, dialect: Dialect, used: set[str]) -> None:
        self._dialect = dialect
        self._used = used
        self._numbers: Counter[str] = Counter()

    def make(self, call_id: str, name: str, number: int) -> str:
        """Make an id of another one: the id itself where that is possible.

        Where ids are named, it is made of the tool's name and of the call's number in the request.
        """
        if self._dialect.named_ids:
            return self._make_named(name, number)
        candidate = call_id if not self._numbers[call_id] else ""
        while candidate in self._used or not self._dialect.ids.fullmatch(candidate):
            turn = self._numbers[call_id]
            candidate = sha256(f"{turn} {call_id}".encode()).hexdigest()[:_SHORT_ID_CHARACTERS]
            self._numbers[call_id] += 1
        self._used.add(candidate)
        return candidate

    def _make_named(self, name: str, number: int) -> str:
        named = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARACTERS] or "unnamed"
        while (candidate := f"functions.{named}:{number}") in self._used:
            number += 1
        self._used.add(candidate)
        return candidate
