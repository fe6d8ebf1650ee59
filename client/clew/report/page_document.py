"""The page of a report: one HTML document with the scripts and styles of `page`, and with the report inside as JSON.

It loads nothing and needs no network. The page's policy names its script and its style sheet by their hashes, so that
no other script runs. The studio's page uses the same scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from string import Template

from clew.report.making import MAX_WINDOWS
from clew.report.page_media import PageMedia
from clew.report.report_types import Report

SHARED_FOLDERS = tuple(files("clew.report") / name for name in ("page", "vendor"))
"""The folders of the scripts and styles that this page and the studio's share; `vendor` has those of others."""

_IMPORT = re.compile(r'^import (?:(\w+)|\{(.+?)\}) from "\./(.+?)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|class|function\*?) (\w+))", re.MULTILINE)
_EXPORTS = re.compile(r"export ?\{([^{}]+)\};\s*(?://# .*)?\s*\Z")
# A script element must not be closed or nested by its content, and no character of a page may be hidden.
_UNSAFE = re.compile(
    "[<\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def render_page(report: Report, media: PageMedia | None = None) -> str:
    """Render the page of a report.

    `media`: the images that the page embeds and the files that it links; None: it names them alone.
    """
    media = media or PageMedia()
    style, script = _read("style.css"), _bundle("report.js")
    allowed = (
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'",
        *(["img-src data:"] if media.images else []),
        "base-uri 'none'",
        "form-action 'none'",
    )
    data = {
        "report": report.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
        "images": media.images,
        "links": media.links,
        "most_windows": MAX_WINDOWS,
    }
    return Template((files("clew.report") / "report.html").read_text(encoding="utf-8")).substitute(
        policy="; ".join(allowed),
        style=style,
        script=script,
        data=_UNSAFE.sub(_escape, json.dumps(data, ensure_ascii=False, separators=(",", ":"))),
    )


def _escape(match: re.Match[str]) -> str:
    """Write a character of a JSON string as its code."""
    return json.dumps(match[0])[1:-1] if match[0] not in "<\x7f" else f"\\u{ord(match[0]):04x}"


def _hash(source: str) -> str:
    """Make the hash by which the page's policy names a script or a style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


@cache
def _read(name: str) -> str:
    (file,) = [folder / name for folder in SHARED_FOLDERS if (folder / name).is_file()]
    return file.read_text(encoding="utf-8")


@cache
def _bundle(name: str) -> str:
    """Join a module and those that it imports into one script, in which each is a function that returns its exports.

    Imports and exports stand at the beginning of a line, except for the one list at the end of a module of others.
    """
    added: dict[str, str] = {}

    def add(name: str) -> None:
        source = _read(name)
        for imported in _IMPORT.finditer(source):
            if imported[3] not in added:
                add(imported[3])
        exports = _EXPORT.findall(source)
        if listed := _EXPORTS.search(source):
            source = source[: listed.start()]
            exports += (": ".join(reversed(pair.split(" as "))) for pair in map(str.strip, listed[1].split(",")))
        body = _EXPORT.sub("", _IMPORT.sub(_write_import, source))
        added[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exports)} }};\n}})();\n'

    add(name)
    return f'"use strict";\n(() => {{\nconst modules = {{}};\n{"".join(added.values())}}})();\n'


def _write_import(match: re.Match[str]) -> str:
    names = f"default: {match[1]}" if match[1] else match[2].replace(" as ", ": ")
    return f'const {{ {names} }} = modules["{match[3]}"];'
