"""Talk to a session in the terminal: run it with `make chat`.

If `TEMPORAL_ADDRESS` is not set, it first starts an embedded Temporal server, the local model and a worker, and stops
them at the end. The sessions are stored in `.venv/chat.db` and continue the next time.
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

from clew.local import StartFailed, model_server, temporal_server, worker_process

LOCAL_MODEL = "local:smollm2"


async def run_clew(*arguments: str, env: Mapping[str, str]) -> int:
    """Run the command `clew` in this terminal; return its exit status. Only `clew` reacts to Ctrl-C."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    command = Path(sysconfig.get_path("scripts"), "clew")
    process = await asyncio.create_subprocess_exec(command, *arguments, env=env)
    try:
        return await process.wait()
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def lock_database(database: Path) -> Iterator[None]:
    """Lock the database while the context lasts, so that no second server uses the file.

    Raises:
        StartFailed: Another chat uses the database.
    """
    with database.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(f"another chat uses {database}: leave it first, or join it in its terminal") from None
        yield


async def main(session: str, model: str | None, database: Path) -> int:
    """Start the missing parts, run `clew chat`, and return its exit status."""
    if "TEMPORAL_ADDRESS" in os.environ:
        return await run_clew("chat", session, *(["--model", model] if model else []), env=os.environ)
    async with AsyncExitStack() as stack:
        stack.enter_context(lock_database(database))
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
        "--database", type=Path, default=Path(sys.prefix, "chat.db"), help="the embedded server's database"
    )
    arguments = parser.parse_args()
    try:
        sys.exit(asyncio.run(main(arguments.session, arguments.model, arguments.database.absolute())))
    except StartFailed as error:
        sys.exit(str(error))
