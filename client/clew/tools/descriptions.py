"""Descriptions of arguments, from the docstring of a function: in Google's, NumPy's or Sphinx's style."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import docstring_parser
from docstring_parser import DocstringStyle

_GOOGLE = re.compile(r"(Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters):\s*")
_NUMPY = re.compile(r"(Parameters|Params|Arguments|Args|Other Parameters|Other Params|Other Args|Keyword Args)\s*")
_UNDERLINE = re.compile(r"-{2,}\s*")
_FIELD = re.compile(r"[:@](param|parameter|arg|argument|key|keyword|type)\s.*:.*", re.DOTALL)


def split_docstring(docstring: str, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description of a tool and those of its arguments.

    The part about the arguments leaves the tool's description. Where none of the parameters is described, the
    description is the docstring.

    Args:
        docstring: The docstring, without its indentation.
        parameters: The names of the function's parameters.
    """
    try:
        parsed = docstring_parser.parse(docstring)
    except docstring_parser.ParseError:
        return docstring, {}
    descriptions = {
        param.arg_name: " ".join(param.description.split())
        for param in parsed.params
        if param.arg_name in parameters and param.description
    }
    if not descriptions:
        return docstring, {}
    lines = docstring.splitlines()
    match parsed.style:
        case DocstringStyle.GOOGLE:
            kept = _drop_sections(lines, _GOOGLE)
        case DocstringStyle.NUMPYDOC:
            kept = _drop_numpy(lines)
        case _:
            kept = _drop_sections(lines, _FIELD)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), descriptions


def _drop_sections(lines: Sequence[str], title: re.Pattern[str]) -> list[str]:
    """Drop the sections whose first line matches, each up to the next line that is not indented."""
    kept: list[str] = []
    within = False
    for line in lines:
        if line and not line[0].isspace():
            within = title.fullmatch(line) is not None
        if not within:
            kept.append(line)
    return kept


def _drop_numpy(lines: Sequence[str]) -> list[str]:
    """Drop the sections of arguments, each up to the next underlined title."""
    kept: list[str] = []
    within = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line and _UNDERLINE.fullmatch(following):
            within = _NUMPY.fullmatch(line) is not None
        if not within:
            kept.append(line)
    return kept
