"""The architecture: which package may import which, and where the tests of a module are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {
    "clew": ROOT / "client" / "clew",
    "clew_pytest": ROOT / "client" / "clew_pytest",
    "clew_workflows": ROOT / "workflows" / "clew_workflows",
    "clew_activities": ROOT / "activities" / "clew_activities",
    "clew_audit": ROOT / "audit" / "clew_audit",
}
ORDER = (
    "clew_workflows.contract",
    "clew_workflows.values",
    "clew_workflows.encryption",
    "clew_workflows.temporal_faults",
    "clew_workflows.thread",
    "clew_workflows.protocol",
    "clew_workflows.session",
    "clew_workflows.host",
    "clew_workflows",
    "clew.contract",
    "clew.errors",
    "clew.hooks",
    "clew.thread",
    "clew.context",
    "clew.content",
    "clew.child_process",
    "clew.limited_process",
    "clew.tools",
    "clew.agents",
    "clew.comparison",
    "clew.report",
    "clew.session",
    "clew.json_schemas",
    "clew.schedules",
    "clew.ag_ui",
    "clew.workflow",
    "clew.local",
    "clew.serve",
    "clew.cli",
    "clew_activities",
    "clew_audit",
    "clew.testing",
    "clew_pytest",
)
"""The packages from low to high: a module imports nothing from a package later in this list."""
PURE = (
    "clew_workflows.contract",
    "clew_workflows.thread",
    "clew_workflows.protocol",
    "clew_workflows.values",
    "clew_workflows.session",
    "clew.tools",
    "clew.agents",
    "clew.comparison",
    "clew.report",
)
"""The packages that import nothing from `temporalio`."""
WORKER_MODULES = ("clew.operators", "clew.worker")
"""The modules of `clew` that import the worker's packages; they need the extra `worker`."""
EFFECTS = {"os", "pathlib", "random", "secrets", "shutil", "socket", "subprocess", "tempfile", "time", "uuid"}
"""Modules with clocks, randomness, the environment or IO."""
WITH_EFFECTS = (
    # It loads the vocabularies, before a workflow counts anything.
    "clew_workflows.contract.tokens",
    # What a process is started with: keys, nonces, the environment.
    "clew_workflows.encryption",
    # For clients.
    "clew_workflows.temporal_faults.exit_crash",
    "clew_workflows.temporal_faults.query_buffer",
)
"""The modules that have them although they lie beside what workflows run."""
IN_WORKFLOWS = (
    "task_commands",
    "slow_timers",
    "wrapped_converter",
    "storage_references",
    "failure_details",
)
"""The modules of `clew_workflows.temporal_faults` that workflows and their converters import, and no others."""
PYTHONS_OWN = {"_exit", "_current_frames", "_set_running_loop", "_Hash"}
"""Private parts of Python's modules that the sources use."""


@dataclass(frozen=True)
class Module:
    """A module of the source packages.

    Attributes:
        name: Its dotted name.
        is_package: Whether it is the `__init__` of a package.
        path: Its file.
    """

    name: str
    is_package: bool
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def package(self) -> str:
        """The package that contains it; for a package, the package itself."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@cache
def list_modules() -> dict[str, Module]:
    """List every module of the source packages; the key is its dotted name."""
    modules: dict[str, Module] = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules[name] = Module(name, is_package, path)
    return modules


@cache
def list_imports(module: Module) -> tuple[str, ...]:
    """List the dotted names that a module imports, at any level and under `TYPE_CHECKING` too."""
    return tuple(_find_imports(module))


def _find_imports(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}: a relative import"
            source = node.module or ""
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in list_modules() else source


@pytest.fixture(scope="module", autouse=True)
def _forget_modules() -> Iterator[None]:
    """Free the syntax trees: while they are there, each collection of garbage pauses the tests that follow."""
    yield
    list_modules.cache_clear()
    list_imports.cache_clear()


def find_rank(name: str) -> int | None:
    """Find the index of a module's package in `ORDER`; None: no package of `ORDER` contains the module."""
    packages = [package for package in ORDER if name == package or name.startswith(f"{package}.")]
    return ORDER.index(max(packages, key=len)) if packages else None


def test_every_module_has_a_rank() -> None:
    """`ORDER` lists the package of every module but `clew` itself and the worker modules."""
    assert {name for name in list_modules() if find_rank(name) is None} == {"clew", *WORKER_MODULES}


def test_imports_run_one_way() -> None:
    """A module imports nothing from a package above its own."""
    assert not [
        f"{name} imports {imported}"
        for name, module in list_modules().items()
        if (own := find_rank(name)) is not None
        for imported in list_imports(module)
        if (other := find_rank(imported)) is not None and other > own
    ]


def test_pure_modules_import_nothing_from_temporal() -> None:
    """The thread, its contexts, the contract and the session's decisions run without Temporal."""
    assert not [
        f"{name} imports {imported}"
        for name, module in list_modules().items()
        if any(name == package or name.startswith(f"{package}.") for package in PURE)
        for imported in list_imports(module)
        if imported.partition(".")[0] == "temporalio"
    ]


def test_replayed_code_has_no_effects() -> None:
    """Workflow code imports no clock, no randomness, no environment and no IO, and opens no file."""
    for name, module in list_modules().items():
        if not name.startswith("clew_workflows") or name.startswith(WITH_EFFECTS):
            continue
        imported = {imported.partition(".")[0] for imported in list_imports(module)}
        assert not imported & EFFECTS, name
        calls = [ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
        assert not [call for call in calls if call in ("open", "datetime.now", "datetime.utcnow")], name


def test_workflows_import_only_the_workarounds_that_run_in_them() -> None:
    """What clients and workers need of `clew_workflows.temporal_faults` is no part of the replayed code."""
    package = "clew_workflows.temporal_faults"
    assert not [
        f"{name} imports {imported}"
        for name, module in list_modules().items()
        if name.startswith("clew_workflows.") and not name.startswith(package)
        for imported in list_imports(module)
        if imported.startswith(package) and imported.removeprefix(f"{package}.") not in IN_WORKFLOWS
    ]


def test_only_workarounds_touch_private_parts_of_temporal() -> None:
    """`temporalio.bridge`, private modules and attributes: what a version of the SDK may change unannounced."""
    modules = [module for name, module in list_modules().items() if ".temporal_faults" not in name]
    own = {name for module in list_modules().values() for name in _list_private_definitions(module)} | PYTHONS_OWN
    touched = [
        f"{module.name} imports {imported}"
        for module in modules
        for imported in list_imports(module)
        if imported.startswith("temporalio.bridge") or (imported.startswith("temporalio.") and "._" in imported)
    ]
    touched += [
        f"{module.name}, line {line}: {name}"
        for module in modules
        for line, name in _list_private_uses(module)
        if name not in own
    ]
    assert not touched


def _list_definitions(module: Module) -> Iterator[tuple[int, str]]:
    """List the names that a module defines, each with its line."""
    for node in ast.walk(module.tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.alias(asname=str(name))
            ):
                yield node.lineno, name


def _list_private_definitions(module: Module) -> Iterator[str]:
    """List the private names that a module defines: functions, methods, fields and attributes."""
    yield from (name for _, name in _list_definitions(module) if _is_private(name))
    for node in ast.walk(module.tree):
        # As a field's name in a call, or in `__slots__`.
        if isinstance(node, ast.keyword) and node.arg and _is_private(node.arg):
            yield node.arg


def _list_private_uses(module: Module) -> Iterator[tuple[int, str]]:
    """List the private attributes that a module reads or sets, each with its line; by `getattr` and the like, too."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(attr=name) if _is_private(name):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]):
                if _is_private(name):
                    yield node.lineno, name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_only_the_worker_modules_of_the_client_import_the_workers_packages() -> None:
    """A backend can install `clew` without the worker's dependencies."""
    entering = {
        module.name
        for module in list_modules().values()
        if module.name.partition(".")[0] == "clew"
        and any(imported.partition(".")[0] in ("clew_activities", "clew_audit") for imported in list_imports(module))
    }
    assert {name for name in entering if not f"{name}.".startswith("clew.testing.")} == set(WORKER_MODULES)


def test_imports_have_no_cycle() -> None:
    """No module imports itself through others, under `TYPE_CHECKING` neither."""
    edges = {
        name: {imported for imported in list_imports(module) if imported in list_modules() and imported != name}
        for name, module in list_modules().items()
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
    """A module whose name begins with `_` is imported only by its own package."""
    entering = [
        f"{module.name} imports {imported}"
        for module in list_modules().values()
        for imported in list_imports(module)
        if (private := _find_private_package(imported)) and not f"{module.package}.".startswith(f"{private}.")
    ]
    assert not entering


def _find_private_package(name: str) -> str | None:
    """Find the package whose private module a dotted name contains; None: no part of the name is private."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:index])
    return None


TESTS = {
    "clew": "clew",
    "clew_workflows": "workflows",
    "clew_activities": "activities",
    "clew_audit": "audit",
}
"""The folder of `tests` that mirrors a package."""
_LISTED = re.compile(r"^`(?P<name>[\w/]+)`: (?P<tests>.+(?:\n(?![`\n]).+)*)", re.MULTILINE)
_TEST_MODULE = re.compile(r"\btests(?:/\w+)+|\btest_\w+")


def test_every_module_has_its_tests() -> None:
    """The mirrored folder has `test_<name>.py`, or the docstring of a mirrored folder says where the tests are.

    Its line is the path of the module within the folder, and the names of test modules. A package needs neither.
    """
    listed = {name for folder in TESTS.values() for name in _list_listed(ROOT / "tests" / folder)}
    missing: list[str] = []
    for module in list_modules().values():
        package, *folders = module.package.split(".")
        if module.is_package or package not in TESTS:
            continue
        path = ROOT.joinpath("tests", TESTS[package], *folders, module.path.stem.strip("_"))
        if not path.with_name(f"test_{path.name}.py").exists() and path not in listed:
            missing.append(str(path.relative_to(ROOT)))
    assert not missing


def test_listed_tests_exist() -> None:
    """A line of a folder's docstring names a module of the sources, and test modules that exist."""
    sources = {
        ROOT.joinpath("tests", TESTS[package], *folders, module.path.stem.strip("_"))
        for module in list_modules().values()
        for package, *folders in [module.package.split(".")]
        if package in TESTS and not module.is_package
    }
    for folder in TESTS.values():
        for path, tests in _list_listed(ROOT / "tests" / folder).items():
            assert path in sources, path
            assert tests, path
            assert all(test.exists() for test in tests), path


def _list_listed(folder: Path) -> dict[Path, list[Path]]:
    """List the modules that the docstrings of a folder of tests, and of those in it, name with their tests' files.

    The path of a module is that of its mirrored tests, without `test_` and the suffix.
    """
    listed: dict[Path, list[Path]] = {}
    for init in folder.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        for line in _LISTED.finditer(docstring):
            listed[init.parent / line["name"]] = [
                (ROOT if "/" in name else init.parent) / f"{name}.py" for name in _TEST_MODULE.findall(line["tests"])
            ]
    return listed
