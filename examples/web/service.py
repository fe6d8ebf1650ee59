"""A chat service on sessions: a session for each chat of each user. docs/web.md describes it.

clew dev --agents examples.web.agents
uvicorn examples.web.service:app --port 8000
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path as File
from typing import Annotated

from ag_ui.core import RunAgentInput
from fastapi import Cookie, Depends, FastAPI, Header, Path, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field, NonNegativeInt

from clew import Clew, Refusal, Session
from clew.ag_ui import run_agent


@asynccontextmanager
async def connect(app: FastAPI) -> AsyncIterator[None]:
    """Connect to the server that Temporal's environment names; by default to `clew dev`."""
    app.state.clew = await Clew.connect()
    yield


app = FastAPI(lifespan=connect)
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


class Text(BaseModel):
    """A text that the user sends; a repeated `id` has no effect."""

    id: str
    text: str


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
async def send(session: Opened, message: Text) -> None:
    """Send a message. It is durable when this returns."""
    await session.message(message.text, request_id=message.id, on_busy="queue")


@app.post("/chats/{chat}/steer")
async def steer(session: Known, message: Text) -> None:
    """Correct the request that is running."""
    await session.steer(message.text, input_id=message.id)


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
    """Serve a client of AG-UI. docs/ag-ui.md describes it."""
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
