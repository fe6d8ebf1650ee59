"""Which functions of a folder are called, and how often, in all threads that begin after `Trace.watch`."""

from __future__ import annotations

import dis
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]


class Trace:
    """Counts calls while it records. The resumption of a generator or a coroutine is no call."""

    def __init__(self, *folders: str) -> None:
        self._folders = tuple(f"{ROOT / folder}/" for folder in folders)
        self._recording = False
        self._calls: Counter[CodeType] = Counter()

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self._calls.total()

    @property
    def functions(self) -> list[str]:
        """The functions that were called, by module and name."""
        return sorted(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}" for code in self._calls)

    @property
    def modules(self) -> list[str]:
        """The modules of these functions."""
        return sorted({name.partition(":")[0] for name in self.functions})

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch this thread, and the threads that begin meanwhile."""
        before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the calls of watched threads."""
        self._calls.clear()
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if not self._recording or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._folders) and frame.f_lasti == _find_start(code):
            self._calls[code] += 1


@cache
def _find_start(code: CodeType) -> int:
    """Find where the first call of a function begins. Comprehensions, which newer Pythons do not call, have none."""
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return -1
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")
