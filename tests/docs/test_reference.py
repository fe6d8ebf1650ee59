"""The reference says what the code has."""

from __future__ import annotations

import ast
import importlib
import re

import pytest
from typer.main import get_command

from clew import Agent, Session
from clew.cli.app import app
from clew_activities.providers.dialects import DIALECTS, MESSAGES_DIALECTS, find_dialect
from docs.generate import DOCS, PAGES, REFERENCE, commands, extras, limits, metrics, providers, python_api
from docs.generate.python_api import slugify
from tests.docs.test_calls import list_options

TELEMETRY = (
    *("activities/clew_activities/telemetry/metrics.py", "activities/clew_activities/worker/observability.py"),
    *("client/clew/serve/gate.py", "workflows/clew_workflows/host/telemetry.py"),
)
SPANS = "activities/clew_activities/telemetry/spans.py"


def read(name: str) -> str:
    return (DOCS / REFERENCE / name).read_text(encoding="utf-8")


def list_texts(path: str) -> set[str]:
    """The texts in a file of Python."""
    tree = ast.parse((DOCS.parent / path).read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


# Python.


def test_every_public_name_is_described() -> None:
    """Each name of a module that programs import has a heading, or is named where it is described."""
    page = read("python-api.md")
    for name in python_api.MODULES:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        module = importlib.import_module(name)
        public = python_api.PUBLIC.get(name) or module.__all__
        lacking = [
            one
            for one in public
            if callable(getattr(module, one))
            and isinstance(getattr(module, one), type | type(slugify))
            and not re.search(rf"^### (?:[\w.]+\.)?{one}$|\[{one}\]|`{one}`", section, re.MULTILINE)
        ]
        assert lacking == [], name


@pytest.mark.parametrize(("cls", "heading"), [(Agent, "Agent"), (Session, "Session")])
def test_every_parameter_and_member_is_described(cls: type, heading: str) -> None:
    """What users of the two largest classes can call and set."""
    page = read("python-api.md")
    section = page.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    for name, member in python_api._list_members(cls):
        assert (f"| `{name}` |" if isinstance(member, property) else f"#### {heading}.{name}\n") in section
    for name in vars(cls).get("__dataclass_fields__", ()):
        assert f"| `{name}` |" in section


def test_options_have_meanings() -> None:
    """The keywords that `Session.message` takes are described at their own heading."""
    section = read("python-api.md").partition("\n### MessageOptions\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    assert {"request_id", "on_busy", "timeout_seconds"} <= {name for name, _, _ in rows}
    assert [name for name, type_, meaning in rows if not (type_ and meaning)] == []


@pytest.mark.parametrize("name", PAGES)
def test_code_needs_no_scroll_bar(name: str) -> None:
    """A line of a block has at most 100 columns."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", read(name), re.DOTALL | re.MULTILINE)
    long = [line for block in blocks for line in block.splitlines() if len(line) > 100]
    assert long == []


@pytest.mark.parametrize("name", PAGES)
def test_links_within_a_page_lead_to_headings(name: str) -> None:
    """Anchors are those of the site and of GitHub."""
    page = read(name)
    anchors = {slugify(heading) for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) - anchors == set()


# Commands.


def test_every_command_is_described_with_its_options() -> None:
    """Beside those that many commands have."""
    page = read("commands.md")
    listed = dict(commands.list_commands())
    names = set(listed)
    assert {name.partition(" ")[0] for name in names} == set(get_command(app).commands)  # type: ignore[attr-defined]
    for name in names:
        section = page.partition(f"\n### clew {name}\n")[2].partition("\n### ")[0]
        options = {one for one in list_options()[name] if one.startswith("--")} - {*commands.COMMON, "--help"}
        hidden = {one for param in listed[name].params if getattr(param, "hidden", False) for one in param.opts}
        assert sorted(one for one in options - hidden if one not in section) == [], name


# Providers.


def test_the_table_says_where_messages_are_sent_as_they_are() -> None:
    """Each dialect has a row, or the page cannot be made."""
    rows = {row[0].strip("`"): row for row in providers.list_dialects()}
    assert rows.keys() == set(DIALECTS) - {"anthropic"}
    for name, row in rows.items():
        assert (row[2] == "as they are") == (DIALECTS[name].system == "anywhere"), name
    assert len(list(providers.list_messages_dialects())) == len(set(MESSAGES_DIALECTS) - {"anthropic"})


def test_a_provider_that_is_configured_as_the_page_says_has_its_dialect() -> None:
    """The table needs no variable for it: the host or the name is enough."""
    rows = list(providers.list_providers())
    assert len(rows) >= len(DIALECTS) - 2
    for name, variables, _ in rows:
        provider = name.strip("`")
        if provider not in ("openai", "anthropic", "google", "bedrock"):
            url = re.search(r"_BASE_URL=([^`]*)", variables)
            assert url is not None, provider
            assert find_dialect("m", url[1]).name == provider or "127.0.0.1" in url[1]
            assert find_dialect(provider, url[1]).name == provider


# Metrics and spans.


def test_every_metric_is_described() -> None:
    """Those that the code makes; Prometheus adds `_total` to counters."""
    made = {text for path in TELEMETRY for text in list_texts(path) if re.fullmatch(r"clew_[a-z_]+", text)}
    listed = {name.removesuffix("_total") for name, *_ in (*metrics.METRICS, *metrics.SERVICE_METRICS)}
    assert listed == {name for name in made if name not in ("clew_activities", "clew_workflows")}


def test_every_attribute_of_a_span_is_described() -> None:
    """Those of GenAI's conventions, and Clew's own."""
    made = {text for text in list_texts(SPANS) if re.fullmatch(r"(?:gen_ai|clew|error)(?:\.[a-z_]+)+", text)}
    listed = {name for _, _, attributes in metrics.SPANS for name in attributes} | set(metrics.TEXTS)
    assert listed == made


# The rest.


def test_every_extra_has_a_meaning() -> None:
    """And none has one that the project does not have."""
    page = extras.make_page()
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(extras.MEANINGS)


def test_limits_are_written_for_readers() -> None:
    """With units, and with spaces between thousands."""
    rows = [*limits.list_input_limits(), *limits.list_time_limits(), *limits.list_session_limits()]
    assert len({name for name, _, _ in rows}) == len(rows)
    assert {name: value for name, value, _ in rows}["remembered operations"] == "the newest 128"
    assert all(beyond for _, _, beyond in rows)
    assert "the newest 1 000 of each" in limits.make_page()
