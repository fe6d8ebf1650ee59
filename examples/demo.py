"""A demo of Clew in half a minute, on this machine only: run it with `make demo`.

It starts a Temporal server, a small language model and a worker, holds a conversation in a durable session,
runs tools, kills the worker in the middle of an answer, and shows that the session has lost nothing.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew import Clew, Session
from clew.contract.payloads import RunPayload, ToolMessage
from clew.local import (
    Reply,
    StartFailed,
    TemporalServer,
    ToolCall,
    Worker,
    model_server,
    scripted_model,
    temporal_server,
    worker_process,
)
from clew.session.events import EntryCommitted, SessionEvent, TextAdded
from clew_workflows.contract.content import get_text

SESSION = "demo"
SYSTEM_PROMPT = "You are a friendly assistant. Answer in one or two short sentences."
LOCAL, SCRIPTED = "local:smollm2", "scripted:shop-assistant"
LONG_ANSWER = (
    "Every message of this session is an event in its workflow's history, so nothing that was said lives in the "
    "worker alone. When a worker dies, Temporal misses its heartbeat within seconds and hands the call that was "
    "running to another one, which asks the session for exactly the context that the first one saw and starts "
    "the answer over. You read one complete answer, and the thread has it once."
)

console = Console(highlight=False)


@dataclass(frozen=True)
class Parts:
    """The running parts of the demo."""

    stack: AsyncExitStack
    server: TemporalServer
    providers: dict[str, str]
    worker: Worker

    async def start_worker(self) -> Worker:
        """Start another worker with the same settings."""
        return await self.stack.enter_async_context(_worker(self.server, self.providers))


def _worker(server: TemporalServer, providers: dict[str, str]) -> Any:
    return worker_process(server.address, env=providers, tools=["examples.tools"])


@asynccontextmanager
async def print_start(part: str) -> AsyncIterator[None]:
    """Print the part that starts, and the seconds that it took."""
    console.print(f"  {part} … ", end="")
    start = time.monotonic()
    yield
    console.print(f"[green]ready[/] after {time.monotonic() - start:.1f} s")


@asynccontextmanager
async def start_parts() -> AsyncIterator[Parts]:
    """Start all parts; stop them when the context ends."""
    async with AsyncExitStack() as stack:
        async with print_start("Temporal server and UI"):
            server = await stack.enter_async_context(temporal_server())
        async with print_start("local model, llama.cpp with SmolLM2-135M"):
            local = await stack.enter_async_context(model_server())
        async with print_start("scripted model, the same HTTP without a language model"):
            scripted = await stack.enter_async_context(scripted_model(shop_assistant))
        providers = {
            "CLEW_PROVIDER_LOCAL_BASE_URL": local,
            "CLEW_PROVIDER_SCRIPTED_BASE_URL": scripted.base_url,
            "CLEW_STORE": server.store,
        }
        async with print_start("worker, clew worker"):
            worker = await stack.enter_async_context(_worker(server, providers))
        yield Parts(stack, server, providers, worker)


def shop_assistant(body: dict[str, Any]) -> Reply:
    """Reply as the scripted model: look up an order, then its delivery, then answer; else reply at length."""
    messages: list[dict[str, Any]] = body["messages"]
    newest = max(index for index, message in enumerate(messages) if message["role"] == "user")
    order = "".join(filter(str.isdigit, messages[newest]["content"]))
    results = [message["content"] for message in messages[newest:] if message["role"] == "tool"]
    if not order:
        return Reply(LONG_ANSWER, tokens_per_second=25)
    if not results:
        return Reply("Let me look.", (ToolCall("lookup_order", {"order_id": int(order)}),))
    details = json.loads(results[0])
    if len(results) == 1:
        return Reply("When will it be there?", (ToolCall("estimate_delivery", {"city": details["city"]}),))
    day = results[1].strip('"')
    return Reply(f"Order {order} is {details['status']} and should reach {details['city']} on {day}.")


class Screen:
    """Prints a request's run: the replies while they arrive, and the tool results between them."""

    def __init__(self, model: str) -> None:
        self._label = model.partition(":")[0]
        self._call: tuple[str, int] | None = None

    def show(self, event: SessionEvent) -> None:
        """Print new text and tool results; mark a reply that starts over."""
        if isinstance(event, TextAdded):
            if (call := (event.call_id, event.attempt)) != self._call:
                self._end_line()
                again = f"[yellow](attempt {event.attempt}, from the start)[/] " if event.attempt > 1 else ""
                console.print(f"[bold magenta]{self._label:9}[/]{again}", end="")
                self._call = call
            console.print(escape(event.text), end="", soft_wrap=True)
        elif isinstance(event, EntryCommitted) and isinstance(message := event.entry.body, ToolMessage):
            self._end_line()
            result = f"{message.name} → {message.content}"
            console.print(f"[bold green]{'tool':9}[/]{escape(result)}", soft_wrap=True)

    def _end_line(self) -> None:
        if self._call is not None:
            console.print()
            self._call = None


async def talk(session: Session, content: str, model: str, victim: Parts | None = None) -> None:
    """Send a message and print the answer while it arrives; kill the worker of `victim` in the middle of it.

    Raises:
        RequestFailed: The run failed.
    """
    console.print(f"\n[bold cyan]{'you':9}[/]{escape(content)}")
    start = time.monotonic()
    screen, characters, note = Screen(model), 0, ""
    killed_at: float | None = None
    request = await session.message(content, model=model)
    async for event in request.events():
        if killed_at is not None and not note and isinstance(event, TextAdded) and event.attempt > 1:
            note = f"; another worker went on {time.monotonic() - killed_at:.1f} s after the kill"
        screen.show(event)
        characters += len(event.text) if isinstance(event, TextAdded) else 0
        if victim is not None and killed_at is None and characters > len(LONG_ANSWER) // 4:
            killed_at = await replace_worker(victim)
    await request.answer()
    console.print(f" [dim]({time.monotonic() - start:.1f} s{note})[/]")


async def replace_worker(parts: Parts) -> float:
    """Kill the worker with SIGKILL and start another. Returns when it was killed, by the monotonic clock."""
    await parts.worker.kill()
    killed_at = time.monotonic()
    console.print(f"\n[bold red]{'SIGKILL':9}[/]worker {parts.worker.pid} was killed in the middle of its answer")
    worker = await parts.start_worker()
    console.print(f"[bold green]{'worker':9}[/]{worker.pid} has started and takes the session over")
    return killed_at


async def converse(parts: Parts, session: Session) -> None:
    """Hold the three parts of the conversation."""
    console.rule("1  a conversation with the local model", align="left")
    await talk(session, "Hello! My name is Ada. What is a compass good for?", LOCAL)
    await talk(session, "And who made the first one?", LOCAL)

    console.rule("2  tools, run by the worker", align="left")
    console.print(
        "[dim]A model of this size does not call tools reliably: 6 of 32 tries were right. So from here on the "
        "answers come from a scripted model over the same HTTP. The tools and all other parts are real.[/]"
    )
    await talk(session, "Where is my order 1234?", SCRIPTED)

    console.rule("3  the worker is killed in the middle of an answer", align="left")
    await talk(session, "What happens to this session when its worker dies?", SCRIPTED, parts)


async def report(clew: Clew, server: TemporalServer, session: Session) -> None:
    """Print the transcript, the context, the size of the history and the page in the UI.

    Raises:
        SystemExit: A message or an outcome is missing or duplicated.
    """
    console.rule("what the session holds", align="left")
    table = Table("seq", "role", "content", box=None, pad_edge=False, header_style="dim")
    for message in await session.transcript():
        calls = [f"→ {call['name']}({json.dumps(call['arguments'])})" for call in message.get("tool_calls", ())]
        text = " ".join([get_text(message["content"]), *calls])
        table.add_row(str(message["seq"]), message["role"], escape(_shorten(text, console.width - 20)))
    console.print(table)

    context = await session.context()
    console.print(f"\n[bold]The context a model would see now:[/] {len(context.messages)} messages, and meta")
    for name, value in context.meta.as_dict().items():
        console.print(f"  {name:18} {value}", soft_wrap=True)

    description = await clew.temporal.get_workflow_handle(session.id).describe()
    size = description.raw_description.workflow_execution_info.history_size_bytes
    console.print(f"\n[bold]Event history:[/] {description.history_length} events, {size} bytes")
    console.print(f"[bold]In the Temporal UI:[/] {server.ui_workflow(session.id)}", soft_wrap=True)

    runs = [entry.read(RunPayload).status for entry in await session.entries(kind="run")]
    answers = [message for message in await session.transcript() if message["content"] == LONG_ANSWER]
    if runs != ["completed"] * 4 or len(answers) != 1:
        sys.exit(f"the demo failed: runs {runs}, the long answer {len(answers)} times")
    console.print("[bold green]4 requests, 4 outcomes, every message once.[/]")


def _shorten(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


async def main(keep: bool) -> None:
    """Run the demo; with `keep`, leave all parts running until Ctrl-C."""
    start = time.monotonic()
    console.rule("starting, everything on 127.0.0.1", align="left")
    async with start_parts() as parts:
        clew = await Clew.connect(parts.server.address, namespace=parts.server.namespace)
        session = await clew.open(
            SESSION,
            model=LOCAL,
            system_prompt=SYSTEM_PROMPT,
            tools=["lookup_order", "estimate_delivery"],
            model_options={"temperature": 0, "max_output_tokens": 100},
        )
        await converse(parts, session)
        await report(clew, parts.server, session)
        if keep:
            await _wait_for_interrupt(parts.server)
    console.print(f"[dim]All stopped and cleaned up. {time.monotonic() - start:.0f} s in all.[/]")


async def _wait_for_interrupt(server: TemporalServer) -> None:
    interrupted = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, interrupted.set)
    console.rule("still running, until Ctrl-C", align="left")
    console.print(f"  export TEMPORAL_ADDRESS={server.address}\n  .venv/bin/clew chat {SESSION}")
    await interrupted.wait()
    console.print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave it all running until Ctrl-C")
    arguments = parser.parse_args()
    # The demo uses its own server: ignore this shell's Temporal settings.
    for variable in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        del os.environ[variable]
    try:
        asyncio.run(main(arguments.keep))
    except StartFailed as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; everything is stopped")
