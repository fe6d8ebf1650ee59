"""A store of a user's own: `CLEW_STORE` names the module that makes it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clew_activities.archive import Store, open_store
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack


@pytest.mark.slow
async def test_a_session_is_archived_in_it(stack: Stack, tmp_path: Path) -> None:
    """It hibernates, is opened again with all its entries, and is forked."""
    store = Store.from_url(f"module://tests.support.sqlite_store{tmp_path / 'objects.db'}")
    async with run_rolling_worker(stack, store=store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for number in range(3):
            await session.ask(f"question {number}")
        await session.hibernate()
        again = await clew.open(session.id)
        assert await again.ask("and now?") == "fine"
        fork = await again.fork()
        assert len(await fork.transcript()) == len(await again.transcript()) == 8
    assert [path async for path in store.list("default")]


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({}, "open_objects"),
        ({"open_objects": lambda _url: object()}, "list_after"),
        ({"open_objects": None}, "open_objects"),
    ],
)
def test_a_module_that_makes_no_store_is_refused(
    monkeypatch: pytest.MonkeyPatch, members: dict[str, Any], word: str
) -> None:
    """The error names the variable, the module and what it lacks, and so it does where there is no such module."""
    module = ModuleType("my_store")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, "my_store", module)
    with pytest.raises(ValueError, match=rf"CLEW_STORE.*my_store.*{word}"):
        open_store({"CLEW_STORE": "module://my_store/x"})
    with pytest.raises(ValueError, match=r"CLEW_STORE.*'no_such_store' cannot be imported"):
        open_store({"CLEW_STORE": "module://no_such_store/x"})
