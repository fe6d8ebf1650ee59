"""Random mutants of the pure core against its own fast tests: each survivor is a promise that no test holds.

    make mutants [COUNT=500] [SEED=1] [ONLY=session/runs]

Mutants are those of cosmic-ray: a comparison turned, `and` for `or`, a condition negated, a number or a truth value
changed. A first process runs the tests and notes which functions each of them calls. Then each mutant has a process
of its own, in which its function has the changed code, and which runs the tests that call it, the quickest first,
until one fails. `equivalent_mutants.txt` beside this module names those that change nothing, and why.
"""

from __future__ import annotations
import __future__

import argparse
import gc
import inspect
import os
import pickle
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

CORE = Path(__file__).parents[2] / "workflows" / "clew_workflows"
TESTS = tuple(f"tests/workflows/{name}" for name in ("session", "thread", "contract"))
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
MOST_SURVIVORS = 0.03
"""The share of mutants that may survive and are not named as equivalent."""
OPERATORS = (
    *(f"ReplaceComparisonOperator_{turned}" for turned in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
        "Is_IsNot", "IsNot_Is",
    )),
    *(f"ReplaceBinaryOperator_{changed}" for changed in ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul")),
    "ReplaceUnaryOperator_Delete_Not", "AddNot", "NumberReplacer", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
)  # fmt: skip
_CPU_SECONDS = 120
"""The most seconds of computing of a mutant: one that never ends is noticed."""

Function = tuple[str, str, int]
"""A function: its file, its qualified name, and its first line."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed function.

    Attributes:
        function: The function.
        code: Its changed code.
        line: The number of the first changed line.
        before: The line.
        after: The line as it is changed.
    """

    function: Function
    code: CodeType
    line: int
    before: str
    after: str

    @property
    def codes(self) -> dict[Function, CodeType]:
        """Its code, and that of the functions within it, which may have been made already."""
        return {_name(code): code for code in _list_within(self.code)}

    @property
    def name(self) -> str:
        """The file and the changed line, by which `equivalent_mutants.txt` names it."""
        return f"{Path(self.function[0]).relative_to(CORE)} | {self.after}"


def choose_mutants(seed: int, only: str) -> Iterator[Mutant]:
    """Choose random mutants, at most one for each place of a function's code."""
    paths = [path for part in ("session", "thread", "contract") for path in sorted((CORE / part).rglob("*.py"))]
    places = [place for path in paths if str(path.relative_to(CORE)).startswith(only) for place in _list_places(path)]
    choice = random.Random(seed)
    choice.shuffle(places)
    return (mutant for place in places if (mutant := _make_mutant(choice.choice(place))) is not None)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that an operator can make to one definition of a module.

    Attributes:
        path: The module.
        lines: The lines before the definition.
        definition: Its code.
        operator: The operator.
        occurrence: The number of the place, of those that the operator can change.
    """

    path: Path
    lines: int
    definition: str
    operator: str
    occurrence: int


def _list_places(path: Path) -> Iterator[list[_Change]]:
    """List the places of a module that operators can change, each with the changes."""
    ast, parso = import_module("cosmic_ray.ast"), import_module("parso")
    for child in parso.parse(path.read_text()).children:
        if child.type in ("funcdef", "classdef", "decorated"):
            definition, nodes = child.get_code(), list(ast.ast_nodes(child))
            lines = child.end_pos[0] - definition.count("\n") - 1
            places: dict[tuple[int, int], list[_Change]] = {}
            for name in OPERATORS:
                operator, found = _make_operator(name), 0
                for node in nodes:
                    for position, _ in operator.mutation_positions(node):
                        places.setdefault(position, []).append(_Change(path, lines, definition, name, found))
                        found += 1
            yield from places.values()


def _make_operator(name: str) -> Any:
    return import_module("cosmic_ray.operators.provider").OperatorProvider()[name]()


def _make_mutant(change: _Change) -> Mutant | None:
    """Make a mutant; None: it changes no function, or is no Python."""
    mutate = import_module("cosmic_ray.mutating").mutate_code
    changed = mutate(change.definition, _make_operator(change.operator), change.occurrence)
    try:
        after = _compile(change, changed)
    except SyntaxError:
        return None
    before = _compile(change, change.definition)
    for function, code in after.items():
        if code != before[function]:
            lines = zip(change.definition.splitlines(), changed.splitlines(), strict=True)
            number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
            return Mutant(function, code, change.lines + number, pair[0].strip(), pair[1].strip())
    return None


def _compile(change: _Change, definition: str) -> dict[Function, CodeType]:
    flags, source = __future__.annotations.compiler_flag, "\n" * change.lines + definition
    return dict(_list_functions(compile(source, str(change.path), "exec", flags, dont_inherit=True)))


def _list_functions(code: CodeType) -> Iterator[tuple[Function, CodeType]]:
    """List the functions of a module's or a class's code. What is defined within a function belongs to it."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & inspect.CO_OPTIMIZED:
                yield _name(part), part
            else:
                yield from _list_functions(part)


def _list_within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _list_within(part)


def _name(code: CodeType) -> Function:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Runner:
    """A plugin of pytest that runs the collected tests against each mutant instead of once."""

    def __init__(self, mutants: Iterator[Mutant], count: int) -> None:
        self.mutants = mutants
        self.count = count
        self.survivors: list[Mutant] = []
        self.problem: str | None = None
        self.tried = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Register a profile of generated examples that are the same in each process."""
        # pytest is to import it, not this module: its plugin's assertions are rewritten.
        settings = import_module("hypothesis").settings
        settings.register_profile("mutants", settings.get_profile("few"), derandomize=True, database=None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests against each mutant, silently."""
        session.config.pluginmanager.unregister(name="terminalreporter")
        items = [item for item in session.items if item.get_closest_marker("slow") is None]
        calls = _run_apart(lambda: _note_calls(items))
        if calls is None or session.testsfailed:
            self.problem = "the tests fail without a mutant"
            return True
        seconds = sum(took for took, _ in calls)
        _write(f"{len(items)} tests take {seconds:.0f} s of computing")
        tests: dict[Function, list[tuple[float, int]]] = {}
        for number, (took, functions) in enumerate(calls):
            for function in functions:
                tests.setdefault(function, []).append((took, number))
        functions = _find_functions()
        for number, mutant in enumerate(islice(self.mutants, self.count), 1):
            self.tried = number
            chosen = [
                items[index] for _, index in sorted({test for name in mutant.codes for test in tests.get(name, ())})
            ]
            if _run_apart(partial(_run_mutant, mutant, functions, chosen)):
                self.survivors.append(mutant)
                place = f"{Path(mutant.function[0]).relative_to(CORE)}:{mutant.line}"
                _write(f"{number}: {place} survives {len(chosen)} tests", f"- {mutant.before}", f"+ {mutant.after}")
        return True


def _note_calls(items: list[pytest.Item]) -> list[tuple[float, set[Function]]] | None:
    """Run the tests, and return the seconds of each and the functions of the core that it calls; None: one fails."""
    codes: set[CodeType] = set()
    core = str(CORE)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code not in codes and frame.f_code.co_filename.startswith(core):
            codes.add(frame.f_code)

    noted = []
    threading.setprofile(note)
    for item in items:
        codes.clear()
        began = time.process_time()
        sys.setprofile(note)
        _run(item)
        sys.setprofile(None)
        noted.append((time.process_time() - began, {_name(code) for code in codes}))
    return None if items[0].session.testsfailed else noted


def _run_mutant(mutant: Mutant, functions: dict[Function, list[FunctionType]], items: list[pytest.Item]) -> bool:
    """Run tests against a mutant; returns whether it survives."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    for name, code in mutant.codes.items():
        for function in functions.get(name, ()):
            function.__code__ = code
    for item in items:
        _run(item)
        if item.session.testsfailed:
            return False
    return True


def _run(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _find_functions() -> dict[Function, list[FunctionType]]:
    """Find the core's functions as they are in use, also those within classes and wrappers."""
    gc.unfreeze()
    found: dict[Function, list[FunctionType]] = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(str(CORE)):
            found.setdefault(_name(function.__code__), []).append(function)
    return found


def _run_apart(work: Callable[[], Any]) -> Any:
    """Run a function in a process of its own, silently, and return its answer; None: the process has died."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        answer = None
        try:
            answer = work()
        finally:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else None


def _write(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def read_equivalent() -> dict[str, str]:
    """Read the mutants that change nothing that anyone could notice, with the reasons."""
    lines = [line for line in EQUIVALENT.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.rsplit(" | ", 1) for line in lines)


def main() -> int:
    """Run random mutants; the exit status is 0 if few enough survive."""
    parser = argparse.ArgumentParser(description="Run the core's tests against random mutants of it.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="the beginning of the modules' path, like session/runs")
    arguments = parser.parse_args()
    runner = Runner(choose_mutants(arguments.seed, arguments.only), arguments.count)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=mutants"]
    pytest.main([*TESTS, *options], plugins=[runner])
    if runner.problem or not runner.tried:
        _write(runner.problem or "there is nothing to change")
        return 2
    known = read_equivalent()
    unknown = [mutant for mutant in runner.survivors if mutant.name not in known]
    share = len(unknown) / runner.tried
    equal = len(runner.survivors) - len(unknown)
    _write(f"{len(unknown)} of {runner.tried} mutants survive ({share:.1%}), beside {equal} that change nothing")
    return int(share > MOST_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main())
