"""The studio: pages for people, on the same routes as every other caller.

`page/` has its files, which need no build; it shares scripts and styles with the page of `clew.report`. A browser
loads them without a key. All that they show they ask of `/v1` with the key that a person has entered: the studio can
do what that key can do, and nothing else. It adds one route, that of windows: what each model call saw.
"""

from __future__ import annotations

import asyncio
import hashlib
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from clew.report.making import make_overview
from clew.report.page_document import SHARED_FOLDERS
from clew.report.report_types import Overview
from clew.serve.access import Authorized
from clew.serve.answers import ErrorBody, answer
from clew.serve.worker_watch import WatchedRoute

MOST_CALLS = 50
"""Most model calls whose windows are listed at once."""
PATH = "/studio/"
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The browser asks each time whether a file has changed: a deployment must not mix two versions.
    "Cache-Control": "no-cache",
}


router = APIRouter(route_class=WatchedRoute)


@router.get(
    "/v1/sessions/{session_id}/windows",
    tags=["sessions"],
    response_model=Overview,
    responses={"default": {"model": ErrorBody}},
)
async def list_windows(
    caller: Authorized, session_id: str, limit: Annotated[int, Query(ge=1, le=MOST_CALLS)] = 20
) -> JSONResponse:
    """Read the timeline, and the newest model calls: what each one saw, and what was left out and why."""
    session = caller.session(session_id)
    entries = [caller.reader.show_entry(entry) async for entry in session.read()]
    # Contexts of long threads take a second to build.
    return answer(caller, await asyncio.to_thread(make_overview, entries, limit))


@router.get(PATH.rstrip("/"), include_in_schema=False)
async def redirect() -> Response:
    """Lead to the page."""
    return RedirectResponse(PATH, 308)


@router.get(PATH, include_in_schema=False)
async def show_page(request: Request) -> Response:
    """Send the page."""
    return _answer(request, "index.html")


@router.get(PATH + "{name}", include_in_schema=False)
async def show_file(request: Request, name: str) -> Response:
    """Send a file of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    if (page := _pages.get(name)) is None:
        return Response("there is no such page", 404, media_type="text/plain")
    headers = {**_HEADERS, "ETag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    return Response(page.content, media_type=page.media_type, headers=headers)


class _Page:
    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.media_type = _TYPES[name.rpartition(".")[2]]
        self.etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _read_pages() -> dict[str, _Page]:
    """Read the files of the studio."""
    folders = [files("clew.serve.studio") / "page", *SHARED_FOLDERS]
    every = [file for folder in folders for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES]
    return {file.name: _Page(file.name, file.read_bytes()) for file in every}


_pages = _read_pages()
