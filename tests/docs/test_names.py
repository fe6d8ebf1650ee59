"""The pages name code, files, commands and variables that exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import clew
import clew_activities
import clew_audit
import clew_workflows
from clew.cli.app import app
from docs.generate import DOCS, REFERENCE
from tests.support.page_code import list_blocks

PAGES = ("architecture.md", "extending.md")
ALL = [*sorted(DOCS.glob("*.md")), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md"))]
OURS = ("bench", "clew", "docs", "tests")
PACKAGES = (clew, clew_workflows, clew_activities, clew_audit)
_NAME = re.compile(r"`(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*?\))?`")
_ENDINGS = ("md", "py", "json", "ts")


@cache
def list_modules() -> dict[str, ModuleType]:
    """Every module of the packages, by its full name."""
    found = {package.__name__: package for package in PACKAGES}
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                found[module.name] = importlib.import_module(module.name)
    return found


def find_owners(first: str) -> Iterator[Any]:
    """Modules whose name, or the end of it, is this, and classes of this name."""
    for name, module in list_modules().items():
        if name == first or name.endswith(f".{first}"):
            yield module
        if isinstance(getattr(module, first, None), type):
            yield getattr(module, first)


def is_found(name: str) -> bool:
    """Whether a dotted name leads somewhere: a module, or `module.name`, or `Class.member`."""
    if name in list_modules():
        return True
    parts = name.split(".")
    for split in range(1, len(parts)):
        for owner in find_owners(".".join(parts[:split])):
            found: Any = owner
            for part in parts[split:]:
                found = getattr(found, part, None)
            if found is not None:
                return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_the_page_exists(page: str) -> None:
    """A function, a method or a module that a page names is in the code, under that name."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    names = {match["name"] for match in _NAME.finditer(text)}
    named = {name for name in names if name.rpartition(".")[2] not in _ENDINGS}
    assert sorted(name for name in named if not is_found(name)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_private_name_on_the_page_exists(page: str) -> None:
    """A table or a function within a module, named alone, is in one of the packages."""
    named = re.findall(r"`(_[A-Za-z]\w*)`", (DOCS / page).read_text())
    assert (
        sorted(name for name in named if not any(hasattr(module, name) for module in list_modules().values())) == []
    )


@pytest.mark.parametrize("page", [*PAGES, "../CONTRIBUTING.md", "../README.md"])
def test_every_file_on_the_page_exists(page: str) -> None:
    """A path that a page names is in the repository."""
    named = re.findall(r"`((?:\w+/)+\w[\w.]*/?)`", (DOCS / page).read_text())
    assert sorted(path for path in named if not (DOCS.parent / path).exists()) == []


def test_every_command_on_the_pages_exists() -> None:
    """`clew WORD` is a command, `make WORD` a target, `python -m MODULE` a module of the repository."""
    blocks = [block for page in ALL for language in ("", "sh", "bash") for block in list_blocks(str(page), language)]
    text = re.sub(
        r"^ *```.*?^ *```$", "", "\n".join(page.read_text() for page in ALL), flags=re.DOTALL | re.MULTILINE
    )
    code = "\n".join([*blocks, *re.findall(r"`[^`\n]+`", text)])
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"(?:^|[`;|] ?|\$\(|until )clew ([a-z][a-z-]*)", code, re.MULTILINE)) - commands == set()
    targets = set(re.findall(r"^([a-z-]+):", (DOCS.parent / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^[`]?make ([a-z][a-z-]*)", code, re.MULTILINE)) - targets == set()
    modules = set(re.findall(r"python -m ([a-z_.]+\w)", code))
    assert {name for name in modules if name.partition(".")[0] in OURS and find_spec(name) is None} == set()


NAMED_BY_TEAMS = ("CLEW_PROVIDER", "CLEW_WEBHOOK_SECRET")
"""The beginnings of variables whose rest a team chooses."""


def test_the_reference_has_every_variable() -> None:
    """A variable that the packages read is in its tables, and every variable of a page is one that they read."""
    code = "\n".join(path.read_text() for package in PACKAGES for path in Path(package.__path__[0]).rglob("*.py"))
    read = set(re.findall(r"\bCLEW_[A-Z_]*[A-Z]\b", code)) - {"CLEW_PROVIDER_LOCAL_BASE_URL"}
    page = (DOCS / REFERENCE / "variables.md").read_text()
    assert sorted(name for name in read if f"`{name}`" not in page) == []
    named = {name for each in ALL for name in re.findall(r"\bCLEW_[A-Z_]*[A-Z]\b", each.read_text())}
    assert sorted(name for name in named - read if not name.startswith(NAMED_BY_TEAMS)) == []


def test_a_name_that_is_not_there_is_noticed() -> None:
    """The check finds what it is for."""
    assert is_found("runs.open_run")
    assert is_found("Session.message")
    assert is_found("clew_workflows.session.runs")
    assert not is_found("runs.open_runs")
    assert not is_found("Session.massage")
    assert not is_found("clew_workflows.session.walks")
