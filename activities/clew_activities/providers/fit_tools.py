"""Makes the tools of any session acceptable to a dialect: names, descriptions, schemas and their number. Pure.

A tool is changed only so far that its meaning stays. A name that the dialect refuses is mapped there and back, and so
are the names of properties. A schema whose root is a union becomes the schema of an object with the union as its only
member, and calls are unwrapped. A keyword that the dialect refuses moves to the description, where the model reads
it; the session validates the arguments against the tool's own schema all the same. A tool that cannot be fitted is
left out, with the reason.
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
_SUBSCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
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
_NO_MEANING = frozenset(("$schema", "$id", "$comment"))
"""Keywords without a meaning for a model."""


@dataclass
class Texts:
    """The parts of a value that are sent as texts.

    Attributes:
        is_text: The value itself is.
        parts: Those of its parts, by a property as the provider gets it, or None for items and other properties.
    """

    is_text: bool = False
    parts: dict[str | None, Texts] = field(default_factory=dict)

    def add(self, steps: Sequence[str | None], *, is_text: bool) -> None:
        """Add the part that steps lead to."""
        texts = self
        for step in steps:
            texts = texts.parts.setdefault(step, Texts())
        texts.is_text = is_text

    def change(self, value: Any, change: Callable[[Any], Any]) -> Any:
        """Change the parts of a value."""
        if self.is_text:
            return change(value)
        others = self.parts.get(None)
        if isinstance(value, dict):
            return {
                name: texts.change(inner, change) if (texts := self.parts.get(name, others)) else inner
                for name, inner in value.items()
            }
        if isinstance(value, list) and others:
            return [others.change(item, change) for item in value]
        return value


class _NotFitting(Exception):
    """The tool cannot be fitted; the message says why."""


@dataclass(frozen=True)
class FittedTool:
    """A tool as a request has it.

    Attributes:
        spec: The name, the description and the schema that the provider gets.
        wrapped: The arguments are the only member of an object.
        properties: The names of properties that were changed, by the name that the provider gets.
        texts: Where a value of any type is sent as a text.
    """

    spec: ToolSpec
    wrapped: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    texts: Texts | None = None


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
        tool = self.by_name.get(name)
        if tool is None:
            return fit_name(name, limits, {other.spec["name"] for other in self.by_name.values()}), arguments
        renamed = {own: sent for sent, own in tool.properties.items()}
        sent = _rename(arguments, renamed)
        sent = {MEMBER: sent} if tool.wrapped else sent
        return tool.spec["name"], tool.texts.change(sent, _write_text) if tool.texts else sent

    def decode_call(self, call: RequestedTool) -> RequestedTool:
        """Make a call as the session knows it."""
        # Models also call a tool by the session's name, which they have read in a prompt.
        name = self.own_names.get(call.name, call.name)
        if name not in self.by_name:
            return call
        tool, arguments = self.by_name[name], call.arguments
        if (
            tool.wrapped
            and arguments.keys() == {MEMBER}
            and isinstance(member := _read_text(arguments[MEMBER]), dict)
        ):
            # Models write the inner object as a text, too.
            arguments = {MEMBER: member}
        texts = tool.texts
        if texts and tool.wrapped and arguments.keys() != {MEMBER}:
            # The model has left the wrapping out.
            texts = texts.parts.get(MEMBER)
        if texts and not texts.is_text:
            arguments = texts.change(arguments, _read_text)
        if tool.wrapped and arguments.keys() == {MEMBER} and isinstance(arguments[MEMBER], dict):
            arguments = arguments[MEMBER]
        return call.model_copy(update={"name": name, "arguments": _rename(arguments, tool.properties)})


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
    fitted = fitting.fit(schema, ())
    description = tool["description"]
    if limits.description_characters is not None and len(description) > limits.description_characters:
        description = description[: limits.description_characters - len(SHORTENED)] + SHORTENED
    spec: ToolSpec = {
        "name": fit_name(tool["name"], limits, used),
        "description": description,
        "parameters": fitted,
    }
    return FittedTool(spec, wrapped, fitting.properties, fitting.make_texts())


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

    def __init__(self, schema: Mapping[str, Any], limits: ToolLimits) -> None:
        self.properties: dict[str, str] = {}
        self._own_properties = _list_properties(schema)
        self._steps: list[str | None] = []
        self._any: set[tuple[str | None, ...]] = set()
        self._texts: set[tuple[str | None, ...]] = set()
        self._known: set[tuple[str | None, ...]] = set()
        self._root = schema
        self._limits = limits
        self._count = 0
        self._characters = 0

    def fit(self, schema: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """Fit a subschema. `path`: the references that have led to it.

        Raises:
            _NotFitting: The schema is too large without references.
        """
        self._count_part()
        if not isinstance(schema, Mapping):
            # `true` allows every value, `false` none.
            schema = {} if schema else {"description": "leave this out"}
        schema = _replace_older_forms(
            {keyword: content for keyword, content in schema.items() if keyword not in _NO_MEANING}
        )
        _check_forms(schema)
        if "allOf" in schema and not self._limits.allows("allOf"):
            schema, path = self._merge_all(schema, path)
        if "$ref" in schema and not self._limits.references:
            return self._fit_reference(schema, path)
        fitted: dict[str, Any] = {}
        notes: dict[str, Any] = {}
        schema = self._replace_keywords(schema, notes)
        for keyword, content in schema.items():
            if keyword in _DEFINITIONS and not self._limits.references:
                continue
            if not self._limits.allows(keyword):
                notes[keyword] = content
            else:
                fitted[keyword] = self._fit_content(keyword, content, path)
                if keyword not in SUBSCHEMA_KEYWORDS:
                    self._count_characters(content)
        self._known.add(tuple(self._steps))
        if fitted.get("type") == "string":
            self._texts.add(tuple(self._steps))
        self._complete(fitted)
        self._add_notes(fitted, notes)
        return fitted

    def make_texts(self) -> Texts | None:
        """Make the tree of the values of any type, after the fitting; None: there are none.

        In another branch of a union the same value may be a text: then it is left as the model wrote it.
        """
        any_values = self._any - self._texts
        if not any_values:
            return None
        texts = Texts()
        for steps in self._known:
            texts.add(steps, is_text=steps in any_values)
        return texts

    def _fit_reference(self, schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Replace a reference by what it refers to; a recursive one by any value of the same type."""
        reference, rest = schema["$ref"], {key: value for key, value in schema.items() if key != "$ref"}
        target = self._resolve(reference)
        if reference in path:
            kind = target.get("type") if isinstance(target, Mapping) else None
            hint = {"type": kind} if isinstance(kind, str) else {"type": "object"}
            rest.setdefault("description", f"as {reference.rpartition('/')[2]} above, recursively")
            return self.fit({**hint, **rest}, path)
        merged = {**target, **rest} if isinstance(target, Mapping) else rest
        return self.fit(merged, (*path, reference))

    def _merge_all(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Merge the parts of `allOf` into their schema, and the references that led to them into the path.

        A part that says something else of the same keyword, or that is recursive, stays in `allOf`.
        """
        merged = {keyword: content for keyword, content in schema.items() if keyword != "allOf"}
        left: list[Any] = []
        for part in schema["allOf"]:
            self._count_part()
            target, after = part, path
            while isinstance(target, Mapping) and (reference := target.get("$ref")) and reference not in after:
                after = (*after, str(reference))
                beside = {keyword: content for keyword, content in target.items() if keyword != "$ref"}
                resolved = self._resolve(reference)
                target = {**resolved, **beside} if isinstance(resolved, Mapping) else beside
            if isinstance(target, Mapping):
                _check_forms(target)
            if isinstance(target, Mapping) and "allOf" in target and "$ref" not in target:
                target, after = self._merge_all(target, after)
            if not isinstance(target, Mapping) or "$ref" in target or _are_in_conflict(merged, target):
                left.append(part)
                continue
            merged, path = _merge_branch(target, merged), after
        return (merged | {"allOf": left} if left else merged), path

    def _resolve(self, reference: object) -> Any:
        if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
            raise _NotFitting(f"its schema refers to {reference!r}")
        target: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise _NotFitting(f"its schema refers to {reference!r}, which it does not have")
        return target

    def _replace_keywords(self, schema: dict[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
        """Replace keywords by others of the same meaning, where the dialect refuses the first."""
        limits, replaced = self._limits, dict(schema)
        if isinstance(replaced.get("items"), list) and not limits.allows("items as a list"):
            replaced["prefixItems"] = replaced.pop("items")
        if "prefixItems" in replaced and not limits.allows("prefixItems"):
            notes["prefixItems"] = replaced.pop("prefixItems")
        if "const" in replaced and not limits.allows("const"):
            replaced.setdefault("enum", [replaced.pop("const")])
        if "oneOf" in replaced and not limits.allows("oneOf") and "anyOf" not in replaced:
            replaced["anyOf"] = replaced.pop("oneOf")
        if limits.typed and not _TYPING & replaced.keys() and (kind := _infer_type(replaced)):
            replaced["type"] = kind
        kinds = replaced.get("type")
        if isinstance(kinds, list) and not limits.type_lists:
            replaced = _split_types(replaced, limits)
        if limits.typed and isinstance(kinds, str):
            # They mean nothing there, and Gemini refuses them: "only allowed for OBJECT type".
            others = _list_other_keywords(kinds)
            replaced = {keyword: content for keyword, content in replaced.items() if keyword not in others}
        values = replaced.get("enum")
        if isinstance(values, list) and limits.text_enums:
            replaced = _keep_texts(replaced, notes)
        if limits.formats is not None and replaced.get("format", "") not in ("", *limits.formats):
            notes["format"] = replaced.pop("format")
        if limits.lone_unions and isinstance(replaced.get("anyOf"), list):
            branches = replaced.pop("anyOf")
            self._add_notes(replaced, notes)
            notes.clear()
            # What stands beside a union, its own notes included, holds for each branch.
            return {"anyOf": [inner for branch in branches for inner in self._list_branches(branch, replaced)]}
        return replaced

    def _list_branches(self, branch: Any, beside: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the branches that a branch of a union stands for: its own ones if it is a union.

        Raises:
            _NotFitting: There are too many. Unions beside each other multiply.
        """
        self._count_part()
        own = branch if isinstance(branch, Mapping) else {}
        merged = _merge_branch(beside, own)
        if beside.get("description") and own.get("description"):
            merged["description"] = f"{beside['description']}\n{own['description']}"
            self._count_characters(merged["description"])
        inner = merged.pop("anyOf", None) or merged.pop("oneOf", None)
        if not isinstance(inner, list):
            return [merged]
        return [each for other in inner for each in self._list_branches(other, merged)]

    def _count_part(self) -> None:
        self._count += 1
        if self._count > MAX_SUBSCHEMAS:
            raise _NotFitting(f"its schema has over {MAX_SUBSCHEMAS} parts without references")

    def _count_characters(self, content: Any) -> None:
        self._characters += len(content) if isinstance(content, str) else len(to_json(content))
        if self._characters > MAX_CHARACTERS:
            raise _NotFitting(f"its schema has over {MAX_CHARACTERS} characters without references")

    def _fit_content(self, keyword: str, content: Any, path: tuple[str, ...]) -> Any:
        if keyword in _DEFINITIONS and isinstance(content, Mapping):
            return {name: self.fit(inner, path) for name, inner in content.items()}
        if keyword == "properties" and isinstance(content, Mapping):
            names = {name: self._fit_property(name) for name in content}
            return {names[name]: self._fit_part(names[name], inner, path) for name, inner in content.items()}
        if keyword == "required" and isinstance(content, list):
            return [self._fit_property(name) for name in dict.fromkeys(content)]
        if keyword in _SUBSCHEMAS and isinstance(content, list):
            return [self.fit(inner, path) for inner in content]
        if keyword in ("items", "not", "contains", "additionalItems"):
            parts = content if isinstance(content, list) else [content]
            fitted = [self._fit_part(None, inner, path) for inner in parts]
            return fitted if isinstance(content, list) else fitted[0]
        if keyword == "additionalProperties" and isinstance(content, Mapping):
            return self._fit_part(None, content, path)
        return content

    def _fit_part(self, step: str | None, schema: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """Fit the subschema of a part of the value."""
        self._steps.append(step)
        if len(self._steps) > MAX_LEVELS:
            raise _NotFitting(f"its schema has over {MAX_LEVELS} levels without references")
        fitted = self.fit(schema, path)
        self._steps.pop()
        return fitted

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

    def _complete(self, fitted: dict[str, Any]) -> None:
        """Add what a dialect wants to read, although JSON Schema has it by default."""
        kinds = fitted.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if "object" in kinds or "properties" in fitted:
            properties = fitted.setdefault("properties", {})
            for name in fitted.get("required", ()):
                if name not in properties:
                    properties[name] = self._fit_part(name, {}, ())
        # OpenAI wants `items` beside `prefixItems`, too.
        if "array" in kinds and "items" not in fitted:
            fitted["items"] = self._fit_part(None, {}, ())
        if not self._limits.typed or {"type", "anyOf", "$ref"} & fitted.keys():
            return
        fitted["type"] = _guess_type(fitted)
        if fitted["type"] == "string" and "enum" not in fitted:
            self._any.add(tuple(self._steps))
            note = "any JSON value, as text"
            fitted["description"] = f"{fitted['description']} ({note})" if "description" in fitted else note

    def _add_notes(self, fitted: dict[str, Any], notes: Mapping[str, Any]) -> None:
        """Say in the description what the schema could not."""
        texts = [
            f"{keyword}: {json.dumps(content, ensure_ascii=False)}"
            for keyword, content in notes.items()
            if keyword not in self._limits.unsaid
        ]
        if texts:
            note = "{" + ", ".join(texts) + "}"
            self._count_characters(note)
            fitted["description"] = f"{fitted['description']}\n{note}" if fitted.get("description") else note


def _list_properties(schema: object) -> set[str]:
    """List the names of all properties of a schema; some may be names of something else."""
    names: set[str] = set()
    left = [schema]
    while left:
        match left.pop():
            case dict() as fields:
                names |= fields.keys()
                names |= {name for name in _read_list(fields.get("required")) if isinstance(name, str)}
                left += fields.values()
            case list() as items:
                left += items
    return names


def _read_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _replace_older_forms(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace what older drafts write as a boolean: `required` of a property, and bounds that are excluded."""
    replaced = dict(schema)
    if isinstance(replaced.get("required"), bool):
        del replaced["required"]
    for bound, excluded in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(replaced.get(excluded), bool) and replaced.pop(excluded) and bound in replaced:
            replaced[excluded] = replaced.pop(bound)
    return replaced


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


def _are_in_conflict(merged: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Whether two schemas that both hold say something different of the same keyword."""
    shared = (merged.keys() & part.keys()) - {"required", "description", "title", "default", "examples", *_NO_MEANING}
    properties = merged.get("properties", {}), part.get("properties", {})
    if any(properties[0][name] != properties[1][name] for name in properties[0].keys() & properties[1].keys()):
        return True
    return any(merged[keyword] != part[keyword] for keyword in shared - {"properties"})


def _merge_branch(beside: Mapping[str, Any], branch: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**beside, **branch}
    if "properties" in beside and "properties" in branch:
        merged["properties"] = {**beside["properties"], **branch["properties"]}
    if "required" in beside and "required" in branch:
        merged["required"] = list(dict.fromkeys((*beside["required"], *branch["required"])))
    return merged


def _split_types(schema: dict[str, Any], limits: ToolLimits) -> dict[str, Any]:
    """Write a list of types as one type that may be null, or as a union."""
    kinds = [kind for kind in schema["type"] if kind != "null"]
    is_nullable = len(kinds) < len(schema["type"])
    rest = {keyword: content for keyword, content in schema.items() if keyword != "type"}
    if len(kinds) == 1 and is_nullable and limits.nullable:
        if isinstance(values := rest.get("enum"), list) and len(values) > 1:
            rest["enum"] = [value for value in values if value is not None]
        return {**rest, "type": kinds[0], "nullable": True}
    if "anyOf" in rest:
        return {**rest, "type": kinds[0] if kinds else "null"}
    shared: dict[str, Any] = {name: rest.pop(name) for name in ("description", "title", "default") if name in rest}
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


def _infer_type(schema: Mapping[str, Any]) -> str | None:
    """Infer the type that a schema means from the keywords of one type; None: it has none."""
    return next((kind for kind, own in _KEYWORDS_OF_TYPE.items() if not schema.keys().isdisjoint(own)), None)


def _list_other_keywords(kind: str) -> set[str]:
    """List the keywords that mean something for other types alone."""
    own = _KEYWORDS_OF_TYPE.get("number" if kind == "integer" else kind, ())
    return {keyword for keywords in _KEYWORDS_OF_TYPE.values() for keyword in keywords} - set(own)


def _keep_keywords(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Make the branch of a union for one type, with the keywords that mean something for it."""
    others = _list_other_keywords(kind)
    branch = {keyword: content for keyword, content in schema.items() if keyword not in others}
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


def _keep_texts(schema: dict[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    """Keep an enumeration only if all its values are texts; others are said in the description."""
    values = schema["enum"]
    texts = [value for value in values if isinstance(value, str) and value]
    if len(texts) == len(values) and values:
        return schema if "type" in schema else {**schema, "type": "string"}
    rest = {keyword: content for keyword, content in schema.items() if keyword != "enum"}
    notes["enum"] = values
    if "type" not in rest and "anyOf" not in rest:
        rest["type"] = _guess_type({"enum": values})
    return rest


def _guess_type(schema: Mapping[str, Any]) -> str:
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return next((kind for kind in _TYPE_CHECKS if all(_has_type(value, kind) for value in values)), "string")
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else "string"
