"""Type checkers find misspelled keyword arguments.

mypy and pyright read this file: a missing error makes its `ignore` unused, which fails the check.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_type, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from clew import Agent, Clew, Session, tool
from clew.contract import ConfigureInput, EntriesQuery, MessageInput, RunSettings, SessionConfig, SubmitInput
from clew.contract.payloads import ConfigPayload
from clew.session import keywords
from clew.tools import external_tool


async def misspell(session: Session, clew: Clew) -> None:
    """Calls with mistakes. Only for the type checkers, never called."""
    await session.ask("hello", answer=3)  # type: ignore[call-overload]
    await session.ask("hello", modle="openai:gpt-4o")  # type: ignore[call-overload]
    await session.message("hello", max_iteration=3)  # type: ignore[call-overload]
    await session.steer("shorter", att="step")  # type: ignore[call-arg]
    await session.steer("shorter", at="now")  # type: ignore[arg-type]
    await session.inject("done", sauce="ci")  # type: ignore[call-arg]
    await session.configure(modle="openai:gpt-4o")  # type: ignore[call-arg]
    await session.configure(on_busy="wait")  # type: ignore[arg-type]
    await session.entries(knd="run")  # type: ignore[call-arg]
    session.read(request="r-1")  # type: ignore[call-arg]
    clew.read_thread("s", form_seq=3)  # type: ignore[call-arg]
    await Clew.connect(task_que="clew")  # type: ignore[call-arg]
    await clew.open("s", modle="openai:gpt-4o")  # type: ignore[call-arg]
    await clew.open("s", pin="yes")  # type: ignore[arg-type]
    tool(retrys=3)  # type: ignore[call-overload]


class Answer(BaseModel):
    """An answer's form."""

    city: str


@dataclass
class Point:
    """Another form."""

    x: int


class Row(TypedDict):
    """Another form."""

    x: int


async def infer(session: Session) -> None:
    """The type of an answer is the one that was asked for. Only for the type checkers, never called."""
    assert_type(await session.ask("?"), str)
    assert_type(await session.ask("?", answer=None), str)
    assert_type(await session.ask("?", answer=Answer), Answer)
    assert_type(await session.ask("?", answer=list[int]), list[int])
    assert_type(await session.ask("?", answer=int | str), int | str)
    assert_type(await session.ask("?", answer=list[Row] | None), list[Row] | None)
    assert_type(await session.ask("?", answer=Point), Point)
    assert_type(await session.ask("?", answer=Literal["yes", "no"]), Literal["yes", "no"])
    request = await session.message("?", answer=dict[str, Answer])
    assert_type((await request.result()).value, dict[str, Answer])
    assert_type(await request.answer(), dict[str, Answer])
    assert_type(await session.request("r-1", answer=list[int]).answer(), list[int])
    assert_type(await session.request("r-1").answer(), str)


async def spell(session: Session, clew: Clew) -> None:
    """Calls as in docs/client.md. Only for the type checkers, never called."""
    text: str = await session.ask("hello", model="openai:gpt-4o", max_iterations=3)
    answer: Answer = await session.ask(text, answer=Answer, on_busy="queue")
    await session.steer(answer.city, at="step", on_failure="drop")
    await session.configure(model="openai:gpt-4o", tools=["look"], system_prompt="Be brief.")
    await session.entries(kind="run", request_id="r-1", from_seq=3, limit=5)
    clew.read_thread("s", newest=5, kind="ai_message")
    await clew.open("s", model="openai:gpt-4o", idle_timeout_seconds=60, on_busy="queue")
    external_tool("ask", "Ask.", {"type": "object"}, timeout_seconds=60, requires_approval="round")


@pytest.mark.parametrize(
    ("options", "model", "others"),
    [
        (keywords.MessageOptions, MessageInput, {"content"}),
        (keywords.InputOptions, SubmitInput, {"content", "kind"}),
        (keywords.ConfigChanges, ConfigureInput, set()),
        (keywords.SessionOptions, SessionConfig, set()),
        (keywords.EntryFilters, EntriesQuery, {"from_seq", "limit"}),
    ],
)
def test_keyword_arguments_are_those_of_the_contract(options: type, model: type[BaseModel], others: set[str]) -> None:
    """Each keyword has the name of its field in the contract, and takes what the field takes. None is missing."""
    hints, declared = get_type_hints(options), get_type_hints(model)
    assert hints.keys() == model.model_fields.keys() - others
    assert not {name: hint for name, hint in hints.items() if not list_forms(hint) >= list_forms(declared[name])}


def test_an_agent_has_the_fields_of_a_configuration() -> None:
    """All but those that only a session has, each in the forms of `Clew.open`."""
    hints = get_type_hints(Agent)
    fields = {field.name for field in dataclasses.fields(Agent)} - {"name", "version"}
    assert fields == SessionConfig.model_fields.keys() - {
        "agent",
        "pin",
        "strategy",
        "encoding",
        "external_tools",
    }
    declared = get_type_hints(SessionConfig)
    assert not {name for name in fields if not list_forms(hints[name]) >= list_forms(declared[name]) - {"None"}}


def test_an_entry_holds_the_whole_configuration() -> None:
    """A field that its type lacks would be left out without a word."""
    assert {field.name for field in dataclasses.fields(ConfigPayload)} >= SessionConfig.model_fields.keys()


def test_settings_of_a_run_are_those_of_a_message() -> None:
    """They mean the same, within the same bounds, whether a message, a result or a decision brings them."""
    settings = {name: field for name, field in RunSettings.model_fields.items() if name != "agent"}
    assert {name: repr(field) for name, field in settings.items()} == {
        name: repr(MessageInput.model_fields[name]) for name in settings
    }


def list_forms(hint: Any) -> set[str]:
    """List the forms of a value that a type takes: `str`, `list of str`, the names of classes, texts of choices."""
    arguments = get_args(hint)
    match get_origin(hint):
        case typing.Union | types.UnionType:
            return {form for each in arguments for form in list_forms(each)}
        case typing.Annotated:
            return list_forms(arguments[0])
        case typing.Literal:
            return set(map(repr, arguments))
        case collections.abc.Sequence | builtins.tuple | builtins.list:
            return {f"list of {form}" for form in list_forms(arguments[0])}
        case collections.abc.Mapping | builtins.dict:
            return {"mapping"}
    return {"None" if hint is type(None) else getattr(hint, "__name__", str(hint))}
