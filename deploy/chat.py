"""Talk to a session in the terminal: run it with `make chat`.

If `TEMPORAL_ADDRESS` is not set, it first starts an embedded Temporal server, the local model and a worker, and stops
them at the end. The sessions are kept in `.venv/chat/` and continue the next time.
"""

import argparse
import asyncio
import os
import shlex
import signal
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from clew.local import StartFailed, model_server, persistent_server, worker_process

LOCAL_MODEL = "local:smollm2"
FOLDER = Path(sys.prefix, "chat")
"""Where the sessions are kept."""


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


async def main(session: str, model: str | None, folder: Path) -> int:
    """Start the missing parts, run `clew chat`, and return its exit status."""
    resume = ("--resume-with", write_resume(folder))
    if "TEMPORAL_ADDRESS" in os.environ:
        return await run_clew("chat", session, *(["--model", model] if model else []), *resume, env=os.environ)
    async with AsyncExitStack() as stack:
        print("Starting the Temporal server, the local model and a worker …", flush=True)
        server = await stack.enter_async_context(persistent_server(folder))
        model_url = await stack.enter_async_context(model_server())
        settings = {"CLEW_PROVIDER_LOCAL_BASE_URL": model_url, "CLEW_STORE": server.store}
        tools = [name for name in os.environ.get("CLEW_TOOLS", "").split(",") if name]
        await stack.enter_async_context(worker_process(server.address, env=settings, tools=tools))
        print(f"Watch it at {server.ui_workflow(session)}", flush=True)
        # As options and not in the environment: commands that the chat names for another terminal need them.
        options = ("--address", server.address, "--namespace", server.namespace, "--model", model or LOCAL_MODEL)
        return await run_clew("chat", session, *options, *resume, env=os.environ)


def write_resume(folder: Path) -> str:
    """Write the command that resumes a session of this chat: `{session}` and `{model}` stand for its names."""
    if folder == FOLDER:
        return "make chat SESSION={session} MODEL={model}"
    python = shlex.quote(os.path.relpath(sys.executable))
    return f"{python} -m deploy.chat --folder {shlex.quote(str(folder))} --session {{session}} --model {{model}}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--session", default="chat", help="the session's name")
    parser.add_argument("--model", help="provider:model")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the sessions are kept")
    arguments = parser.parse_args()
    try:
        sys.exit(asyncio.run(main(arguments.session, arguments.model, arguments.folder.absolute())))
    except StartFailed as error:
        sys.exit(str(error))
