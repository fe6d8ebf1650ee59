"""Tools of any session become what a dialect accepts: without another meaning, or visibly not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.contract import READ_RESULT
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.dialects import ANTHROPIC, DIALECTS, STRICT, ToolLimits
from clew_activities.providers.fit_tools import SHORTENED, declare_called_tools, fit_name, fit_tools
from clew_activities.providers.openai.chat import OpenAI
from clew_workflows.contract.messages import ToolSpec
from clew_workflows.contract.names import rewrite_name
from clew_workflows.contract.schemas import check_schema
from clew_workflows.protocol import RequestedTool
from tests.support.provider_server import ADD, HELLO, make_call, make_request, make_result

ALL = {dialect.name: dialect.tools for dialect in (*DIALECTS.values(), ANTHROPIC)}


NEXT: dict[str, Any] = {"allOf": [{"$ref": "#/$defs/item"}], "type": "object"}


def make_tool(parameters: dict[str, Any], name: str = "find", description: str = "Finds.") -> ToolSpec:
    return {"name": name, "description": description, "parameters": parameters}


def fit(parameters: dict[str, Any], limits: ToolLimits = STRICT.tools) -> dict[str, Any]:
    return fit_tools([make_tool(parameters)], limits).specs[0]["parameters"]


def fit_hash(name: str) -> str:
    """Compute the hash that a changed name ends in."""
    return sha256(name.encode()).hexdigest()[:8]


def list_subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """List the subschemas that a strict server looks at. It shares no code with the fitting."""
    yield schema
    for keyword in ("properties", "$defs"):
        for inner in schema.get(keyword, {}).values():
            yield from list_subschemas(inner)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(keyword, []):
            yield from list_subschemas(inner)
    if isinstance(schema.get("items"), dict):
        yield from list_subschemas(schema["items"])


def test_an_ordinary_tool_stays_as_it_is() -> None:
    for limits in ALL.values():
        fitted = fit_tools([ADD], limits)
        assert (fitted.specs, fitted.changes, fitted.left_out) == ([ADD], {}, {})


@pytest.mark.parametrize("limits", ALL.values(), ids=ALL)
def test_a_union_at_the_root_is_wrapped_there_and_back(limits: ToolLimits) -> None:
    union = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    }
    fitted = fit_tools([make_tool(union)], limits)
    schema = fitted.specs[0]["parameters"]
    assert schema["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "enum", "not"} & schema.keys()
    assert fitted.encode_call("find", {"id": "7"}, limits) == ("find", {"value": {"id": "7"}})
    for sent in ({"value": {"id": "7"}}, {"id": "7"}, {"value": '{"id": "7"}'}):
        assert fitted.decode_call(RequestedTool(name="find", arguments=sent)).arguments == {"id": "7"}
    assert "find" in fitted.changes


@pytest.mark.parametrize("limits", ALL.values(), ids=ALL)
def test_properties_and_items_are_completed(limits: ToolLimits) -> None:
    assert fit({"type": "object"}, limits)["properties"] == {}
    inner = fit({"type": "object", "properties": {"a": {"type": "object"}, "b": {"type": "array"}}}, limits)
    assert inner["properties"]["a"]["properties"] == {}
    assert "items" in inner["properties"]["b"]
    assert "b" in fit({"type": "object", "properties": {}, "required": ["b"]}, limits)["properties"]


@pytest.mark.parametrize("limits", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    "array",
    [
        {"type": ["array", "null"]},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        {"type": "array", "items": [{"type": "integer"}]},
        {"anyOf": [{"type": "array"}, {"type": "null"}]},
    ],
)
def test_every_array_says_what_its_items_are(array: dict[str, Any], limits: ToolLimits) -> None:
    """OpenAI answers "array schema missing items", also for a tuple and for an array that may be null."""
    fitted = fit({"type": "object", "properties": {"a": array}}, limits)["properties"]["a"]
    for schema in fitted.get("anyOf", [fitted]):
        assert "array" not in schema["type"] or "items" in schema


def test_a_long_description_is_shortened_with_a_note() -> None:
    tool = make_tool({"type": "object", "properties": {}}, description="x" * 5000)
    fitted = fit_tools([tool], DIALECTS["openai"].tools)
    description = fitted.specs[0]["description"]
    assert len(description) == 1024
    assert description.endswith(SHORTENED)
    assert fitted.changes == {"find": "description shortened"}


def test_of_too_many_tools_the_first_are_kept_and_the_reader_of_results() -> None:
    tools = [make_tool({"type": "object", "properties": {}}, f"tool_{number}") for number in range(150)]
    fitted = fit_tools([*tools, make_tool({"type": "object", "properties": {}}, READ_RESULT)], STRICT.tools)
    names = [spec["name"] for spec in fitted.specs]
    assert (len(names), names[0], names[-1]) == (128, "tool_0", READ_RESULT)
    assert set(fitted.left_out) == {f"tool_{number}" for number in range(127, 150)}


@pytest.mark.parametrize("limits", [DIALECTS["gemini"].tools, STRICT.tools, ANTHROPIC.tools])
def test_names_of_properties_are_mapped_there_and_back(limits: ToolLimits) -> None:
    schema = {"type": "object", "properties": {"$top": {"type": "integer"}, "filter[name]": {"type": "string"}}}
    fitted = fit_tools([make_tool({**schema, "required": ["$top"]})], limits)
    sent = fitted.specs[0]["parameters"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in sent["properties"])
    assert set(sent["required"]) <= sent["properties"].keys()
    arguments = {"$top": 3, "filter[name]": "x"}
    name, encoded = fitted.encode_call("find", arguments, limits)
    assert encoded.keys() == sent["properties"].keys()
    assert fitted.decode_call(RequestedTool(name=name, arguments=encoded)).arguments == arguments


def test_a_name_that_a_dialect_refuses_is_mapped_there_and_back() -> None:
    fitted = fit_tools([make_tool({"type": "object", "properties": {}}, "1st-tool")], DIALECTS["gemini"].tools)
    sent = fitted.specs[0]["name"]
    assert sent.startswith("_1st-tool_")
    assert fitted.encode_call("1st-tool", {}, DIALECTS["gemini"].tools) == (sent, {})
    assert fitted.decode_call(RequestedTool(name=sent)).name == "1st-tool"


@pytest.mark.parametrize(("made_up", "sent"), [("my tool!", "my_tool__"), ("", "unnamed"), ("x" * 100, "x" * 55)])
def test_a_made_up_name_becomes_a_valid_one(made_up: str, sent: str) -> None:
    assert fit_name(made_up, DIALECTS["openai"].tools).startswith(sent)
    assert STRICT.tools.name.fullmatch(fit_name(made_up, STRICT.tools))


def test_what_a_schema_cannot_say_stands_in_the_description() -> None:
    fitted = fit({"type": "object", "properties": {"a": {"type": "string", "pattern": "^x", "description": "An a."}}})
    assert "pattern" not in fitted["properties"]["a"]
    assert fitted["properties"]["a"]["description"] == 'An a.\n{pattern: "^x"}'


def test_references_are_replaced_by_what_they_refer_to() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "name": {"type": "string"}}}
    fitted = fit({"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": tree}})
    assert "$ref" not in str(fitted)
    assert fitted["properties"]["root"]["properties"]["name"] == {"type": "string"}
    kept = fit({"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": tree}},
               DIALECTS["openai"].tools)  # fmt: skip
    assert kept["$defs"]["node"]["properties"]["next"] == {"$ref": "#/$defs/node"}


def test_a_reference_leads_where_its_escapes_say() -> None:
    names = {"a b": "#/$defs/a%20b", "List[int]": "#/$defs/List%5Bint%5D", "x/y": "#/$defs/x~1y", "": "#/$defs/"}
    properties = {f"p{number}": {"$ref": reference} for number, reference in enumerate(names.values())}
    schema = {
        "type": "object",
        "properties": properties,
        "$defs": {name: {"type": "integer", "title": name} for name in names},
    }
    fitted = fit(schema)["properties"]
    assert [fitted[name]["title"] for name in properties] == list(names)


def test_a_tool_that_cannot_be_fitted_is_left_out_with_the_reason_and_the_others_stay() -> None:
    bad = make_tool({"type": "object", "properties": {"a": {"$ref": "https://example.org/schema"}}}, "bad")
    fitted = fit_tools([bad, ADD], STRICT.tools)
    assert fitted.specs == [ADD]
    assert "https://example.org/schema" in fitted.left_out["bad"]


def test_a_schema_that_multiplies_without_references_is_left_out() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 20):
        pair = {"a": {"$ref": f"#/$defs/d{number - 1}"}, "b": {"$ref": f"#/$defs/d{number - 1}"}}
        definitions[f"d{number}"] = {"type": "object", "properties": pair}
    bomb = make_tool({"type": "object", "properties": {"x": {"$ref": "#/$defs/d19"}}, "$defs": definitions})
    assert set(fit_tools([bomb], STRICT.tools).left_out) == {"find"}


def test_a_schema_that_is_deep_without_references_is_left_out() -> None:
    """It ended the model call with the interpreter's error."""
    names = [f"d{number}" for number in range(1000)]
    definitions: dict[str, Any] = {names[-1]: {"type": "string"}}
    for name, following in pairwise(names):
        definitions[name] = {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{following}"}}}
    deep = make_tool({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    for limits in ALL.values():
        fitted = fit_tools([deep, ADD], limits)
        assert set(fitted.left_out) == (set() if limits.references else {"find"})
        assert fitted.specs[-1] == ADD


def test_a_long_chain_of_references_is_followed_to_its_end() -> None:
    """It needs no stack of the interpreter."""
    names = [f"d{number}" for number in range(1200)]
    definitions: dict[str, Any] = {names[-1]: {"type": "string"}}
    for number, (name, following) in enumerate(pairwise(names)):
        reference = {"$ref": f"#/$defs/{following}"}
        definitions[name] = reference if number % 30 else {"type": "object", "properties": {"a": reference}}
    deep = make_tool({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    check_schema(deep["parameters"])
    fitted = fit_tools([deep, ADD], STRICT.tools)
    assert not fitted.left_out
    assert "$ref" not in str(fitted.specs)


def test_unions_that_multiply_are_left_out_at_once() -> None:
    """Each level doubles the branches, which would be two thousand million."""
    union: dict[str, Any] = {"type": "string"}
    for _ in range(31):
        union = {"anyOf": [{"minLength": 1}, {"minLength": 2}], "oneOf": [union]}
    bomb = make_tool({"type": "object", "properties": {"x": union}})
    for limits in ALL.values():
        assert set(fit_tools([bomb, ADD], limits).left_out) <= {"find"}


@pytest.mark.parametrize(
    "large", [{"enum": list(range(10_000))}, {"type": "string", "description": "x" * 60_000}, {"pattern": "x" * 900}]
)
def test_a_text_that_references_multiply_leaves_the_tool_out(large: dict[str, Any]) -> None:
    """A schema of 128 KB would become one of 100 MB."""
    properties = {f"p{number}": {"$ref": "#/$defs/large"} for number in range(1000)}
    schema = {"type": "object", "properties": properties, "$defs": {"large": large}}
    fitted = fit_tools([make_tool(schema), ADD], STRICT.tools)
    assert (set(fitted.left_out), fitted.specs) == ({"find"}, [ADD])


@pytest.mark.parametrize("limits", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "object", "properties": ["a"]},
        {"type": "object", "properties": {}, "required": "a"},
        {"type": "object", "properties": {"a": {"type": "object", "required": [{}]}}},
        {"type": "object", "properties": {"a": {"enum": "x"}}},
        {"type": "object", "properties": {"a": {"anyOf": []}}},
        {"type": "object", "properties": {"a": {"description": ["x"]}}},
    ],
)
def test_a_schema_that_is_not_valid_leaves_its_tool_out_and_no_other(
    wrong: dict[str, Any], limits: ToolLimits
) -> None:
    """Providers refuse the whole request for it, and so would the encoding."""
    fitted = fit_tools([make_tool(wrong), ADD], limits)
    assert (set(fitted.left_out), fitted.specs) == ({"find"}, [ADD])


@pytest.mark.parametrize("limits", ALL.values(), ids=ALL)
def test_booleans_of_older_drafts_are_written_as_the_newest_one_does(limits: ToolLimits) -> None:
    size = {"type": "integer", "required": True, "minimum": 0, "exclusiveMinimum": True}
    fitted = fit({"type": "object", "properties": {"size": size}}, limits)["properties"]["size"]
    assert "required" not in fitted
    assert fitted.get("exclusiveMinimum", 0) == 0
    assert "minimum" not in fitted
    assert "exclusiveMinimum" in fitted or "exclusiveMinimum: 0" in fitted["description"]


def test_gemini_gets_the_types_that_it_knows() -> None:
    fitted = fit(
        {
            "type": "object",
            "properties": {
                "maybe": {"type": ["string", "null"]},
                "size": {"enum": [1, 2]},
                "only": {"const": "x"},
                "one": {"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "Which."},
                "any": {},
                "flag": True,
            },
            "additionalProperties": False,
        },
        DIALECTS["gemini"].tools,
    )
    properties = fitted["properties"]
    assert properties["maybe"] == {"type": "string", "nullable": True}
    assert properties["size"]["type"] == "integer"
    assert "1, 2" in properties["size"]["description"]
    assert properties["only"] == {"enum": ["x"], "type": "string"}
    assert properties["one"].keys() == {"anyOf"}
    assert properties["any"]["type"] == properties["flag"]["type"] == "string"
    assert "additionalProperties" not in fitted


@pytest.mark.parametrize("name", ["gemini", "kimi", "strict"])
def test_what_is_said_of_a_union_is_said_of_each_branch(name: str) -> None:
    union = {
        "description": "How far.",
        "multipleOf": 5,
        "anyOf": [{"type": "integer", "description": "In metres."}, {"type": "string"}],
    }
    branches = fit({"type": "object", "properties": {"x": union}}, ALL[name])["properties"]["x"]["anyOf"]
    assert "In metres." in branches[0]["description"]
    for branch in branches:
        assert "How far." in branch["description"]
    assert "multipleOf: 5" in branches[0]["description"]


@pytest.mark.parametrize("name", ["gemini", "kimi", "strict"])
def test_schemas_that_all_hold_are_one_schema(name: str) -> None:
    """Older generators write a reference with a description so. It became a text."""
    definitions = {
        "base": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        "item": {
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"size": {"type": "integer"}, "next": NEXT}}],
            "description": "An item.",
        },
    }
    schema = {
        "type": "object",
        "properties": {"item": {"allOf": [{"$ref": "#/$defs/item"}], "description": "Which."}},
        "$defs": definitions,
    }
    item = fit(schema, ALL[name])["properties"]["item"]
    assert (item["type"], item["description"], item["required"]) == ("object", "Which.", ["id"])
    assert item["properties"]["size"] == {"type": "integer"}
    assert item["properties"]["next"]["type"] == "object"
    assert "$ref" not in item["properties"]["next"]


@pytest.mark.parametrize("name", ["gemini", "kimi", "strict"])
def test_schemas_that_contradict_each_other_stand_in_the_description(name: str) -> None:
    both = {"type": "string", "allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}
    fitted = fit({"type": "object", "properties": {"x": both}}, ALL[name])["properties"]["x"]
    assert fitted["enum"] == ["a", "b"]
    assert '["b", "c"]' in fitted["description"]


@pytest.mark.parametrize("name", ["gemini", "kimi", "strict"])
def test_a_text_has_no_keywords_of_objects(name: str) -> None:
    """Gemini answers "only allowed for OBJECT type"; some servers of tools write such schemas."""
    wrong = {"type": "string", "properties": {"a": {"type": "string"}}, "required": ["a"], "items": {}, "minimum": 1}
    assert fit({"type": "object", "properties": {"x": wrong}}, ALL[name])["properties"]["x"] == {"type": "string"}


def test_gemini_gets_the_values_of_a_text_that_may_be_null() -> None:
    maybe = {"type": ["string", "null"], "enum": ["a", "b", None]}
    fitted = fit({"type": "object", "properties": {"x": maybe}}, ALL["gemini"])["properties"]["x"]
    assert fitted == {"type": "string", "nullable": True, "enum": ["a", "b"]}


_names = st.sampled_from(["a", "b", "$top", "x y"])
_leaves = st.sampled_from(
    [
        {"type": "string"},
        {"type": ["integer", "null"]},
        {"enum": ["a", 1, None]},
        {"const": 3},
        {"type": "array"},
        {"type": "object"},
        {},
        True,
        {"type": "string", "format": "uri", "pattern": "^x$"},
    ]
)
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.dictionaries(_names, inner, max_size=3).map(lambda some: {"type": "object", "properties": some}),
        inner.map(lambda some: {"type": "array", "items": some}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some, "description": "either"}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"oneOf": some}),
    ),
    max_leaves=8,
)


@given(properties=st.dictionaries(_names, _schemas, max_size=4), root=st.sampled_from([{}, {"anyOf": [{}]}]))
def test_whatever_a_tool_has_is_fitted(properties: dict[str, Any], root: dict[str, Any]) -> None:
    for limits in ALL.values():
        tool = make_tool({"type": "object", "properties": properties, **root})
        fitted = fit_tools([tool], limits)
        if fitted.left_out:
            continue
        for subschema in list_subschemas(fitted.specs[0]["parameters"]):
            assert all(map(limits.allows, subschema))
            assert limits.type_lists or not isinstance(subschema.get("type"), list)
            assert not limits.typed or subschema.keys() & {"type", "anyOf"}
            assert not limits.lone_unions or "anyOf" not in subschema or len(subschema) == 1
            assert subschema.get("type") != "array" or "items" in subschema
            assert limits.property_name is None or all(
                map(limits.property_name.fullmatch, subschema.get("properties", {}))
            )


def test_a_call_by_the_sessions_own_name_is_read_too() -> None:
    """The model has read the name in a prompt."""
    union = {"type": "object", "properties": {"$top": {}}, "anyOf": [{}]}
    fitted = fit_tools([make_tool(union, "crm.find")], DIALECTS["gemini"].tools)
    name, sent = fitted.encode_call("crm.find", {"$top": 1}, DIALECTS["gemini"].tools)
    for called in (name, "crm.find"):
        call = fitted.decode_call(RequestedTool(name=called, arguments=sent))
        assert (call.name, call.arguments) == ("crm.find", {"$top": 1})


ANY_VALUES: list[Any] = [
    1,
    "a",
    "1",
    '"a"',
    "",
    " ",
    "null",
    None,
    True,
    1.5,
    [1, "x"],
    {"b": [None]},
    "{",
    '{"b": 1}',
]


@pytest.mark.parametrize("value", ANY_VALUES, ids=repr)
@pytest.mark.parametrize("name", ["gemini", "kimi", "strict", "cerebras"])
def test_a_value_of_any_type_is_a_text_there_and_itself_back(name: str, value: Any) -> None:
    """These servers have no schema of any value. The tool got the text of a JSON value instead of the value."""
    inner = {"type": "object", "properties": {"$any": {}}, "additionalProperties": {}}
    maybe = {"anyOf": [{}, {"type": "null"}]}
    properties = {"any": {}, "list": {"type": "array"}, "inner": inner, "maybe": maybe, "text": {"type": "string"}}
    for union in ({}, {"anyOf": [{"required": ["any"]}, {"required": ["list"]}]}):
        fitted = fit_tools([make_tool({"type": "object", "properties": properties, **union})], ALL[name])
        arguments = {"any": value, "list": [value, value], "inner": {"$any": value}, "maybe": value, "text": "1"}
        _, sent = fitted.encode_call("find", arguments, ALL[name])
        assert isinstance(sent.get("value", sent)["any"], str)
        back = fitted.decode_call(RequestedTool(name="find", arguments=sent)).arguments
        assert (back, repr(back)) == (arguments, repr(arguments))


@pytest.mark.parametrize("name", ["gemini", "kimi", "strict"])
def test_the_keywords_of_a_type_say_which_it_is(name: str) -> None:
    properties = {"text": {"pattern": "^[0-9]+$"}, "number": {"minimum": 1}, "list": {"minItems": 1}}
    fitted = fit_tools([make_tool({"type": "object", "properties": properties})], ALL[name])
    types = [inner["type"] for inner in fitted.specs[0]["parameters"]["properties"].values()]
    assert types == ["string", "number", "array"]
    call = fitted.decode_call(RequestedTool(name="find", arguments={"text": "12"}))
    assert call.arguments == {"text": "12"}


@pytest.mark.parametrize("name", ["gemini", "kimi", "strict"])
def test_a_text_stays_a_text_where_another_branch_or_property_has_any_type(name: str) -> None:
    branches = [{"properties": {"x": {"type": "string"}}}, {"properties": {"x": {}}}]
    others = {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {}}
    properties = {"either": {"anyOf": [{"type": "string"}, {}]}, "one": {"type": "object", "anyOf": branches}}
    fitted = fit_tools([make_tool({"type": "object", "properties": {**properties, "others": others}})], ALL[name])
    arguments = {"either": "1", "one": {"x": "1"}, "others": {"x": "1"}}
    assert fitted.decode_call(RequestedTool(name="find", arguments=arguments)).arguments == arguments
    assert fitted.encode_call("find", arguments, ALL[name])[1] == arguments


def test_a_value_of_any_type_that_is_no_json_is_the_text_that_the_model_wrote() -> None:
    fitted = fit_tools([make_tool({"type": "object", "properties": {"any": {}}})], STRICT.tools)
    for text in ("Oslo", '1, "x": 2', "NaN", "[" * 5000, 5):
        call = fitted.decode_call(RequestedTool(name="find", arguments={"any": text}))
        assert call.arguments == {"any": text}


def test_names_that_differ_in_replaced_characters_alone_stay_apart() -> None:
    names = ["a.b", "a_b", "a b", "a/b", *(f"a_b_{fit_hash(name)}" for name in ("a.b", "a_b", "a b", "a/b"))]
    fitted = fit_tools([make_tool({"type": "object", "properties": {}}, name) for name in names], STRICT.tools)
    assert len({spec["name"] for spec in fitted.specs}) == len(names)
    for name in names:
        sent, _ = fitted.encode_call(name, {}, STRICT.tools)
        assert fitted.decode_call(RequestedTool(name=sent)).name == name


def test_a_property_that_has_the_changed_name_of_another_one_is_told_from_it() -> None:
    changed = next(iter(fit({"type": "object", "properties": {"$top": {}}})["properties"]))
    for names in (("$top", changed), (changed, "$top")):
        tool = make_tool({"type": "object", "properties": {name: {"type": "string"} for name in names}})
        fitted = fit_tools([tool], STRICT.tools)
        arguments = {name: f"of {name}" for name in names}
        name, sent = fitted.encode_call("find", arguments, STRICT.tools)
        assert len(sent) == 2
        assert fitted.specs[0]["parameters"]["properties"].keys() == sent.keys()
        assert fitted.decode_call(RequestedTool(name=name, arguments=sent)).arguments == arguments


def test_tools_that_were_called_are_declared_once_under_the_name_that_the_calls_have() -> None:
    """Anthropic refuses two tools of one name."""
    calls = [make_call(name, call_id=name) for name in ("crm.find", "crm_find", "crm.find")]
    declared = [spec["name"] for spec in declare_called_tools(calls, ANTHROPIC)]
    assert declared == [fit_name("crm.find", ANTHROPIC.tools), "crm_find"]
    assert len(set(declared)) == 2


@pytest.mark.parametrize("provider", [OpenAI("x", "http://x", DIALECTS["litellm"]), Anthropic("x", "http://x")])
def test_tools_that_were_called_are_declared_also_where_those_of_the_session_are_left_out(
    provider: OpenAI | Anthropic,
) -> None:
    bad = make_tool({"type": "object", "properties": {"a": {"anyOf": []}}})
    body = provider.encode(make_request(HELLO, make_call(a=1), make_result("1"), tools=[bad])).body
    assert len(body["tools"]) == 1
    assert "none" in str(body["tool_choice"])


def test_the_limits_of_a_name_agree_with_its_pattern() -> None:
    for limits in (*ALL.values(), replace(STRICT.tools, name_characters=64)):
        assert limits.name.fullmatch("a" * limits.name_characters)
        assert not limits.name.fullmatch("a" * (limits.name_characters + 1))


# Names of tools, in every dialect.


LIMITS = {(limits.name.pattern, limits.name_characters): limits for limits in ALL.values()}
"""One of the limits for each form of names."""
PLAIN_NAMES = st.text("aA1.b_- /é", min_size=1, max_size=8).flatmap(lambda name: st.sampled_from((name, name * 20)))


@st.composite
def draw_tool_names(draw: st.DrawFn, limits: ToolLimits) -> list[str]:
    """Draw names of which some are those that others become."""
    names = draw(st.lists(PLAIN_NAMES, min_size=1, max_size=6))
    made = [fit_name(name, limits) for name in names]
    made += [fit_name(name, limits, set(made)) for name in made]
    return draw(st.lists(st.sampled_from((*names, *made)), unique=True, max_size=10))


@pytest.mark.parametrize("limits", LIMITS.values(), ids=map(str, range(len(LIMITS))))
@given(data=st.data())
def test_any_names_are_valid_distinct_and_stay_when_others_follow(limits: ToolLimits, data: st.DataObject) -> None:
    """And a call comes back as the tool that has made it, also one of a tool that is gone."""
    names = data.draw(draw_tool_names(limits))
    tools = [make_tool({"type": "object", "properties": {}}, name) for name in names]
    fitted = fit_tools(tools, limits)
    sent = [spec["name"] for spec in fitted.specs]
    assert len({*sent}) == len(names)
    assert all(limits.name.fullmatch(name) and len(name) <= limits.name_characters for name in sent)
    fewer = fit_tools(tools[: len(tools) // 2], limits)
    assert [spec["name"] for spec in fewer.specs] == sent[: len(tools) // 2]
    for name, known in zip(names, sent, strict=True):
        assert fitted.decode_call(RequestedTool(name=known)).name == name
        assert fitted.encode_call(name, {}, limits) == fewer.encode_call(name, {}, limits) == (known, {})


@given(data=st.data())
def test_any_names_of_properties_are_valid_distinct_and_come_back(data: st.DataObject) -> None:
    """Also where a property of another object has the name that one becomes."""
    limits, pattern = ANTHROPIC.tools, ANTHROPIC.tools.property_name
    assert pattern is not None
    names = data.draw(st.lists(PLAIN_NAMES, min_size=1, max_size=5))
    made = [rewrite_name(name, pattern, 64) for name in names]
    made += [rewrite_name(name, pattern, 64, set(made)) for name in made]
    some = st.lists(st.sampled_from((*names, *made)), unique=True, max_size=6)
    outer, inner = data.draw(some), data.draw(some)
    text = {"type": "string"}
    within = {"type": "object", "properties": dict.fromkeys(inner, text)}
    schema = {"type": "object", "properties": {**dict.fromkeys(outer, text), "within": within}}
    fitted = fit_tools([make_tool(schema)], limits)
    sent = fitted.specs[0]["parameters"]["properties"]
    nested = sent["within"]["properties"]
    assert (len(sent), len(nested)) == (len(outer) + 1, len(inner))
    assert all(pattern.fullmatch(name) for name in (*sent, *nested))
    arguments = {**{name: name for name in outer}, "within": {name: name for name in inner}}
    name, encoded = fitted.encode_call("find", arguments, limits)
    assert (encoded.keys(), encoded["within"].keys()) == (sent.keys(), nested.keys())
    assert fitted.decode_call(RequestedTool(name=name, arguments=encoded)).arguments == arguments
