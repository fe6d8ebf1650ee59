"""The contract page says what the code does: every name, field, bound, word and reason, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from clew.contract import SessionConfig
from clew.errors import REFUSALS, ContextOverflow, InvalidInput
from clew_activities.providers.provider_errors import ProviderError
from clew_activities.tools import stored_results
from clew_workflows.contract import limits
from clew_workflows.host import ingress, services
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from clew_workflows.host.handlers import SIGNALS
from clew_workflows.session import decisions, drafts, messages_taken, operations, requests, state
from docs.generate import CONTRACT, DOCS, REFERENCE, messages, page, stale, write
from docs.generate.messages import Exchange
from docs.generate.schemas import all_definitions
from tests.support.page_agents import deploy_agent
from tests.support.session_harness import SessionHarness
from tests.support.stack import Stack

REPOSITORY = DOCS.parent
TEMPORAL = Path(sys.executable).parent / "temporal"
SECONDS = 60
CONFIG = SessionConfig(model="local:scripted")
PAGE = (DOCS / CONTRACT).read_text()
FILLED = page.filled(PAGE, page.blocks(), CONTRACT)
"""The page with what is made from the code: the tables, and the docstrings of types."""
TOOL_OUTCOMES = {"tool_failed", "tool_timeout"}
"""How the activity of a tool fails: its session makes a result of that, which the model reads."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "message": {"content": "hello"},
    "await_request": {"request_id": "r-1"},
    "submit_input": {"kind": "steer", "content": "hello"},
    "submit_context_operation": {"op_id": "op-1", "operation": {"type": "expand"}},
    "configure": {},
    "cancel_request": {},
    "resolve_approval": {"tool_call_id": "t-1", "decision": "approve"},
    "submit_tool_result": {"tool_call_id": "t-1", "content": "done"},
    "summarize": {},
    "checkpoint": {},
    "hibernate": {},
    "close_session": {},
    "context": {},
    "transcript": {},
    "window": {"token_budget": 100},
    "follow": {"from_seq": 3},
    "entries": {},
}


def make_raw(value: dict[str, Any]) -> RawValue:
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=to_json(value)))


@pytest.mark.slow
async def test_the_commands_start_a_session_and_ask_it(stack: Stack) -> None:
    """Temporal's own command line is a client: it gets an outcome, and reads the thread."""
    commands = PAGE.partition("```\n")[2].partition("```")[0]
    agent = (
        'from clew import Agent\nsupport = Agent("support", model="openai:gpt-4o-mini", system_prompt="You help.")'
    )
    async with deploy_agent(stack, agent, "support", stack.add_model("It is shipped.")) as client:
        typed = commands.replace("--task-queue clew", f"--task-queue {client.task_queue}")
        typed = typed.replace("ada-1", f"page-{uuid.uuid4().hex}").replace("temporal ", f"{TEMPORAL} ")
        environ = {
            **os.environ,
            "TEMPORAL_ADDRESS": stack.server.address,
            "TEMPORAL_NAMESPACE": client.temporal.namespace,
        }
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-euc", typed), env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(SECONDS):
            out, _ = await shell.communicate()
    assert shell.returncode == 0, out.decode()
    assert "completed" in out.decode()
    assert "It is shipped." in out.decode()


def list_names(error: InvalidInput) -> set[str]:
    """The names that a refusal of an unknown name lists."""
    _, _, listed = str(error).partition(": ")
    return set(re.findall(r"\w+", listed)) - {"one", "of", "or"}


def read_table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without the header."""
    section = PAGE.split(f"{heading}\n", 1)[1]
    lines = section[section.index("\n|") + 1 :].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_what_is_made_from_the_code_is_current() -> None:
    """Schemas, declarations and tables are those of the code; `make pages` makes them anew."""
    assert stale(DOCS) == []


def copy_pages(folder: Path) -> None:
    (folder / REFERENCE).mkdir()
    for path in [DOCS / CONTRACT, *(DOCS / REFERENCE).iterdir()]:
        (folder / path.relative_to(DOCS)).write_text(path.read_text())


def test_a_changed_table_is_found_and_put_right(tmp_path: Path) -> None:
    """What differs from the code is named, and written again by the generator. The contract has no table of types."""
    copy_pages(tmp_path)
    routes = REFERENCE / "http.md"
    (tmp_path / routes).write_text((DOCS / routes).read_text().replace("`POST /v1/", "`PUT /v1/"))
    (tmp_path / CONTRACT).write_text(page.filled(PAGE, page.blocks(), CONTRACT))
    assert {CONTRACT, routes} <= set(stale(tmp_path))
    write(tmp_path)
    assert stale(tmp_path) == []
    assert (tmp_path / CONTRACT).read_text() == PAGE


def test_a_file_that_is_made_no_more_is_found_and_removed(tmp_path: Path) -> None:
    """What the generator has left behind does not stay."""
    copy_pages(tmp_path)
    write(tmp_path)
    (tmp_path / "schemas" / "Gone.json").write_text("{}")
    assert stale(tmp_path) == [Path("schemas/Gone.json")]
    write(tmp_path)
    assert stale(tmp_path) == []


def test_the_site_has_the_tables() -> None:
    """Each type with its fields."""
    assert "| `max_iterations?` |" in FILLED


def test_a_page_without_a_table_is_refused() -> None:
    """A new type needs a place on the page."""
    with pytest.raises(ValueError, match="Usage"):
        page.filled(
            re.sub(r"<!-- begin Usage -->.*?<!-- end -->", "", PAGE, flags=re.DOTALL), page.blocks(), CONTRACT
        )


def test_every_type_and_every_field_is_explained() -> None:
    """Each has a sentence in its docstring, which the page, the schemas and the declarations repeat."""
    definitions = all_definitions()
    fields = {
        f"{name}.{field}": value
        for name, type_ in definitions.items()
        for field, value in type_.get("properties", {}).items()
    }
    assert [name for name, value in (definitions | fields).items() if not value.get("description")] == []
    assert len(fields) > len(definitions) > 100


def test_updates_are_those_that_the_session_takes() -> None:
    """The page has each update that a session knows, and no other."""
    with pytest.raises(InvalidInput) as refused:
        ingress.decode_update("nonsense", [], CONFIG)
    assert {one.name for one in messages.UPDATES} == list_names(refused.value)


def test_signals_are_those_that_the_session_takes() -> None:
    """The page has each signal that a session knows, and no other."""
    assert {one.name for one in messages.SIGNALS} == set(SIGNALS)


def test_queries_are_those_that_the_session_answers() -> None:
    """The page has each query that a session knows, and no other."""
    with pytest.raises(InvalidInput) as refused:
        ingress.decode_query("nonsense", [])
    assert {one.name for one in messages.QUERIES} == list_names(refused.value)


def test_workflows_are_those_that_a_worker_serves() -> None:
    """The page has each workflow type beside `AgentSession`."""
    served = {getattr(served, "__temporal_workflow_definition").name for served in services.SERVICES}
    assert {one.name for one in messages.WORKFLOWS} == served


@pytest.mark.parametrize("update", messages.UPDATES, ids=lambda one: one.name)
def test_updates_are_decoded_as_the_page_says(update: Exchange) -> None:
    """Each update has the input that the page names, and may come without one where it says so."""
    assert type(ingress.decode_update(update.name, [make_raw(EXAMPLES[update.name])], CONFIG)) is update.input
    if update.bare:
        assert type(ingress.decode_update(update.name, [], CONFIG)) is update.input
    else:
        with pytest.raises(InvalidInput):
            ingress.decode_update(update.name, [], CONFIG)


@pytest.mark.parametrize("query", [one for one in messages.QUERIES if one.input], ids=lambda one: one.name)
def test_queries_are_decoded_as_the_page_says(query: Exchange) -> None:
    """Each query has the input that the page names, and may come without one where it says so."""
    assert type(ingress.decode_query(query.name, [make_raw(EXAMPLES[query.name])])) is query.input
    if query.bare:
        assert type(ingress.decode_query(query.name, [])) is query.input
    else:
        with pytest.raises(InvalidInput):
            ingress.decode_query(query.name, [])


def test_every_word_of_a_message_is_a_refusal() -> None:
    """The tables of messages use words of the table of refusals, and all of them."""
    used = {
        *(word for one in messages.MESSAGES for word in one.refusals),
        *messages.COMMON_UPDATE_REFUSALS,
        *messages.COMMON_QUERY_REFUSALS,
        *messages.COMMON_WORKFLOW_REFUSALS,
    }
    assert used == {*REFUSALS, ContextOverflow.type}


def test_common_words_stand_in_the_text() -> None:
    """What the tables leave out because all messages of a kind share it, the text says."""
    for words, begins in (
        (messages.COMMON_UPDATE_REFUSALS, "Every update may also be refused with"),
        (messages.COMMON_QUERY_REFUSALS, "Every query but `status` may also be refused with"),
        (messages.COMMON_WORKFLOW_REFUSALS, "Each of these workflows may also fail with"),
    ):
        sentence = re.split(r"[.;]\s", PAGE.split(begins, 1)[1], maxsplit=1)[0]
        assert set(re.findall(r"`(\w+)`", sentence)) == set(words)


def test_error_types_are_those_that_the_code_gives() -> None:
    """The page has each type that a failure in the code has, and no other but refusals."""
    named = {cells[0].strip("`") for cells in read_table("## Error types")}
    given = {
        *_list_failures(),
        *(error.type for error in _list_subclasses(ProviderError) if error.type != ProviderError.type),
    }
    assert given - named - TOOL_OUTCOMES - set(REFUSALS) == set()
    assert named - given <= {*REFUSALS, ContextOverflow.type}


def end_request() -> dict[tuple[str, str], Callable[[SessionHarness], object]]:
    """How a request ends, and what brings that about while its model is called."""
    return {
        ("completed", "final_answer"): lambda session: session.reply("this"),
        ("completed", "max_output_tokens"): lambda session: session.reply("thi", stop_reason="length"),
        ("completed", "max_iterations"): lambda session: session.reply("", "look"),
        ("cancelled", "cancelled"): lambda session: session.cancel(),
        ("cancelled", "interrupted"): lambda session: session.ask("rather that", on_busy="interrupt"),
        ("cancelled", "closed"): lambda session: session.close(),
        ("cancelled", "recovered"): lambda session: session.apply(decisions.recover(session.state, session.now)),
    }


def test_termination_reasons_are_all_on_the_page() -> None:
    """The table has these, and error types."""
    named = {(cells[0].strip("`"), cells[1].strip("`")) for cells in read_table("### Termination reasons")}
    assert named == {*end_request(), ("failed", "an error type")}


@pytest.mark.parametrize("wanted", end_request(), ids=" ".join)
def test_termination_reasons_are_those_that_requests_end_with(wanted: tuple[str, str]) -> None:
    """What the table says of how a request ends is so."""
    session = SessionHarness(max_iterations=1)
    session.ask("what?", request_id="r-1")
    end_request()[wanted](session)
    assert session.find_ending("r-1") == wanted


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (limits.MAX_MESSAGE_BYTES, "An input has at most {} bytes"),
        (ingress.MAX_DEPTH, "and {} levels of nesting"),
        (limits.MAX_TOOLS_BYTES, "The schemas of all tools together have at most {}"),
        (int(HEARTBEAT_TIMEOUT.total_seconds()), "or within {} seconds if the worker is lost"),
        (limits.MAX_WAITERS, "When more than {} callers of a session wait"),
        (limits.WAIT_SECONDS, "has waited for {} seconds or longer"),
        (requests.MAX_OUTCOMES, "the newest {} requests"),
        (messages_taken.MAX_RECEIPTS, "{} inputs and"),
        (state.MAX_KNOWN_OPS, "{} operations, also after a rollover"),
        (state.MAX_WAITING, "{} messages or 512 KiB"),
        (operations.MAX_PINNED, "At most {} messages of a lane are pinned"),
        (limits.MAX_SCHEMA_BYTES, "An `output_schema` has at most {} bytes"),
        (limits.MAX_SCHEMA_DEPTH, "{} levels, 3 000 subschemas"),
        (limits.MAX_SUBSCHEMAS, "{} subschemas"),
        (limits.MAX_OVERLAY, "{} that apply to one value"),
        (requests.MAX_PROFILES, "each of the newest {} models"),
        (drafts.EXCERPT_CHARACTERS, "the first {} characters of its payload"),
        (limits.MAX_TOKEN_BYTES, "A token has at most {} bytes"),
        (stored_results.MAX_STORED_BYTES, "the first {} bytes of a result"),
    ],
)
def test_bounds_in_the_text_are_those_of_the_code(value: int, sentence: str) -> None:
    """A bound that no type has, and that the text names, changes with the code."""
    assert sentence.format(f"{value:,}".replace(",", " ")) in " ".join(FILLED.split())


def _list_subclasses(cls: type[ProviderError]) -> Iterator[type[ProviderError]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _list_subclasses(below)


def _parse_modules(*folders: str) -> Iterator[ast.AST]:
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield ast.parse(path.read_text())


def _list_failures() -> Iterator[str]:
    """Every word that the code gives a failure as its type."""
    for tree in _parse_modules("workflows", "activities"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _get_name(node.func) in ("Failure", "ApplicationError"):
                yield from (
                    keyword.value.value
                    for keyword in node.keywords
                    if keyword.arg == "type"
                    and isinstance(keyword.value, ast.Constant)
                    and isinstance(keyword.value.value, str)
                )


def _get_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
