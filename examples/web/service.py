"""A chat service on sessions: a session for each chat of each user. docs/web.md describes it.

clew dev --agents examples.web.agents
uvicorn examples.web.service:app --port 8000
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path as File
from typing import Annotated

from ag_ui.core import RunAgentInput
from fastapi import Cookie, Depends, FastAPI, Header, HTTPException, Path, Query, Request
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field, NonNegativeInt

from clew import Clew, Refusal, Session
from clew.ag_ui import run_agent
from clew.content import AnyContent, find_raster_type
from clew.contract.content import Blob


@asynccontextmanager
async def connect(app: FastAPI) -> AsyncIterator[None]:
    """Connect to the server that Temporal's environment names; by default to `clew dev`."""
    app.state.clew = await Clew.connect()
    yield


app = FastAPI(lifespan=connect)
MAX_FILES = 10
"""Most files of a message."""
MAX_FILE_BYTES = 20_000_000
"""Largest file, in bytes. The session has limits of its own."""
NAME = r"^[A-Za-z0-9_.-]{1,64}$"
RECONNECT_MILLISECONDS = 500
"""Time after which a browser reconnects."""


async def get_user(user: Annotated[str, Cookie(pattern=NAME)]) -> str:
    """Stands for your authentication, REPLACE IT: anyone can write this cookie."""
    return user


User = Annotated[str, Depends(get_user)]


async def get_session(request: Request, chat: Annotated[str, Path(pattern=NAME)], user: User) -> Session:
    """Make the handle of a user's chat. No name has a colon: no user can name another user's session."""
    clew: Clew = request.app.state.clew
    return clew.session(f"web:{user}:{chat}")


Known = Annotated[Session, Depends(get_session)]


async def open_session(request: Request, session: Known, user: User) -> Session:
    """Start the session, or resume it if it hibernates. Lists of sessions can select those of a `user`."""
    clew: Clew = request.app.state.clew
    return await clew.open(session.id, agent="shop", metadata={"user": user})


Opened = Annotated[Session, Depends(open_session)]


class Message(BaseModel):
    """What the user sends: a text, and files that were uploaded before; a repeated `id` has no effect."""

    id: str
    text: str
    files: list[Blob] = Field(default=[], max_length=MAX_FILES)

    def make_content(self) -> AnyContent:
        """Make the content of the session's message."""
        if not self.files:
            return self.text
        kinds = [blob["media_type"].partition("/")[0] for blob in self.files]
        parts = [
            {"type": kind if kind in ("image", "audio") else "file", "blob": blob}
            for kind, blob in zip(kinds, self.files, strict=True)
        ]
        return [self.text, *parts] if self.text else parts


class Run(RunAgentInput):
    """An input of an AG-UI client: its thread is a chat."""

    thread_id: str = Field(pattern=NAME)


class Decision(BaseModel):
    """A user's decision about a tool call."""

    approve: bool


@app.get("/chats/{chat}/events", response_class=EventSourceResponse)
async def follow(
    session: Opened, after: NonNegativeInt = 0, last_event_id: Annotated[NonNegativeInt | None, Header()] = None
) -> AsyncIterator[ServerSentEvent]:
    """Send the events. The id of an event is its cursor, which the browser sends back when it reconnects."""
    async for event in session.follow(after if last_event_id is None else last_event_id):
        cursor = None if event.cursor is None else str(event.cursor)
        yield ServerSentEvent(data=event.as_dict(), id=cursor, retry=RECONNECT_MILLISECONDS)


@app.post("/chats/{chat}/messages")
async def send(session: Opened, message: Message) -> None:
    """Send a message. It is durable when this returns."""
    await session.message(message.make_content(), request_id=message.id, on_busy="queue")


@app.post("/chats/{chat}/files")
async def upload(
    request: Request, session: Opened, name: Annotated[str | None, Query(min_length=1, max_length=255)] = None
) -> Blob:
    """Store the file that the body is, and describe it. Its type is that of its first bytes."""

    async def read() -> AsyncIterator[bytes]:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > MAX_FILE_BYTES:
                raise HTTPException(413, f"the file has more than {MAX_FILE_BYTES} bytes")
            yield piece

    return await session.put_blob(read(), name=name)


@app.get("/chats/{chat}/files/{digest}")
async def download(session: Known, digest: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]) -> StreamingResponse:
    """Send a file of the chat. A browser shows images of four types, and saves all others: it runs none."""
    pieces = session.stream_blob(digest)
    first = await anext(pieces)
    shown = find_raster_type(first)

    async def read() -> AsyncIterator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return StreamingResponse(
        read(),
        media_type=shown or "application/octet-stream",
        headers={
            "Content-Disposition": "inline" if shown else "attachment",
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            # A digest always names the same bytes.
            "Cache-Control": "private, max-age=31536000, immutable",
        },
    )


@app.post("/chats/{chat}/steer")
async def steer(session: Known, message: Message) -> None:
    """Correct the request that is running."""
    await session.steer(message.make_content(), input_id=message.id)


@app.post("/chats/{chat}/cancel")
async def cancel(session: Known, request_id: str) -> None:
    """Cancel a request."""
    await session.cancel(request_id)


@app.post("/chats/{chat}/approvals/{tool_call_id}")
async def decide(session: Known, tool_call_id: str, decision: Decision) -> None:
    """Approve or deny a tool call."""
    await (session.approve(tool_call_id) if decision.approve else session.deny(tool_call_id))


@app.post("/ag-ui", response_class=EventSourceResponse)
async def run_chat(request: Request, run: Run, user: User) -> AsyncIterator[ServerSentEvent]:
    """Serve a client of AG-UI. docs/web.md describes it."""
    session = await open_session(request, await get_session(request, run.thread_id, user), user)
    async for event in run_agent(session, run):
        yield ServerSentEvent(raw_data=event.model_dump_json(by_alias=True))


@app.exception_handler(Refusal)
async def refuse(_: Request, refusal: Refusal) -> JSONResponse:
    """Tell the page why the session refused."""
    return JSONResponse({"type": refusal.type, "message": refusal.message}, status_code=409)


@app.get("/")
async def show_page() -> FileResponse:
    """Send the page."""
    return FileResponse(File(__file__).with_name("index.html"))
