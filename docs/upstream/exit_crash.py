"""A program that exits right after it has called a server crashes: a minimal reproduction that uses only temporalio.

    python exit_crash.py [path of the `temporal` program]

Exit code 1: a program has crashed.
"""

from __future__ import annotations

import asyncio
import sys

from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

PROGRAMS, AT_ONCE = 104, 8


async def connect(address: str) -> None:
    """Connect, and exit."""
    await Client.connect(address)


async def run_program(address: str) -> int:
    """Run a program that connects and exits; returns its exit code."""
    program = await asyncio.create_subprocess_exec(sys.executable, __file__, "connect", address)
    return await program.wait()


async def main(program: str | None) -> int:
    """Return 0 if no program has crashed, else 1."""
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        address, codes = env.client.service_client.config.target_host, list[int]()
        while not any(codes) and len(codes) < PROGRAMS:
            codes += await asyncio.gather(*(run_program(address) for _ in range(AT_ONCE)))
    crashed = [code for code in codes if code]
    print(f"{len(crashed)} of {len(codes)} programs have crashed: {crashed}")
    return 1 if crashed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["connect"]:
        asyncio.run(connect(sys.argv[2]))
    else:
        sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None)))
