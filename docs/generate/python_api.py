"""The reference of the Python API, from signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import docstring_parser
from docstring_parser.common import DocstringStyle
from pydantic import BaseModel
from typing_extensions import is_typeddict

from clew.json_schemas import definitions
from clew_workflows.contract.errors import ClewError, Refusal, find_word
from docs.generate.schemas import all_definitions
from docs.generate.tables import table, type_table

MODULES = {
    "clew": "",
    "clew.tools": "",
    "clew.content": "",
    "clew.testing": "[Testing](../testing.md) shows how to use it.",
    "clew.session.events": "The events that `Session.follow` and `Request.events` yield.",
    "clew.schedules": "",
    "clew.workflow": "",
    "clew.hooks": "",
    "clew.context": "",
    "clew.thread": "",
    "clew.local": "",
    "clew.serve": "It needs the extra `serve`.",
    "clew.ag_ui": "",
    "clew.worker": "",
    "clew.errors": "",
    "clew.contract": "",
}
"""The modules that users import, with a sentence for each."""
PUBLIC = {
    "clew.content": ("Audio", "File", "Image"),
    "clew.session.events": (
        *("EntryCommitted", "TextAdded", "ThinkingAdded", "ToolStarted", "ToolProgressed", "ToolFinished"),
        *("ApprovalRequired", "ResultRequired", "SubagentWaiting", "Retrying", "Restarted", "StatusChanged"),
    ),
    "clew.schedules": ("Schedules", "ScheduleDetails", "ScheduleSummary", "ScheduledRun"),
    "clew.workflow": ("ask", "fork", "message", "open", "steer"),
}
"""The names of modules that have no `__all__`, or have names for Clew itself beside them."""
WIDTH = 96
"""Most characters of a line of code, so that a block of it needs no scroll bar."""
LONGEST_DEFAULT = 40
"""Most characters of a default that is shown."""
_OWN = ("clew", "clew_workflows", "clew_activities", "clew_audit", "clew_pytest")
_FIELDS_OF = re.compile(r"[Ff]ields of `(\w+)`")
_LINK = re.compile(r"\]\(#")
_FILES = re.compile(r"^(?:\| module \||Raises:)", re.MULTILINE)
"""Where a docstring turns to its module's files, or to the errors of an import."""


@cache
def make_page() -> str:
    """Make the page."""
    reference = _Reference()
    parts = [reference.make_module(name) for name in MODULES]
    return (
        "# Python API\n\n"
        "Every name that programs import, with its parameters, results and errors. A name that has several homes is "
        "described at the first one. Options that many functions take are at the end of their module.\n\n"
        + "\n".join(parts)
    )


class _Reference:
    """Makes the parts of the page, each name once."""

    def __init__(self) -> None:
        self._homes: dict[int, str] = {}
        self._headings: set[str] = set()

    def make_module(self, name: str) -> str:
        module = importlib.import_module(name)
        lines = [f"## {name}\n", _write_text(_describe_module(module)) + "\n"]
        lines += [f"{MODULES[name]}\n"] if MODULES[name] else []
        if name == "clew.errors":
            functions = [one for one in module.__all__ if inspect.isfunction(getattr(module, one))]
            made = [self._make_function(3, f"{name}.{one}", getattr(module, one)) for one in functions]
            return "\n".join([*lines, _make_errors(module), *made])
        if name == "clew.contract":
            return "\n".join([*lines, _make_contract(module)])
        again: list[str] = []
        others: list[str] = []
        shared: dict[str, type] = {}
        for public in PUBLIC.get(name) or module.__all__:
            value = getattr(module, public)
            if (home := self._homes.get(id(value))) is not None:
                again.append(f"[{public}](#{home})")
                continue
            if isinstance(value, type) and issubclass(value, ClewError):
                again.append(f"[{public}](#clewerrors)")
                continue
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                others.append(f"`{public}`: `{_write_value(value)}`")
                continue
            heading = public if public[0].isupper() else f"{name}.{public}"
            self._homes[id(value)] = slugify(heading)
            lines.append(self._make_entry(heading, value))
            shared |= dict(_find_options(value))
        if others:
            lines.append("Values and types of this module:\n\n" + "".join(f"- {text}\n" for text in others))
        if again:
            lines.append(f"Also in `{name}`: {', '.join(sorted(again))}.\n")
        for option in shared.values():
            if id(option) not in self._homes:
                self._homes[id(option)] = slugify(option.__name__)
                lines.append(self._make_options(option))
        return "\n".join(lines)

    def _head(self, level: int, text: str) -> str:
        if (slug := slugify(text)) in self._headings:
            raise ValueError(f"two headings of the Python API have the same anchor: {slug}")
        self._headings.add(slug)
        return f"{'#' * level} {text}\n"

    def _make_entry(self, heading: str, value: Any) -> str:
        return self._make_class(heading, value) if inspect.isclass(value) else self._make_function(3, heading, value)

    def _make_function(self, level: int, heading: str, function: Any) -> str:
        parts = [
            self._head(level, heading),
            _write_signature(_shorten(heading), function),
            _write_docstring(function.__doc__),
        ]
        return "\n".join(filter(None, parts))

    def _make_class(self, heading: str, cls: type) -> str:
        parts = [self._head(3, heading)]
        if issubclass(cls, BaseModel):
            parts += [_write_docstring(cls.__doc__, fields=False), _make_model(cls)]
        elif is_typeddict(cls):
            parts.append(_write_docstring(cls.__doc__))
        else:
            shown = not getattr(cls, "_is_protocol", False) and not issubclass(cls, BaseException)
            parts += [_write_signature(_shorten(heading), cls) if shown else "", _write_docstring(cls.__doc__)]
            if (init := vars(cls).get("__init__")) is not None and init.__doc__:
                parts.append(_write_docstring(init.__doc__))
        members = dict(_list_members(cls))
        properties = [(name, member) for name, member in members.items() if isinstance(member, property)]
        if properties:
            parts.append(
                table(
                    ("property", "type", "meaning"),
                    (
                        [f"`{name}`", _code(_write_return(member.fget)), _cell(_summarize(member.__doc__))]
                        for name, member in properties
                    ),
                )
            )
        for name, member in members.items():
            if not isinstance(member, property):
                parts.append(self._make_function(4, f"{heading}.{name}", member))
        return "\n".join(filter(None, parts))

    def _make_options(self, cls: type) -> str:
        types = _read_types(cls)
        meanings = {one.arg_name: one.description for base in _list_bases(cls) for one in _parse(base.__doc__).params}
        if named := _FIELDS_OF.search(cls.__doc__ or ""):
            fields_of = all_definitions()[named[1]]["properties"]
            meanings |= {
                name: fields_of.get(name, {}).get("description", "") for name in types if name not in meanings
            }
        rows = ([f"`{name}`", _code(type_), _cell(meanings.get(name))] for name, type_ in types.items())
        options = table(("option", "type", "meaning"), rows)
        return "\n".join([self._head(3, cls.__name__), _write_docstring(cls.__doc__, fields=False), options])


def _shorten(heading: str) -> str:
    """A name as it is called: without the module of a function."""
    return heading.rpartition(".")[2] if heading.startswith("clew.") else heading


def slugify(heading: str) -> str:
    """Make the anchor of a heading, as the site and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


# What has fields.


def _make_model(cls: type[BaseModel]) -> str:
    name = cls.__name__
    known = all_definitions()
    schemas = known if name in known else definitions([(name, cls)])
    made = type_table(schemas[name])
    return _LINK.sub("](../contract.md#", made) if name in known else re.sub(r"\[(\w+)\]\(#\w+\)", r"`\1`", made)


def _list_bases(cls: type) -> list[type]:
    """List a typed dictionary and those that it extends, these first."""
    bases = (base for base in getattr(cls, "__orig_bases__", ()) if isinstance(base, type) and is_typeddict(base))
    return [*(found for base in bases for found in _list_bases(base)), cls]


def _read_types(cls: type) -> dict[str, str]:
    """Read the types of a typed dictionary's fields as they are written."""
    return {
        name: _write_annotation(annotation)
        for base in _list_bases(cls)
        for name, annotation in vars(base).get("__annotations__", {}).items()
    }


def _make_errors(module: ModuleType) -> str:
    rows = []
    for name in sorted(module.__all__):
        cls = getattr(module, name)
        if isinstance(cls, type) and issubclass(cls, ClewError):
            word = "" if cls in (ClewError, Refusal) else f"`{find_word(cls)}`"
            kind = "refusal" if issubclass(cls, Refusal) else "error"
            rows.append([f"`{name}`", word, kind, _cell(_summarize(cls.__doc__))])
    return table(("error", "word", "kind", "meaning"), rows) + (
        "\nA refusal says that nothing has changed. The word is the error's `type` in the contract, over HTTP and in "
        "the results of requests.\n"
    )


def _make_contract(module: ModuleType) -> str:
    known = all_definitions()
    types = ", ".join(f"[{name}](../contract.md#{name.lower()})" for name in sorted(module.__all__) if name in known)
    others = ", ".join(f"`{name}`" for name in sorted(module.__all__) if name not in known)
    return f"The [contract](../contract.md) describes the types: {types}.\n\nOther names: {others}.\n"


# Docstrings.


def _describe_module(module: ModuleType) -> str:
    """Take the part of a module's docstring for its users."""
    text = _FILES.split(inspect.cleandoc(module.__doc__ or ""))[0].strip()
    return "\n\n".join(textwrap.indent(part, "    ") if _is_code(part) else part for part in text.split("\n\n"))


def _is_code(text: str) -> bool:
    """Whether a paragraph is Python."""
    try:
        return any(not isinstance(one, ast.Expr) or isinstance(one.value, ast.Await) for one in ast.parse(text).body)
    except SyntaxError:
        return False


def _summarize(docstring: str | None) -> str:
    """Take a docstring's text without its sections."""
    parsed = _parse(docstring)
    return " ".join(filter(None, [parsed.short_description, parsed.long_description]))


def _parse(docstring: str | None) -> docstring_parser.Docstring:
    return docstring_parser.parse(inspect.cleandoc(docstring or ""), style=DocstringStyle.GOOGLE)


def _write_docstring(docstring: str | None, *, fields: bool = True) -> str:
    """Write a docstring as Markdown: the text, then a table for each section."""
    parsed = _parse(docstring)
    parts = [_write_text("\n\n".join(filter(None, [parsed.short_description, parsed.long_description])))]
    for title, kind in (("parameter", "param"), ("field", "attribute")):
        rows = [[f"`{one.arg_name}`", _cell(one.description)] for one in parsed.params if one.args[0] == kind]
        if rows and (fields or kind == "param"):
            parts.append(table((title, "meaning"), rows).rstrip())
    if parsed.returns is not None and parsed.returns.description:
        parts.append(f"{'Yields' if parsed.returns.is_generator else 'Returns'}: {_join(parsed.returns.description)}")
    if parsed.raises:
        rows = [[f"`{one.type_name}`", _cell(one.description)] for one in parsed.raises]
        parts.append(table(("raises", "when"), rows).rstrip())
    examples = [inspect.cleandoc(one.description or one.snippet or "") for one in parsed.examples]
    parts += [_write_text(textwrap.indent(text, "    ")) for text in examples]
    return "\n\n".join(filter(None, parts)) + "\n"


def _write_text(text: str) -> str:
    """Write the text of a docstring: an indented block becomes one of Python."""
    lines: list[str] = []
    block: list[str] = []

    def end() -> None:
        while block and not block[-1]:
            block.pop()
        if block:
            # A docstring in an example has the quotes that its own docstring leaves it.
            lines.extend(["```python", *(line.replace("'''", '"""') for line in block), "```", ""])
            block.clear()

    for line in text.splitlines():
        if line.startswith("    ") or (block and not line):
            block.append(line.removeprefix("    "))
            continue
        end()
        lines.append(line)
    end()
    return "\n".join(lines).strip()


def _join(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str | None) -> str:
    return _join(text).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _write_value(value: Any) -> str:
    """Write a constant, or a type without the modules of its parts."""
    return repr(value) if isinstance(value, str | int) else _drop_modules(str(value))


def _drop_modules(text: str) -> str:
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


# Signatures.


def _list_members(cls: type) -> Iterator[tuple[str, Any]]:
    """List the methods and properties that a class has of the packages, its bases' too, as they are written."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] not in _OWN:
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(plain, property) or inspect.isfunction(plain):
                if not (plain.__doc__ or "").strip():
                    continue
                yield name, plain


def _write_signature(heading: str, called: Any) -> str:
    """Write how something is called, in lines of at most `WIDTH` characters."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return ""
    shown = [one for name, one in signature.parameters.items() if name not in ("self", "cls")]
    texts = list(_write_parameters(shown))
    function = inspect.unwrap(called)
    manages = inspect.isasyncgenfunction(function) and not inspect.isasyncgenfunction(called)
    prefix = "async " if inspect.iscoroutinefunction(called) else "async with " if manages else ""
    answer = "" if inspect.isclass(called) else _write_return(called)
    if manages:
        answer = re.sub(r"^Async(?:Iterator|Generator)\[([^,]*).*\]$", r"\1", answer)
    tail = f" -> {answer}" if answer else ""
    line = f"{prefix}{heading}({', '.join(texts)}){tail}"
    if len(line) > WIDTH:
        line = f"{prefix}{heading}(\n" + "".join(f"    {text},\n" for text in texts) + f"){tail}"
    return f"```python\n{line}\n```\n"


def _write_parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    kinds = inspect.Parameter
    positional, star = False, False
    for one in parameters:
        if positional and one.kind is not kinds.POSITIONAL_ONLY:
            yield "/"
        positional = one.kind is kinds.POSITIONAL_ONLY
        if one.kind is kinds.VAR_POSITIONAL:
            star = True
        elif one.kind is kinds.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        mark = "*" if one.kind is kinds.VAR_POSITIONAL else "**" if one.kind is kinds.VAR_KEYWORD else ""
        text = f"{mark}{one.name}"
        if one.annotation is not kinds.empty:
            text += f": {_write_annotation(one.annotation)}"
        if one.default is not kinds.empty:
            text += f" = {_write_default(one.default)}"
        yield text
    if positional:
        yield "/"


def _write_return(function: Any) -> str:
    annotation = inspect.signature(function).return_annotation
    return "" if annotation is inspect.Signature.empty else _write_annotation(annotation)


def _write_annotation(annotation: Any) -> str:
    if hasattr(annotation, "__forward_arg__"):
        annotation = annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else _drop_modules(inspect.formatannotation(annotation))


def _write_default(value: Any) -> str:
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
        return f"{type(value).__name__}()"
    text = repr(value)
    return "..." if "<" in text or len(text) > LONGEST_DEFAULT else text


def _find_options(value: Any) -> Iterator[tuple[str, type]]:
    """Find the typed dictionaries whose fields functions take as keywords."""
    functions = [value] if inspect.isfunction(value) else [member for _, member in _list_members(value)]
    for function in functions:
        if isinstance(function, property):
            continue
        keywords = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.kind is inspect.Parameter.VAR_KEYWORD
        ]
        for keyword in keywords:
            hint = get_type_hints(inspect.unwrap(function), include_extras=True).get(keyword.name)
            if get_origin(hint) is Unpack and is_typeddict(found := get_args(hint)[0]):
                yield found.__name__, found


__all__ = ["MODULES", "make_page", "slugify"]
