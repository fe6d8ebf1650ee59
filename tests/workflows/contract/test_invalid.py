"""What is wrong with an input, in words: at every door the same ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from clew.contract import ContextOperation, ContextPolicy, MessageInput, SessionConfig
from clew.serve.service_settings import ServeSettings
from clew_workflows.contract.config import ConfigureInput
from clew_workflows.contract.content import Part
from clew_workflows.contract.invalid import Form, describe_problems, list_fields
from clew_workflows.contract.validation import Explained, translate_validation_error
from tests.test_architecture import SOURCES

POLICY_FIELDS = ", ".join(ContextPolicy.model_fields)


def refuse(kind: Any, value: Any) -> str:
    """What is told of a value that does not have a type."""
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    return describe_problems(raised.value, kind)


def list_subclasses(kind: Any) -> Iterator[type[BaseModel]]:
    """List the models that derive from one, of Clew's own packages."""
    subclasses: list[type[BaseModel]] = kind.__subclasses__()
    for each in subclasses:
        if each.__module__.startswith("clew"):
            yield each
        yield from list_subclasses(each)


def list_patterns() -> Iterator[str]:
    """List where a type of the sources has a regular expression without words."""
    for folder in SOURCES.values():
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                name = getattr(getattr(node, "func", None), "id", None)
                if name not in ("Field", "StringConstraints", "Query", "Path", "Header"):
                    continue
                assert isinstance(node, ast.Call)
                if any(keyword.arg == "pattern" for keyword in node.keywords):
                    yield f"{file}:{node.lineno}"


@pytest.mark.slow
def test_no_refusal_shows_a_regular_expression() -> None:
    """Each form of a text has words: no type has a pattern without them."""
    assert list(list_patterns()) == []


def test_a_text_of_another_form_is_refused_in_words() -> None:
    """They repeat neither the pattern nor the value, and the JSON Schema has the pattern."""
    words = refuse(SessionConfig, {"model": "gpt-4o"})
    assert words == "model: a model is written as provider:model, for example openai:gpt-4o"
    model = SessionConfig.model_json_schema()["properties"]["model"]["anyOf"][0]
    assert Form(model["pattern"], "").matches("openai:gpt-4o")
    assert "origin" in refuse(ServeSettings, {"cors_origins": ("https://a/b",)})


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gpt-4o"},
        {"model": "a:b", "fallbacks": ("a:b", "gpt-4o")},
        {"model": "a:b", "context_policy": {"summarization_model": "gpt-4o"}},
    ],
)
def test_every_field_that_names_a_model_has_the_same_words(fields: dict[str, Any]) -> None:
    """The model of a session, its fallbacks, and the model that writes summaries."""
    assert "provider:model, for example openai:gpt-4o" in refuse(SessionConfig, fields)


@pytest.mark.parametrize("kind", sorted(set(list_subclasses(Explained)), key=str))
def test_an_unknown_field_of_every_input_is_told_with_the_fields_there_are(kind: type[BaseModel]) -> None:
    """In Python and in JSON, in the same words."""
    with pytest.raises(ValidationError) as made:
        kind(no_such_field=1)
    with pytest.raises(ValidationError) as read:
        kind.model_validate_json('{"no_such_field": 1}')
    words = f"the fields are {', '.join(kind.model_fields)}" if kind.model_fields else ""
    told = [problem["msg"] for problem in made.value.errors() if problem["loc"] == ("no_such_field",)]
    assert words in told[0]
    assert f"no_such_field: {told[0]}" in list_words(read.value, kind)


def list_words(error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """All problems that the refusal of an input may name."""
    return [describe_problems(one, kind) for one in split(error)]


def split(error: ValidationError) -> Iterator[ValidationError]:
    """Split an error into errors of one problem each."""
    for problem in error.errors():
        if problem["type"] == "extra_forbidden":
            line: Any = {"type": problem["type"], "loc": problem["loc"], "input": problem["input"]}
            yield ValidationError.from_exception_data(error.title, [line])


@pytest.mark.parametrize(
    ("kind", "value", "path", "nearest"),
    [
        (MessageInput, {"content": "x", "contxt_policy": {}}, "contxt_policy", "context_policy"),
        (ConfigureInput, {"modle": "a:b"}, "modle", "model"),
        (ConfigureInput, {"model_options": {"temprature": 1}}, "model_options.temprature", "temperature"),
        (SessionConfig, {"model": "a:b", "limits": {"max_cost": 1}}, "limits.max_cost", "max_cost_usd"),
        (
            SessionConfig,
            {"model": "a:b", "context_policy": {"clear_tool_results": {"keep": 1, "mintokens": 1}}},
            "context_policy.clear_tool_results.mintokens",
            "min_tokens",
        ),
        (list[Part], [{"type": "text", "txt": "x", "text": "x"}], "0.text.txt", "text"),
        (
            ContextOperation,
            {"op_id": "o", "operation": {"type": "pin", "seqs": (1,), "seq": 1}},
            "operation.pin.seq",
            "seqs",
        ),
    ],
)
def test_a_misspelt_field_is_told_with_the_nearest_one(kind: Any, value: Any, path: str, nearest: str) -> None:
    """Also within a field, an item of a list and a member of a union."""
    assert f"{path}: there is no such field (did you mean {nearest}?)" in refuse(kind, value)


def test_the_fields_are_those_of_the_object_that_is_wrong() -> None:
    """A policy within a configuration has the fields of a policy, and what is no object has none."""
    assert list_fields(SessionConfig, ("context_policy",)) == list(ContextPolicy.model_fields)
    assert list_fields(SessionConfig, ("metadata",)) == []
    with pytest.raises(ValidationError) as raised:
        SessionConfig.model_validate_json('{"model": "a:b", "context_policy": {"max_tokens": 5}}')
    message = translate_validation_error(SessionConfig, raised.value).message
    assert message.endswith(f"the fields are {POLICY_FIELDS}")
    assert refuse(SessionConfig, {"model": "a:b", "zzz": 1}).startswith("zzz: there is no such field; ")


def test_an_object_of_the_contract_is_made_as_before() -> None:
    """The words change nothing for values that are valid."""
    policy = ContextPolicy(keep_last_turns=4)
    assert policy.model_fields_set == {"keep_last_turns"}
    assert SessionConfig(model="a:b", context_policy=policy).context_policy is policy
