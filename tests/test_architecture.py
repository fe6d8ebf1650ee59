"""The shape of the house: what may import what, and how large anything may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {
    "clew": ROOT / "client" / "clew",
    "clew_workflows": ROOT / "workflows" / "clew_workflows",
    "clew_activities": ROOT / "activities" / "clew_activities",
    "clew_audit": ROOT / "audit" / "clew_audit",
}
ORDER = (
    "clew.outcomes",
    "clew.errors",
    "clew.model",
    "clew.contract",
    "clew.thread",
    "clew.context",
    "clew.tools",
    "clew.session",
    "clew.cli",
    "clew_workflows.protocol",
    "clew_workflows.core",
    "clew_workflows.shell",
    "clew_workflows",
    "clew_activities",
    "clew_audit",
)
"""From below to above: a module imports nothing of a package that stands behind its own."""
PURE = (
    "clew.outcomes",
    "clew.errors",
    "clew.model",
    "clew.contract",
    "clew.thread",
    "clew.context",
    "clew.tools",
    "clew_workflows.core",
    "clew_workflows.protocol",
)
"""What needs no Temporal: it imports nothing of `temporalio`."""
DOORS = ("clew.operators", "clew.worker")
"""The modules of `clew` that import the worker's packages, where the extra `worker` is installed."""
MAX_MODULE_LINES = 420
MAX_CLASS_LINES = 320
LONG_MODULES: dict[str, str] = {}
LONG_CLASSES: dict[str, str] = {}


@dataclass(frozen=True)
class Module:
    """A module of the source packages.

    Attributes:
        name: Its dotted name.
        is_package: It is the `__init__` of a package.
        path: Its file.
        tree: Its syntax tree.
    """

    name: str
    is_package: bool
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that it stands in; a package stands in itself."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@cache
def modules() -> dict[str, Module]:
    """Every module of the source packages by its name."""
    found: dict[str, Module] = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(name, is_package, path, ast.parse(path.read_text(encoding="utf-8")))
    return found


def imports(module: Module) -> Iterator[str]:
    """The dotted names that a module imports anywhere in it, for type checkers alone included."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}: a relative import"
            source = node.module or ""
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in modules() else source


def rank(name: str) -> int | None:
    """The place of a module in `ORDER`; None: it is none of ours, or the face of `clew`, or a door."""
    fitting = [room for room in ORDER if name == room or name.startswith(f"{room}.")]
    return ORDER.index(max(fitting, key=len)) if fitting else None


def test_every_module_has_its_room() -> None:
    """A new package has to say where it stands."""
    assert {name for name in modules() if rank(name) is None} == {"clew", *DOORS}


@pytest.mark.parametrize("name", [name for name in modules() if rank(name) is not None])
def test_imports_run_one_way(name: str) -> None:
    """A module imports nothing of a package above its own."""
    own = rank(name)
    assert own is not None
    above = [found for found in imports(modules()[name]) if (place := rank(found)) is not None and place > own]
    assert not above


@pytest.mark.parametrize("name", sorted(modules()))
def test_what_is_pure_imports_nothing_of_temporal(name: str) -> None:
    """The thread, its contexts, the contract and the session's decisions run anywhere."""
    if any(name == room or name.startswith(f"{room}.") for room in PURE):
        assert not [found for found in imports(modules()[name]) if found.partition(".")[0] == "temporalio"]


def test_the_client_imports_the_workers_packages_at_its_doors_alone() -> None:
    """A backend installs `clew` without what the worker needs."""
    entering = {
        module.name
        for module in modules().values()
        if module.name.partition(".")[0] == "clew"
        and any(found.partition(".")[0] in SOURCES.keys() - {"clew"} for found in imports(module))
    }
    assert entering == set(DOORS)


def test_no_import_goes_round() -> None:
    """Imports have no cycle, those for type checkers included."""
    edges = {
        name: {found for found in imports(module) if found in modules() and found != name}
        for name, module in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for imported in sorted(edges[name]):
                visit(imported, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_private_modules_are_imported_within_their_package() -> None:
    """A module whose name begins with `_` is the matter of the package that it stands in."""
    entering = [
        f"{module.name} imports {found}"
        for module in modules().values()
        for found in imports(module)
        if (private := _private_part(found)) and not f"{module.package}.".startswith(f"{private}.")
    ]
    assert not entering


def test_tests_import_private_modules_of_what_they_mirror_alone() -> None:
    """`tests/clew/session` may test a private module of `clew.session`; no other test knows it."""
    entering = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        folder = path.parent.relative_to(ROOT / "tests").parts
        mirrored = ".".join(folder) if folder[:1] == ("clew",) else f"clew_{'.'.join(folder)}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            private = _private_part(node.module or "") if isinstance(node, ast.ImportFrom) else None
            if private and private.startswith("clew") and private != mirrored:
                entering.append(f"{path.name} imports from {private}")
    assert not entering


def _private_part(name: str) -> str | None:
    """The package whose private module a name leads into."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:place])
    return None


def test_nothing_is_too_long_to_be_read() -> None:
    """A module has at most 420 lines and a class 320, but for those that are listed with their reason."""
    lengths = {name: len(module.path.read_text(encoding="utf-8").splitlines()) for name, module in modules().items()}
    assert {name for name, lines in lengths.items() if lines > MAX_MODULE_LINES} == LONG_MODULES.keys()
    classes = {
        f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, module in modules().items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    assert {name for name, lines in classes.items() if lines > MAX_CLASS_LINES} == LONG_CLASSES.keys()
