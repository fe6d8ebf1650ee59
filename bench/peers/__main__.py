"""Measures peers and writes `bench/peers/results.json`; the tables of docs/comparison.md are made from it.

make peers                                  # the environments, in .venv/peers: once
python -m bench.peers                       # all rows; an hour
python -m bench.peers langgraph_sqlite      # some rows: the others of the file stay
python -m bench.peers --tables              # only make the tables anew
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers.process import PeerFailed, Setting, find_python, peer_process
from bench.peers.rows import ROWS, Row
from bench.peers.scenarios import Bench
from bench.peers.script import serve_script
from bench.peers.tables import PAGE, fill_page
from bench.recording import describe_machine
from clew.local import temporal_server

RESULTS = Path(__file__).with_name("results.json")


async def measure(row: Row, turns: int, seconds: float) -> dict[str, Any]:
    """Measure one row on a Temporal server of its own, beside the floor; `load` is the machine's in these minutes."""
    with tempfile.TemporaryDirectory(prefix="clew-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with temporal_server(ui=False) as server, serve_script() as (script, model):
            places = {"model": model, "temporal": server.address}
            floor = Setting("peer_floor", None, "", folder=folder / "floor", **places)
            setting = Setting(row.module, row.environment, row.configuration, folder=folder / "peer", **places)
            async with peer_process(floor) as beside:
                result = await Bench(setting, beside, script).measure(turns, seconds)
    measured = {name: value if isinstance(value, dict) else asdict(value) for name, value in result.items()}
    return {**measured, "load": os.getloadavg()[2]}


def _read_results() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {"rows": {}}


def main(arguments: list[str] | None = None) -> int:
    """Measure the rows and make the tables; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="the rows to measure; default: all")
    parser.add_argument("--turns", type=int, default=1_000, help="turns of the long conversation")
    parser.add_argument("--seconds", type=float, default=300, help="when the long conversation stops")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    chosen = parser.parse_args(arguments)
    failed = False
    for key in [] if chosen.tables else chosen.rows or ROWS:
        row = ROWS[key]
        if row.environment is not None and not find_python(row.environment).exists():
            print(f"{key}: its environment is missing: make peers", file=sys.stderr)
            return 1
        print(f"{key} …", flush=True)
        try:
            measured = asyncio.run(measure(row, chosen.turns, chosen.seconds))
        except PeerFailed as error:
            print(f"{key}: {error}", file=sys.stderr)
            failed = True
            continue
        results = _read_results()
        results["machine"] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), **describe_machine().model_dump()}
        results["rows"][key] = measured
        RESULTS.write_text(f"{json.dumps(results, indent=1)}\n")
    PAGE.write_text(fill_page(PAGE.read_text(), _read_results()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
