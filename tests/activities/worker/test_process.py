from __future__ import annotations

import asyncio
import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from clew import Clew
from clew.local import Reply, TemporalServer, ToolCall, scripted_model, worker_process
from clew.local.child import LOOPBACK, child_process, free_ports
from clew.local.worker_process import Worker
from clew_activities.providers import make_http_client
from clew_activities.worker.environment import Capacity
from clew_activities.worker.process import WorkerLoop, raise_limits
from tests.support.command_line import CommandResult, make_environment, run_clew
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[3]
# Where nothing listens; a name that is no host, should anything look it up.
NOWHERE = "127.0.0.1:9"

# The environment of a worker that does not start.
NEVER_SERVED = {"CLEW_TASK_QUEUE": "never-served", "CLEW_STORE": "memory://"}


async def run_worker(*arguments: str, address: str = NOWHERE, **environment: str) -> CommandResult:
    """Run `clew worker`. It is expected to end by itself."""
    return await run_clew("worker", *arguments, address=address, **{**NEVER_SERVED, **environment})


def read_refusal(worker: CommandResult) -> str:
    """Read the one line that a worker wrote when it could not start; its exit code is not 0."""
    assert worker.code != 0
    assert "Traceback" not in worker.err
    assert "worker ready" not in worker.err
    return next(line for line in worker.err.splitlines() if line.startswith("the worker cannot"))


def without_vocabulary(folder: Path) -> None:
    """As if the wheel with the vocabularies were not installed."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['bpe_openai'] = None\n")


def with_a_damaged_vocabulary(folder: Path) -> None:
    """As if the wheel's files had been cut short."""
    (folder / "bpe_openai" / "data").mkdir(parents=True)
    (folder / "bpe_openai" / "__init__.py").touch()
    for name in ("o200k_base", "cl100k_base"):
        (folder / "bpe_openai" / "data" / f"{name}.tiktoken.gz").write_bytes(b"\x1f\x8b\x08\x00")


def with_another_vocabulary(folder: Path) -> None:
    """As if the wheel held other words: whole files, and every count of them would be wrong."""
    with_a_damaged_vocabulary(folder)
    for file in (folder / "bpe_openai" / "data").iterdir():
        file.write_bytes(gzip.compress(b"aGk= 0\n"))


@pytest.mark.parametrize("damage", [without_vocabulary, with_a_damaged_vocabulary, with_another_vocabulary])
@pytest.mark.slow
async def test_a_worker_that_cannot_count_tokens_does_not_serve(
    damage: Callable[[Path], None], server: TemporalServer, tmp_path: Path
) -> None:
    """It says which vocabulary it lacks and what brings it, and no task queue has heard of it."""
    damage(tmp_path)
    nowhere = f"http://{NOWHERE}"
    worker = await run_worker(
        address=server.address,
        PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
        TIKTOKEN_CACHE_DIR=str(tmp_path / "cache"),
        HTTPS_PROXY=nowhere,
        https_proxy=nowhere,
        CLEW_TASK_QUEUE=damage.__name__,
    )
    line = read_refusal(worker)
    assert "o200k_base" in line
    assert "clew[worker]" in line
    assert worker.code == 1
    client = await Client.connect(server.address)
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace="default",
            task_queue=TaskQueue(name=damage.__name__),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    assert not described.pollers


@pytest.mark.parametrize(
    ("how", "named", "reason"),
    [
        ("option", "examples.tools, no_such_package", "No module named 'no_such_package'"),
        ("environment", "examples.tools,,tests.toolbox_that_is_not", "No module named"),
        ("environment", "json", "defines no tool"),
    ],
)
async def test_tools_that_cannot_be_had_are_told_before_anything(named: str, reason: str, how: str) -> None:
    """No server is needed to say so; the module is named."""
    worker = await (run_worker("--tools", named) if how == "option" else run_worker(CLEW_TOOLS=named))
    line = read_refusal(worker)
    assert line.startswith("the worker cannot start: the tools module")
    assert reason in line
    assert worker.code == 1


async def test_agents_that_cannot_be_had_are_told_before_anything() -> None:
    """As tools are: the module is named."""
    line = read_refusal(await run_worker("--agents", "examples.tools"))
    assert line.startswith("the worker cannot start: the agents module 'examples.tools' defines no agent")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import clew\nimport no_library\n",
            "ModuleNotFoundError: No module named 'no_library' (my_tools.py, line 2)",
        ),
        ("def unfinished(:\n    pass\n", "SyntaxError: invalid syntax (my_tools.py, line 1)"),
        ("\nraise ValueError('one\\ntwo')\n", "ValueError: one two (my_tools.py, line 2)"),
    ],
)
async def test_a_module_of_the_current_folder_that_fails_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    """The worker finds the module in the folder where it is started, and says where in it the error is."""
    (tmp_path / "my_tools.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    worker = await run_worker("--tools", "my_tools")
    line = read_refusal(worker)
    assert line == f"the worker cannot start: the tools module 'my_tools' cannot be imported: {reason}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [str(ROOT / "worker.py")],
        pytest.param(["-m", "clew.worker"], marks=pytest.mark.slow),
        pytest.param(["-P", "-m", "clew.cli", "worker"], marks=pytest.mark.slow),
    ],
)
def test_every_way_to_start_it_takes_the_same_arguments(tmp_path: Path, command: list[str]) -> None:
    """`worker.py`, the module and `clew worker` import from the current folder and exit with the same line."""
    (tmp_path / "my_tools.py").write_text("raise ValueError('here')\n")
    ended = subprocess.run(
        [sys.executable, *command, "--tools", "my_tools", "--task-queue=mine"],
        env=make_environment(NOWHERE, **NEVER_SERVED),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    worker = CommandResult(ended.returncode, ended.stdout, ended.stderr)
    assert "ValueError: here (my_tools.py, line 1)" in read_refusal(worker)
    assert worker.code == 1


@pytest.mark.parametrize("named", ["no_such_package.providers", "json"])
async def test_providers_that_cannot_be_had_are_told_before_anything(named: str) -> None:
    """No server is needed to say so; the module is named."""
    worker = await run_worker(CLEW_PROVIDERS=named)
    assert read_refusal(worker).startswith(f"the worker cannot start: the providers module {named!r} ")
    assert worker.code == 1


async def test_a_server_that_does_not_answer_is_told() -> None:
    """The line has the server's address."""
    line = read_refusal(await run_worker())
    assert "no Temporal server answers" in line
    assert NOWHERE.partition(":")[0] in line


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENAI_BASE_URL", "not a url"),
        ("ANTHROPIC_BASE_URL", "https://user:hunter2@host/"),
        ("CLEW_PROVIDER_OPENAI_BASE_URL", "http://localhost:1/v1"),
        ("CLEW_PROVIDER_LOCAL_API_KEY", "hunter2"),
        ("OPENAI_API_KEY", "hunter2 with a space"),
    ],
)
async def test_a_provider_that_is_configured_wrongly_is_told(
    variable: str, value: str, server: TemporalServer
) -> None:
    """The line names the provider's variable, and never its value, which may be a secret."""
    line = read_refusal(await run_worker(address=server.address, **{variable: value}))
    assert line.startswith("the worker cannot start: ")
    assert variable.removesuffix("_API_KEY").removesuffix("_BASE_URL") in line
    assert "hunter2" not in line


async def test_what_a_worker_says_holds_none_of_its_keys() -> None:
    """A key is redacted in the worker's error, also if it stands in another option."""
    key = "sk-test-0123456789abcdef"
    worker = await run_worker("--tools", f"tools_{key}", OPENAI_API_KEY=key)
    assert "[redacted]" in read_refusal(worker)
    assert key not in worker.err


@pytest.mark.slow
async def test_a_worker_stops_when_it_is_told_to(server: TemporalServer) -> None:
    """It says what it serves; SIGTERM ends it by itself."""
    local = {"CLEW_PROVIDER_LOCAL_BASE_URL": f"http://{NOWHERE}"}
    async with worker_process(
        server.address, env=local, tools=["tests.support.toolbox"], task_queue="stopping"
    ) as worker:
        log = worker.log.read_text()
        assert "worker ready: task queue 'stopping'" in log
        assert "models: local; tools: add, wait_for" in log
        await worker.stop()
        assert not worker.running
        assert "stopping: running calls have 20 seconds to finish" in worker.log.read_text()


@pytest.mark.slow
async def test_a_worker_may_run_only_tools(stack: Stack) -> None:
    """Those of a queue of their own, which the sessions' workers only declare; so many a second and no more."""
    arguments = ["--serve", "tools", "--task-queue", "gpu", "--tools", "tests.support.toolbox"]
    command = [sys.executable, "-m", "clew.worker", *arguments, "--max-calls-per-second", "2"]
    environment = {**os.environ, "TEMPORAL_ADDRESS": stack.server.address, "PYTHONUNBUFFERED": "1"}

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        calls = tuple(ToolCall("where", {}, f"c{number}") for number in range(6))
        return Reply(tool_calls=calls) if newest["role"] == "user" else Reply(newest["content"])

    async with child_process("worker", command, env=environment) as worker:

        async def is_ready() -> bool:
            return "worker ready: task queue 'gpu', only tools" in worker.log.read_text()

        await worker.wait_until(is_ready, 30)
        session = await stack.open(script, tools=["where"])
        clock = time.monotonic()
        assert await session.ask("go") == "gpu-tools"
        assert time.monotonic() - clock > 1


@pytest.mark.parametrize("work", ["", "models,tolls", "all"])
async def test_work_that_no_worker_does_is_refused(work: str) -> None:
    """The message lists what there is."""
    worker = await run_worker("--serve", work)
    assert worker.code == 2
    assert f"--serve: one or more of sessions,models,tools, not '{work}'" in worker.err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "often"])
async def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    """Temporal takes 0 for no limit at all."""
    worker = await run_worker("--max-calls-per-second", rate)
    assert worker.code == 2
    assert f"--max-calls-per-second: a number from 0.001 to 100000, not '{rate}'" in worker.err


@pytest.mark.slow
async def test_a_tool_that_never_ends_does_not_hold_the_end_of_the_process(stack: Stack, tmp_path: Path) -> None:
    """Not even one in a thread that Python waits for; the log says which threads were left."""
    queue = "hanging-at-the-end"
    clew = Clew(stack.clew.temporal, queue)
    settings = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url}
    calls = (ToolCall("hang_in_a_thread", {"folder": str(tmp_path)}),)
    async with worker_process(
        stack.server.address, env=settings, tools=["tests.support.toolbox"], task_queue=queue
    ) as worker:
        model = stack.add_model(lambda _body: Reply(tool_calls=calls))
        session = await clew.open("hanging-at-the-end", model=model, tools=["hang_in_a_thread"])
        request = await session.message("go")
        await wait_until((tmp_path / "started").exists)
        await session.cancel()
        assert (await request.result()).status == "cancelled"
        clock = time.monotonic()
        await worker.stop(60)
        assert time.monotonic() - clock < 45
        assert not worker.running
        assert "the process ends although threads still run: " in worker.log.read_text()


STUCK = """
import asyncio, sys, time
from temporalio.worker import Worker, _workflow
from clew import tool
from clew_activities.worker import assembly, process

assembly.STUCK_SECONDS, process.END_SECONDS = 3.0, 1.0

def get_stuck():
    make = _workflow._WorkflowWorker.__init__
    def make_stuck(self, **options):
        make(self, **options)
        self._could_not_evict_count = 2
    _workflow._WorkflowWorker.__init__ = make_stuck

def lose_an_activation():
    import logging
    from clew_workflows.temporal_faults.stuck_workflows import LOST
    process._spare_collector = lambda: logging.getLogger("temporalio").error("[sdk_core] %s", LOST)

def never_stop():
    async def hang(*_args):
        await asyncio.Event().wait()
    Worker.__aexit__ = hang

def block_the_loop():
    def block():
        print("blocked", flush=True)
        while True:
            time.sleep(0.01)
    process._spare_collector = lambda: asyncio.get_running_loop().call_later(0.1, block)

{fault}()

@tool
def nothing() -> str:
    "Do nothing."
    return ""
"""


@asynccontextmanager
async def run_faulty(fault: str, address: str, folder: Path, **environment: str) -> AsyncIterator[Worker]:
    """Run a worker with a fault of `STUCK`."""
    (folder / "faulty.py").write_text(STUCK.format(fault=fault))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "CLEW_GRACE_SECONDS": "1", **environment}
    async with worker_process(address, env=env, tools=["faulty"], task_queue=f"faulty-{fault}") as worker:
        yield worker


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["get_stuck", "lose_an_activation"])
async def test_a_worker_that_cannot_go_on_says_so_and_ends(
    server: TemporalServer, tmp_path: Path, fault: str
) -> None:
    """A session that the SDK never serves again keeps its slot: the orchestrator starts another worker."""
    (port,) = free_ports(1)
    health = {"CLEW_HEALTH_ADDRESS": f"127.0.0.1:{port}"}
    async with (
        run_faulty(fault, server.address, tmp_path, **health) as worker,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        ready = await client.get("/ready")
        assert (ready.status_code, (await client.get("/live")).status_code) == (503, 200)
        assert "stuck in the cache" in ready.json()["pollers"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await worker.wait_for_end() == 1
        assert "stuck in the cache: the process ends" in worker.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["never_stop", "block_the_loop"])
async def test_sigterm_ends_a_worker_always(server: TemporalServer, tmp_path: Path, fault: str) -> None:
    """Within its grace time and a margin, whether the SDK does not stop or the event loop does not run."""
    async with run_faulty(fault, server.address, tmp_path) as worker:
        if fault == "block_the_loop":
            await wait_until(lambda: "blocked" in worker.log.read_text())
        clock = time.monotonic()
        os.kill(worker.pid, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await worker.wait_for_end() == 1
        assert time.monotonic() - clock < 10
        assert "although it has not stopped within 2 seconds" in worker.log.read_text()


HANGING = 20


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let lookups of `hangs.test` wait for an event. `answers.test` is this machine."""
    event, look_up = threading.Event(), socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in ("hangs.test", b"hangs.test"):
            event.wait(60)
        return look_up(LOOPBACK, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield event
    event.set()


def test_lookups_that_hang_do_not_block_those_of_other_calls(answered: threading.Event) -> None:
    """Twenty names are looked up without an answer, and the model at another one is called."""

    async def call() -> None:
        loop = asyncio.get_running_loop()
        raise_limits(loop, Capacity(model_calls=HANGING + 1))
        waiting = [asyncio.ensure_future(loop.getaddrinfo("hangs.test", 80)) for _ in range(HANGING)]
        async with scripted_model(lambda _body: Reply("here")) as model, make_http_client() as http:
            url = model.base_url.replace(LOOPBACK, "answers.test")
            response = await http.post(f"{url}/chat/completions", json={"messages": []}, timeout=10)
        assert response.json()["choices"][0]["message"]["content"] == "here"
        assert not any(lookup.done() for lookup in waiting)
        answered.set()
        await asyncio.gather(*waiting)

    with asyncio.Runner(loop_factory=WorkerLoop) as runner:
        runner.run(call())
