"""The page about lists of sessions: its Python and its filter find a session that failed."""

from __future__ import annotations

import ast
import inspect
import re
from http import HTTPStatus
from typing import Any

from clew.local import Reply
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES
from docs.generate import DOCS
from tests.support.stack import Stack
from tests.support.waiting import wait_until

PAGE = (DOCS / "sessions.md").read_text(encoding="utf-8")


async def test_python_and_the_filter_find_a_failed_session(stack: Stack) -> None:
    """The list of the page has the session of `ann`, and so has what the server finds by the page's filter."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (query,) = re.findall(r"^```\n(ClewUser = .*)\n```", PAGE, re.MULTILINE)
    session = await stack.open(lambda _: Reply("no", status=HTTPStatus.BAD_REQUEST), metadata={"user": "ann"})
    await (await session.message("hello")).result()

    async def is_found() -> bool:
        names: dict[str, Any] = {"clew": stack.clew}
        running = eval(compile(code, "sessions.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)
        assert inspect.isawaitable(running)
        await running
        return session.id in {one.session_id for one in names["failed"]}

    await wait_until(is_found)
    since = re.sub(r"\d{4}-\d\d-\d\dT", "2020-01-01T", query)
    assert session.id in {one.session_id async for one in stack.clew.sessions(query=since)}


def test_the_table_has_every_search_attribute() -> None:
    """With its type."""
    assert dict(re.findall(r"^\| `(Clew\w+)` \| (\w+) \|", PAGE, re.MULTILINE)) == dict(SEARCH_ATTRIBUTES)
