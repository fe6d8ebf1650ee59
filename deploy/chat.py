"""Talk to a session in the terminal: run it with `make chat`.

Where `TEMPORAL_ADDRESS` is not set, an embedded Temporal server, the local model and a worker are started
first and end with the conversation. The sessions are kept in `.venv/chat.db` and go on the next time.
"""

import argparse
import asyncio
import fcntl
import os
import signal
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from deploy.local import StartFailed, model_server, temporal_server, worker_process

LOCAL_MODEL = "local:smollm2"


async def run_clew(*arguments: str, env: Mapping[str, str]) -> int:
    """Run the command `clew` in this terminal, which is the one that Ctrl-C belongs to."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    command = Path(sysconfig.get_path("scripts"), "clew")
    process = await asyncio.create_subprocess_exec(command, *arguments, env=env)
    try:
        return await process.wait()
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def only_user_of(database: Path) -> Iterator[None]:
    """Keep a second server away from the same file.

    Raises:
        StartFailed: Another one uses it.
    """
    with database.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(f"another chat uses {database}: leave it first, or join it in its terminal") from None
        yield


async def main(session: str, model: str | None, database: Path) -> int:
    """Start what is missing, then `clew chat`; its exit status."""
    if "TEMPORAL_ADDRESS" in os.environ:
        return await run_clew("chat", session, *(["--model", model] if model else []), env=os.environ)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_user_of(database))
        print("Starting the Temporal server, the local model and a worker …", flush=True)
        server = await stack.enter_async_context(temporal_server(db_filename=database))
        model_url = await stack.enter_async_context(model_server())
        settings = {"CLEW_PROVIDER_LOCAL_BASE_URL": model_url, "CLEW_STORE": server.store}
        tools = [name for name in os.environ.get("CLEW_TOOLS", "").split(",") if name]
        await stack.enter_async_context(worker_process(server.address, env=settings, tools=tools))
        print(f"Watch it at {server.ui_workflow(session)}", flush=True)
        settings = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": server.namespace}
        return await run_clew("chat", session, "--model", model or LOCAL_MODEL, env={**os.environ, **settings})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--session", default="chat", help="the session's name")
    parser.add_argument("--model", help="provider:model")
    parser.add_argument(
        "--database", type=Path, default=Path(sys.prefix, "chat.db"), help="where the embedded server keeps it all"
    )
    given = parser.parse_args()
    try:
        sys.exit(asyncio.run(main(given.session, given.model, given.database.absolute())))
    except StartFailed as error:
        sys.exit(str(error))
