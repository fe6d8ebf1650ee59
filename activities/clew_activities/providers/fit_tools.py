"""Makes the tools of any session acceptable to a dialect: names, descriptions, schemas and their number. Pure.

A tool is changed only so far that its meaning stays. Its schema is fitted from the root to its parts, each of them in
these steps:

1. References (`_References`): where the dialect takes none, `$ref` and `allOf` give way to what they stand for.
2. Keywords (`_REWRITINGS`): one that the dialect refuses gives way to another of the same meaning, or else moves to
   the description, where the model reads it. The session validates the arguments against the tool's own schema.
3. Names: the names of properties and of the tool that the dialect refuses are mapped there and back.
4. Completion: what JSON Schema has by default is written where the dialect wants to read it. A value of any type is
   sent as a text there, and read as JSON.

A schema whose root is a union becomes the schema of an object with the union as its only member, and calls are
unwrapped. A tool that cannot be fitted is left out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from pydantic_core import from_json, to_json

from clew_activities.providers.answer_object import MEMBER, is_object_schema, make_object_schema
from clew_activities.providers.dialects import Dialect, ToolLimits
from clew_activities.providers.sanitize import parse_object
from clew_workflows.contract.messages import Message, ToolSpec, canonicalize
from clew_workflows.contract.names import BUILT_IN_TOOLS, rewrite_name
from clew_workflows.contract.schemas import SUBSCHEMA_KEYWORDS
from clew_workflows.protocol import RequestedTool

SHORTENED = " [shortened]"
"""Follows a description of which the dialect takes only the beginning."""
MAX_SUBSCHEMAS = 5_000
"""Most subschemas of a tool after its references are replaced by what they refer to."""
MAX_LEVELS = 50
"""Most parts of a tool's schema within each other after its references are replaced by what they refer to."""
MAX_CHARACTERS = 262_144
"""Most characters of a tool's schema after its references are replaced by what they refer to."""
MAX_REMEMBERED = 64
"""Most lists of tools that are remembered as they were fitted."""

_PROPERTY_CHARACTERS = 64
"""Longest name of a property that was changed."""
_DEFINITIONS = ("$defs", "definitions")

Schema = dict[str, Any]
_Place = tuple[str | None, ...]
"""The steps to a part of a value: a property as the provider gets it, or None for items and other properties."""


class _NotFitting(Exception):
    """The tool cannot be fitted; the message says why."""


@dataclass(frozen=True)
class FittedTool:
    """A tool as a request has it.

    Attributes:
        spec: The name, the description and the schema that the provider gets.
        wrapped: The arguments are the only member of an object.
        properties: The names of properties that were changed, by the name that the provider gets.
        texts: The known parts of the arguments, and whether they are values of any type that are sent as texts;
            empty: none is.
    """

    spec: ToolSpec
    wrapped: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[_Place, bool] = field(default_factory=dict)

    def encode(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make the arguments of an earlier call as the provider knows them."""
        sent = _rename(arguments, {own: sent for sent, own in self.properties.items()})
        sent = {MEMBER: sent} if self.wrapped else sent
        changed: dict[str, Any] = _change_texts(sent, self.texts, (), _write_text)
        return changed

    def decode(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make the arguments of a call as the session knows them."""
        is_wrapped = self.wrapped and arguments.keys() == {MEMBER}
        if is_wrapped and isinstance(member := _read_text(arguments[MEMBER]), dict):
            # Models write the inner object as a text, too.
            arguments = {MEMBER: member}
        # The model may have left the wrapping out.
        place = (MEMBER,) if self.wrapped and not is_wrapped else ()
        arguments = _change_texts(arguments, self.texts, place, _read_text)
        if is_wrapped and isinstance(arguments[MEMBER], dict):
            arguments = arguments[MEMBER]
        renamed: dict[str, Any] = _rename(arguments, self.properties)
        return renamed


@dataclass(frozen=True)
class FittedTools:
    """The tools of a request.

    Attributes:
        by_name: The fitted tools, by the session's name.
        changes: How a tool was changed, by the session's name.
        left_out: Why a tool is not in the request, by the session's name.
    """

    by_name: Mapping[str, FittedTool] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools that the provider gets."""
        return [tool.spec for tool in self.by_name.values()]

    @property
    def own_names(self) -> dict[str, str]:
        """The session's names, by the names that the provider has."""
        return {tool.spec["name"]: name for name, tool in self.by_name.items()}

    def encode_call(self, name: str, arguments: dict[str, Any], limits: ToolLimits) -> tuple[str, dict[str, Any]]:
        """Make the name and the arguments of an earlier call as the provider knows them."""
        if tool := self.by_name.get(name):
            return tool.spec["name"], tool.encode(arguments)
        return fit_name(name, limits, {other.spec["name"] for other in self.by_name.values()}), arguments

    def decode_call(self, call: RequestedTool) -> RequestedTool:
        """Make a call as the session knows it."""
        # Models also call a tool by the session's name, which they have read in a prompt.
        name = self.own_names.get(call.name, call.name)
        if name not in self.by_name:
            return call
        arguments = self.by_name[name].decode(call.arguments)
        return call.model_copy(update={"name": name, "arguments": arguments})


def fit_tools(tools: Sequence[ToolSpec], limits: ToolLimits) -> FittedTools:
    """Fit tools into the limits of a dialect. Of too many, the first are kept, and the reader of large results."""
    return _fit_serialized(to_json(tools), limits)


@lru_cache(maxsize=MAX_REMEMBERED)
def _fit_serialized(serialized: bytes, limits: ToolLimits) -> FittedTools:
    """Fit tools once: all calls of a session have them, and each needs them for its request and its reply."""
    tools: list[ToolSpec] = from_json(serialized)
    by_name: dict[str, FittedTool] = {}
    changes: dict[str, str] = {}
    left_out: dict[str, str] = {}
    used: set[str] = set()
    for number, tool in enumerate(sorted(tools, key=lambda tool: tool["name"] not in BUILT_IN_TOOLS)):
        name = tool["name"]
        if number >= limits.count:
            left_out[name] = f"the provider takes at most {limits.count} tools"
            continue
        try:
            fitted = _fit_tool(tool, limits, used)
        except _NotFitting as error:
            left_out[name] = str(error)
            continue
        except RecursionError:
            left_out[name] = "its schema is nested too deeply"
            continue
        used.add(fitted.spec["name"])
        by_name[name] = fitted
        if change := _describe_change(tool, fitted):
            changes[name] = change
    ordered = {tool["name"]: by_name[tool["name"]] for tool in tools if tool["name"] in by_name}
    return FittedTools(ordered, changes, left_out)


def declare_called_tools(messages: Sequence[Message], dialect: Dialect) -> list[ToolSpec]:
    """Declare the tools that were called earlier, for a request that has none, where the dialect wants that."""
    if not dialect.declares_called_tools:
        return []
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    names = dict.fromkeys(fit_name(call["name"], dialect.tools) for call in calls)
    return [
        {
            "name": name,
            "description": "It is no longer available.",
            "parameters": {"type": "object", "properties": {}},
        }
        for name in names
    ]


def fit_name(name: str, limits: ToolLimits, used: Set[str] = frozenset()) -> str:
    """Make the name of a tool valid for a dialect, also one that a model has made up. A valid one stays as it is.

    `used`: names that other tools have.
    """
    return rewrite_name(name or "unnamed", limits.name, limits.name_characters, used)


def _fit_tool(tool: ToolSpec, limits: ToolLimits, used: set[str]) -> FittedTool:
    schema, wrapped = dict(tool["parameters"]), False
    if not is_object_schema(schema):
        schema, wrapped = make_object_schema(schema), True
    fitting = _SchemaFitting(schema, limits)
    parameters = fitting.fit(schema)
    description = tool["description"]
    if limits.description_characters is not None and len(description) > limits.description_characters:
        description = description[: limits.description_characters - len(SHORTENED)] + SHORTENED
    spec: ToolSpec = {
        "name": fit_name(tool["name"], limits, used),
        "description": description,
        "parameters": parameters,
    }
    return FittedTool(spec, wrapped, fitting.properties, fitting.list_texts())


def _describe_change(tool: ToolSpec, fitted: FittedTool) -> str | None:
    """Describe how a tool was changed; None: it was not."""
    spec = fitted.spec
    parts = {
        f"name {spec['name']}": spec["name"] != tool["name"],
        "description shortened": spec["description"] != tool["description"],
        "schema wrapped": fitted.wrapped,
        "properties renamed": bool(fitted.properties),
        "schema": not fitted.wrapped
        and not fitted.properties
        and canonicalize(spec["parameters"]) != canonicalize(tool["parameters"]),
    }
    return ", ".join(part for part, holds in parts.items() if holds) or None


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    """Rename the members of objects, at any depth."""
    if not names:
        return value
    if isinstance(value, dict):
        return {names.get(name, name): _rename(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rename(inner, names) for inner in value]
    return value


def _change_texts(value: Any, texts: Mapping[_Place, bool], place: _Place, change: Callable[[Any], Any]) -> Any:
    """Change the parts of a value that are sent as texts."""
    if not texts:
        return value
    if texts.get(place):
        return change(value)
    if isinstance(value, dict):
        steps = {name: (*place, name) if (*place, name) in texts else (*place, None) for name in value}
        return {name: _change_texts(inner, texts, steps[name], change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_change_texts(item, texts, (*place, None), change) for item in value]
    return value


def _write_text(value: Any) -> str:
    """Write a value of any type as a text that `_read_text` reads as the same value."""
    if isinstance(value, str) and _read_text(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _read_text(value: Any) -> Any:
    """Read a text as the JSON value that it is; another text is itself."""
    parsed = parse_object(f'{{"value": {value}}}', MAX_CHARACTERS) if isinstance(value, str) else None
    return parsed["value"] if parsed is not None and parsed.keys() == {"value"} else value


class _SchemaFitting:
    """The fitting of one schema.

    Attributes:
        properties: The names of properties that were changed, by the name that the provider gets.
    """

    def __init__(self, schema: Schema, limits: ToolLimits) -> None:
        self.properties: dict[str, str] = {}
        self._limits = limits
        self._size = _Size()
        self._references = _References(schema, self._size)
        self._own_properties = _list_properties(schema)
        # Of each part of a value: whether its schema is that of a text, of any value, or another one.
        self._values: dict[_Place, str] = {}

    def fit(self, schema: Any, path: tuple[str, ...] = (), place: _Place = ()) -> Schema:
        """Fit a subschema.

        Args:
            schema: The subschema.
            path: The references that have led to it.
            place: The part of the value that it describes.

        Raises:
            _NotFitting: The schema is not valid, or too large without references.
        """
        schema, path = self._expand(schema, path)
        schema, notes = self._rewrite(schema)
        fitted: Schema = {}
        for keyword, content in schema.items():
            if keyword in _DEFINITIONS and not self._limits.references:
                continue
            if not self._limits.allows(keyword):
                notes[keyword] = content
                continue
            fitted[keyword] = self._fit_content(keyword, content, path, place)
            if keyword not in SUBSCHEMA_KEYWORDS:
                self._size.add_characters(content)
        self._note_value(place, "text" if fitted.get("type") == "string" else "")
        self._complete(fitted, place)
        self._add_notes(fitted, notes)
        return fitted

    def list_texts(self) -> dict[_Place, bool]:
        """List the known parts of a value, and whether they are sent as texts; empty: none is."""
        texts = {place: kind == "any" for place, kind in self._values.items()}
        return texts if any(texts.values()) else {}

    def _note_value(self, place: _Place, kind: str) -> None:
        """Note what a part of a value is. A text in one branch of a union is left as the model wrote it."""
        known = self._values.get(place, "")
        self._values[place] = "text" if "text" in (known, kind) else known or kind

    def _expand(self, schema: Any, path: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Replace what the dialect does not take of references. Returns the subschema, and what has led to it."""
        while True:
            self._size.add_part()
            schema = _normalize(schema)
            if "allOf" in schema and not self._limits.allows("allOf"):
                schema, path = self._references.merge_all(schema, path)
            if "$ref" not in schema or self._limits.references:
                return schema, path
            schema, path = self._references.follow(schema, path)

    def _rewrite(self, schema: Schema) -> tuple[Schema, Schema]:
        """Replace keywords by others of the same meaning. Returns the subschema, and what it cannot say."""
        notes: Schema = {}
        schema = dict(schema)
        for rewrite in _REWRITINGS:
            schema = rewrite(schema, self._limits, notes)
        if self._limits.lone_unions and isinstance(schema.get("anyOf"), list):
            branches = schema.pop("anyOf")
            # What stands beside a union, its own notes included, holds for each branch.
            self._add_notes(schema, notes)
            return {"anyOf": [each for branch in branches for each in self._list_branches(branch, schema)]}, {}
        return schema, notes

    def _list_branches(self, branch: Any, beside: Schema) -> list[Schema]:
        """List the branches that a branch of a union stands for: its own ones if it is a union.

        Raises:
            _NotFitting: There are too many. Unions beside each other multiply.
        """
        self._size.add_part()
        own = branch if isinstance(branch, dict) else {}
        merged = _merge(beside, own)
        if beside.get("description") and own.get("description"):
            merged["description"] = f"{beside['description']}\n{own['description']}"
            self._size.add_characters(merged["description"])
        inner = merged.pop("anyOf", None) or merged.pop("oneOf", None)
        if not isinstance(inner, list):
            return [merged]
        return [each for other in inner for each in self._list_branches(other, merged)]

    def _fit_content(self, keyword: str, content: Any, path: tuple[str, ...], place: _Place) -> Any:
        """Fit the subschemas and the names that a keyword has."""
        match keyword:
            case "$defs" | "definitions" if isinstance(content, dict):
                return {name: self.fit(inner, path, place) for name, inner in content.items()}
            case "anyOf" | "oneOf" | "allOf":
                return [self.fit(inner, path, place) for inner in content]
            case "properties":
                names = {name: self._fit_property(name) for name in content}
                return {
                    names[name]: self._fit_part(inner, path, (*place, names[name])) for name, inner in content.items()
                }
            case "required":
                return [self._fit_property(name) for name in dict.fromkeys(content)]
            case "items" | "prefixItems" | "additionalItems" | "contains" | "not" if isinstance(content, list):
                return [self._fit_part(inner, path, (*place, None)) for inner in content]
            case "items" | "additionalItems" | "contains" | "not":
                return self._fit_part(content, path, (*place, None))
            case "additionalProperties" if isinstance(content, dict):
                return self._fit_part(content, path, (*place, None))
        return content

    def _fit_part(self, schema: Any, path: tuple[str, ...], place: _Place) -> Schema:
        """Fit the subschema of a part of the value."""
        if len(place) > MAX_LEVELS:
            raise _NotFitting(f"its schema has over {MAX_LEVELS} levels without references")
        return self.fit(schema, path, place)

    def _fit_property(self, name: str) -> str:
        if self._limits.property_name is None or self._limits.property_name.fullmatch(name):
            return name
        known = next((sent for sent, own in self.properties.items() if own == name), None)
        if known:
            return known
        sent = rewrite_name(name, self._limits.property_name, _PROPERTY_CHARACTERS, self._own_properties)
        self.properties[sent] = name
        self._own_properties.add(sent)
        return sent

    def _complete(self, fitted: Schema, place: _Place) -> None:
        """Add what a dialect wants to read, although JSON Schema has it by default."""
        kinds = fitted.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if "object" in kinds or "properties" in fitted:
            properties = fitted.setdefault("properties", {})
            for name in fitted.get("required", ()):
                if name not in properties:
                    properties[name] = self._fit_part({}, (), (*place, name))
        # OpenAI wants `items` beside `prefixItems`, too.
        if "array" in kinds and "items" not in fitted:
            fitted["items"] = self._fit_part({}, (), (*place, None))
        if not self._limits.typed or {"type", "anyOf", "$ref"} & fitted.keys():
            return
        fitted["type"] = _guess_type(fitted)
        if fitted["type"] == "string" and "enum" not in fitted:
            self._note_value(place, "any")
            note = "any JSON value, as text"
            fitted["description"] = f"{fitted['description']} ({note})" if "description" in fitted else note

    def _add_notes(self, fitted: Schema, notes: Schema) -> None:
        """Say in the description what the schema could not."""
        texts = [
            f"{keyword}: {json.dumps(content, ensure_ascii=False)}"
            for keyword, content in notes.items()
            if keyword not in self._limits.unsaid
        ]
        if texts:
            note = "{" + ", ".join(texts) + "}"
            self._size.add_characters(note)
            fitted["description"] = f"{fitted['description']}\n{note}" if fitted.get("description") else note


class _Size:
    """The size of a schema without references: each step adds what it makes."""

    def __init__(self) -> None:
        self._parts = 0
        self._characters = 0

    def add_part(self) -> None:
        """Add a subschema.

        Raises:
            _NotFitting: There are over `MAX_SUBSCHEMAS`.
        """
        self._parts += 1
        if self._parts > MAX_SUBSCHEMAS:
            raise _NotFitting(f"its schema has over {MAX_SUBSCHEMAS} parts without references")

    def add_characters(self, content: Any) -> None:
        """Add the characters of a keyword's content.

        Raises:
            _NotFitting: There are over `MAX_CHARACTERS`.
        """
        self._characters += len(content) if isinstance(content, str) else len(to_json(content))
        if self._characters > MAX_CHARACTERS:
            raise _NotFitting(f"its schema has over {MAX_CHARACTERS} characters without references")


# References


class _References:
    """What the references of a schema stand for."""

    def __init__(self, root: Schema, size: _Size) -> None:
        self._root = root
        self._size = size

    def follow(self, schema: Schema, path: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Replace a reference by what it refers to, or if that is recursive by any value of the same type."""
        reference, rest = schema["$ref"], _omit(schema, "$ref")
        target = self._resolve(reference)
        if reference not in path:
            return ({**target, **rest} if isinstance(target, dict) else rest), (*path, reference)
        kind = target.get("type") if isinstance(target, dict) else None
        rest.setdefault("description", f"as {reference.rpartition('/')[2]} above, recursively")
        return {"type": kind if isinstance(kind, str) else "object", **rest}, path

    def merge_all(self, schema: Schema, path: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Merge the parts of `allOf` into their schema, and the references that led to them into the path.

        A part that says something else of the same keyword, or that is recursive, stays in `allOf`.
        """
        merged, left = _omit(schema, "allOf"), []
        for part in schema["allOf"]:
            self._size.add_part()
            target, after = part, path
            while isinstance(target, dict) and (reference := target.get("$ref")) and reference not in after:
                resolved, beside = self._resolve(reference), _omit(target, "$ref")
                target = {**resolved, **beside} if isinstance(resolved, dict) else beside
                after = (*after, str(reference))
            if isinstance(target, dict):
                _check_forms(target)
                if "allOf" in target and "$ref" not in target:
                    target, after = self.merge_all(target, after)
            if not isinstance(target, dict) or "$ref" in target or _are_in_conflict(merged, target):
                left.append(part)
            else:
                merged, path = _merge(target, merged), after
        return (merged | {"allOf": left} if left else merged), path

    def _resolve(self, reference: object) -> Any:
        if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
            raise _NotFitting(f"its schema refers to {reference!r}")
        target: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise _NotFitting(f"its schema refers to {reference!r}, which it does not have")
        return target


def _omit(schema: Schema, *keywords: str) -> Schema:
    return {keyword: content for keyword, content in schema.items() if keyword not in keywords}


def _merge(beside: Schema, schema: Schema) -> Schema:
    """Merge two schemas that both hold; the second one decides where they differ."""
    merged = {**beside, **schema}
    if "properties" in beside and "properties" in schema:
        merged["properties"] = {**beside["properties"], **schema["properties"]}
    if "required" in beside and "required" in schema:
        merged["required"] = list(dict.fromkeys((*beside["required"], *schema["required"])))
    return merged


def _are_in_conflict(merged: Schema, part: Schema) -> bool:
    """Whether two schemas that both hold say something different of the same keyword."""
    shared = merged.keys() & part.keys() - {"required", "description", "title", "default", "examples", *_NO_MEANING}
    known, more = merged.get("properties", {}), part.get("properties", {})
    return any(known[name] != more[name] for name in known.keys() & more.keys()) or any(
        merged[keyword] != part[keyword] for keyword in shared - {"properties"}
    )


# Forms


_FORMS: Mapping[str, type[dict[str, Any]] | type[list[Any]] | type[str]] = {
    "description": str,
    "properties": dict,
    "required": list,
    "enum": list,
    "anyOf": list,
    "oneOf": list,
    "allOf": list,
    "prefixItems": list,
}
"""The forms of keywords' contents."""
_NEVER_EMPTY = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_NO_MEANING = ("$schema", "$id", "$comment")
"""Keywords without a meaning for a model."""


def _normalize(schema: Any) -> Schema:
    """Write a subschema as the newest draft does, without keywords that have no meaning for a model.

    Raises:
        _NotFitting: It is not valid.
    """
    if not isinstance(schema, dict):
        # `true` allows every value, `false` none.
        return {} if schema else {"description": "leave this out"}
    newest = _omit(schema, *_NO_MEANING)
    if isinstance(newest.get("required"), bool):
        del newest["required"]
    for bound, excluded in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(newest.get(excluded), bool) and newest.pop(excluded) and bound in newest:
            newest[excluded] = newest.pop(bound)
    _check_forms(newest)
    return newest


def _check_forms(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that is not valid: providers refuse the whole request for it.

    Raises:
        _NotFitting: A keyword has a content of another form than JSON Schema says.
    """
    for keyword, form in _FORMS.items():
        content = schema.get(keyword, form())
        is_valid = isinstance(content, form) and (keyword not in _NEVER_EMPTY or keyword not in schema or content)
        if not is_valid or (keyword == "required" and not all(isinstance(name, str) for name in content)):
            raise _NotFitting(f"its schema is not valid JSON Schema: {keyword!r} has another form")


def _list_properties(schema: object) -> set[str]:
    """List the names of all properties of a schema; some may be names of something else."""
    names: set[str] = set()
    left = [schema]
    while left:
        match left.pop():
            case dict() as fields:
                names |= fields.keys()
                if isinstance(required := fields.get("required"), list):
                    names |= {name for name in required if isinstance(name, str)}
                left += fields.values()
            case list() as items:
                left += items
    return names


# Keywords


def _rewrite_tuple(schema: Schema, limits: ToolLimits, notes: Schema) -> Schema:
    """Write the tuple of older drafts as the newest one does. The description says what cannot be written."""
    if isinstance(schema.get("items"), list) and not limits.allows("items as a list"):
        schema["prefixItems"] = schema.pop("items")
    if "prefixItems" in schema and not limits.allows("prefixItems"):
        notes["prefixItems"] = schema.pop("prefixItems")
    return schema


def _rewrite_const(schema: Schema, limits: ToolLimits, _: Schema) -> Schema:
    """Write a constant as an enumeration of one value."""
    if "const" in schema and not limits.allows("const"):
        schema.setdefault("enum", [schema.pop("const")])
    return schema


def _rewrite_union(schema: Schema, limits: ToolLimits, _: Schema) -> Schema:
    """Write a union of which exactly one branch holds as one of which any may."""
    if "oneOf" in schema and not limits.allows("oneOf") and "anyOf" not in schema:
        schema["anyOf"] = schema.pop("oneOf")
    return schema


def _rewrite_types(schema: Schema, limits: ToolLimits, _: Schema) -> Schema:
    """Write the type that is meant, a list of types as a union, and no keyword of another type."""
    if limits.typed and not _TYPING & schema.keys() and (kind := _infer_type(schema)):
        schema["type"] = kind
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return schema if limits.type_lists else _split_types(schema, limits)
    # They mean nothing there, and Gemini refuses them: "only allowed for OBJECT type".
    return _omit(schema, *_list_other_keywords(kinds)) if limits.typed and isinstance(kinds, str) else schema


def _rewrite_enum(schema: Schema, limits: ToolLimits, notes: Schema) -> Schema:
    """Keep an enumeration only if all its values are texts, where the dialect takes no others."""
    values = schema.get("enum")
    if not isinstance(values, list) or not limits.text_enums:
        return schema
    if values and all(isinstance(value, str) and value for value in values):
        schema.setdefault("type", "string")
        return schema
    notes["enum"] = schema.pop("enum")
    if "type" not in schema and "anyOf" not in schema:
        schema["type"] = _guess_type({"enum": values})
    return schema


def _rewrite_format(schema: Schema, limits: ToolLimits, notes: Schema) -> Schema:
    if limits.formats is not None and schema.get("format", "") not in ("", *limits.formats):
        notes["format"] = schema.pop("format")
    return schema


_REWRITINGS: tuple[Callable[[Schema, ToolLimits, Schema], Schema], ...] = (
    _rewrite_tuple,
    _rewrite_const,
    _rewrite_union,
    _rewrite_types,
    _rewrite_enum,
    _rewrite_format,
)
"""What rewrites a subschema, in this order: each may change it, and takes what it cannot say into the notes."""


def _split_types(schema: Schema, limits: ToolLimits) -> Schema:
    """Write a list of types as one type that may be null, or as a union."""
    kinds = [kind for kind in schema["type"] if kind != "null"]
    rest = _omit(schema, "type")
    if len(kinds) == 1 < len(schema["type"]) and limits.nullable:
        if isinstance(values := rest.get("enum"), list) and len(values) > 1:
            rest["enum"] = [value for value in values if value is not None]
        return {**rest, "type": kinds[0], "nullable": True}
    if "anyOf" in rest:
        return {**rest, "type": kinds[0] if kinds else "null"}
    shared: Schema = {name: rest.pop(name) for name in ("description", "title", "default") if name in rest}
    return {**shared, "anyOf": [_keep_keywords(rest, kind) for kind in schema["type"]]}


_KEYWORDS_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_TYPING = frozenset(("type", "enum", "anyOf", "oneOf", "allOf", "not", "if", "$ref"))
"""Keywords with which a schema says more of types than the keywords of one type do."""


def _infer_type(schema: Schema) -> str | None:
    """Infer the type that a schema means from the keywords of one type; None: it has none."""
    return next((kind for kind, own in _KEYWORDS_OF_TYPE.items() if not schema.keys().isdisjoint(own)), None)


def _list_other_keywords(kind: str) -> set[str]:
    """List the keywords that mean something for other types alone."""
    own = _KEYWORDS_OF_TYPE.get("number" if kind == "integer" else kind, ())
    return {keyword for keywords in _KEYWORDS_OF_TYPE.values() for keyword in keywords} - set(own)


def _keep_keywords(schema: Schema, kind: str) -> Schema:
    """Make the branch of a union for one type, with the keywords that mean something for it."""
    branch = _omit(schema, *_list_other_keywords(kind))
    values = [value for value in branch.pop("enum", ()) if _has_type(value, kind)]
    return {"type": kind, **branch, **({"enum": values} if values else {})}


_TYPE_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _has_type(value: object, kind: str) -> bool:
    return kind in _TYPE_CHECKS and _TYPE_CHECKS[kind](value)


def _guess_type(schema: Schema) -> str:
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return next((kind for kind in _TYPE_CHECKS if all(_has_type(value, kind) for value in values)), "string")
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else "string"
