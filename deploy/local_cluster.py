"""The services of compose.yaml as processes on loopback: run them with `make local-cluster`.

They are PostgreSQL, Temporal's server with all its services, SeaweedFS, and workers apart for sessions, model calls
and tools. Their settings, and the scripts that prepare them, are read from compose.yaml: only addresses, ports and
folders differ. All data is in a temporary folder, so PostgreSQL does not wait for the disk. All of it ends with this
process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from temporalio.client import Client
from temporalio.service import RPCError

from clew.local import StartFailed, TemporalServer, Worker, model_server, worker_process
from clew.local.child import LOOPBACK, Child, accepts_connections, child_process, free_ports, is_taken
from clew_activities.worker.environment import ALL_WORK
from deploy.servers.programs import Programs, find_programs

COMPOSE = Path(__file__).with_name("compose.yaml")
PARTS = ALL_WORK
"""What the workers serve, each in processes of its own."""
LOCAL_MODEL = "local:smollm2"
"""The embedded model."""
_START_SECONDS = 120.0
_DATABASE_STOP_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?:(:[-?])([^}]*))?\})")
_TEMPORAL_PORTS = (
    *("FRONTEND_GRPC_PORT", "FRONTEND_HTTP_PORT", "FRONTEND_MEMBERSHIP_PORT", "MATCHING_GRPC_PORT"),
    *("MATCHING_MEMBERSHIP_PORT", "HISTORY_GRPC_PORT", "HISTORY_MEMBERSHIP_PORT", "WORKER_GRPC_PORT"),
    "WORKER_MEMBERSHIP_PORT",
)
"""The variables with which Temporal's server takes its ports."""
_LOW_PORTS = range(10_000, 32_768)
"""Temporal stores its ports in PostgreSQL as `smallint`: the ports that the system gives out are too large."""
_DYNAMIC_CONFIG = "dynamicconfig"
_STORE_PREFIX = "AWS_"
"""How the variables begin with which a process finds an S3 store."""
_BEDROCK_KEY = "AWS_BEARER_TOKEN_BEDROCK"
"""A model's key, which no store takes."""
_STORE_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
"""The options with which SeaweedFS takes its ports; each has one for gRPC beside it."""


@dataclass(frozen=True)
class LocalCluster:
    """A running cluster.

    Attributes:
        server: Temporal's server. Its `store` is the URL of the archive.
        settings: The environment variables of a worker of this cluster.
        workers: The workers, by what they serve.
        database: The URL of PostgreSQL, for `psql`.
        folder: Holds the data of PostgreSQL (`postgresql`) and SeaweedFS (`s3`).
        servers: The processes of PostgreSQL, Temporal's server and SeaweedFS, by the program's name.
        prepare: Runs again what compose.yaml prepares at each start: tables, namespace, search attributes and bucket.
        crash: Kills Temporal's server, and starts it again at the same address after some seconds.
    """

    server: TemporalServer
    settings: Mapping[str, str]
    workers: Mapping[str, Worker]
    database: str
    folder: Path
    servers: Mapping[str, Child]
    prepare: Callable[[], Awaitable[None]]
    crash: Callable[[float], Awaitable[None]]

    @property
    def store_settings(self) -> dict[str, str]:
        """The environment variables with which a process reaches the store."""
        return {name: value for name, value in self.settings.items() if name.startswith(_STORE_PREFIX)}

    @property
    def s3_address(self) -> str:
        """The base URL of SeaweedFS's S3."""
        return self.settings["AWS_ENDPOINT_URL"]

    @property
    def logs(self) -> Mapping[str, Path]:
        """The log files of the servers, by the program's name."""
        return {name: server.log for name, server in self.servers.items()}


class Compose:
    """What compose.yaml says of its services, with its variables replaced.

    Attributes:
        services: The services, by name.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        document = self._replace(yaml.safe_load(COMPOSE.read_text()))
        self.services: dict[str, Any] = document["services"]
        self._configs: dict[str, Any] = document["configs"]

    def read_environment(self, service: str) -> dict[str, str]:
        """Read the environment variables of a service."""
        return dict(self.services[service].get("environment", {}))

    def read_command(self, service: str) -> list[str]:
        """Read the command of a service, with its entry point."""
        return [*self.services[service].get("entrypoint", []), *self.services[service]["command"]]

    def read_attempts(self, service: str) -> int:
        """Read how often a service that prepares something is started until it succeeds."""
        return 1 + int(self.services[service]["restart"].removeprefix("on-failure:"))

    def write_config(self, name: str, folder: Path) -> Path:
        """Write a file that compose.yaml has the content of; returns its path."""
        file = folder / name
        file.write_text(self._configs[name]["content"])
        return file

    def _replace(self, value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(self._read, value)
        if isinstance(value, dict):
            return {name: self._replace(one) for name, one in value.items()}
        return [self._replace(one) for one in value] if isinstance(value, list) else value

    def _read(self, match: re.Match[str]) -> str:
        name, operator, default = match.groups()
        if name is None:
            return "$"
        if not (value := self._variables.get(name, "")) and operator == ":?":
            raise LookupError(f"compose.yaml needs {name}: {default}")
        return value or default or ""


@asynccontextmanager
async def local_cluster(
    *,
    dynamic_config: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
) -> AsyncIterator[LocalCluster]:
    """Run the cluster on free ports of loopback until the context ends.

    Args:
        dynamic_config: Temporal's dynamic configuration over that of compose.yaml.
        env: Added to the environment of the workers, for example keys and base URLs of providers.
        tools: Modules with the workers' tools.
        parts: What workers serve; empty: there are no workers.

    Raises:
        StartFailed: A program is missing, or a part did not start.
    """
    programs = find_programs()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clew-cluster-")))
        starter = _Starter(stack, programs, folder)
        await starter.start_store()
        await starter.start_database()
        await starter.start_temporal(dynamic_config or {})
        await starter.prepare_store()
        settings = {**starter.make_worker_settings(), **(env or {})}
        workers = await _start_workers(stack, settings, tools, parts)
        yield LocalCluster(
            server=starter.server,
            settings=settings,
            workers=workers,
            database=starter.database_address,
            folder=folder,
            servers=starter.servers,
            prepare=starter.prepare_again,
            crash=starter.crash_temporal,
        )


class _Starter:
    """Starts the services one after the other, each with the settings of compose.yaml.

    Attributes:
        server: Temporal's server, once it has been started.
        servers: The processes of the servers that have been started.
    """

    server: TemporalServer

    def __init__(self, stack: AsyncExitStack, programs: Programs, folder: Path) -> None:
        self._stack, self._programs, self._folder = stack, programs, folder
        self._compose = Compose({"POSTGRES_PASSWORD": secrets.token_hex(), "S3_SECRET_KEY": secrets.token_hex()})
        ports = iter(free_ports(1 + 2 * len(_STORE_PORTS)))
        self._database_port = next(ports)
        self._temporal_ports = dict(zip(_TEMPORAL_PORTS, _pick_low_ports(len(_TEMPORAL_PORTS)), strict=True))
        self._store_ports = {name: (next(ports), next(ports)) for name in _STORE_PORTS}
        self.servers: dict[str, Child] = {}
        self._store: Child
        self._temporal: Child

    async def start_store(self) -> None:
        """Start SeaweedFS; it becomes ready meanwhile."""
        folder = self._make_folder("s3")
        command: list[str | Path] = [self._programs.weed, "-logtostderr=true", *self._compose.read_command("s3")]
        # The last one of two options holds.
        command += [f"-dir={folder}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}"]
        command += [f"-s3.config={self._compose.write_config('s3', folder)}"]
        command += [f"-{part}.localSocket={folder}/{part}.sock" for part in ("filer", "s3")]
        for name, (port, grpc_port) in self._store_ports.items():
            command += [f"-{name}={port}", f"-{name}.grpc={grpc_port}"]
        # It would take the user's own AWS_ACCESS_KEY_ID as one of its users.
        env = _read_own_environment()
        # Its data is about to be deleted: it need not announce its end.
        self._store = await self._start("seaweedfs", command, env=env, folder=folder, grace_seconds=0.0)

    async def prepare_store(self) -> None:
        """Wait for SeaweedFS, and make the bucket."""
        port, _ = self._store_ports["s3.port"]
        await self._store.wait_until(partial(accepts_connections, port), _START_SECONDS)
        master, grpc_port = self._store_ports["master.port"]
        await self._run_script("s3-bucket", {"MASTER": f"{LOOPBACK}:{master}.{grpc_port}"})

    async def start_database(self) -> None:
        """Start PostgreSQL with an empty database, and make Temporal's tables."""
        folder, settings = self._make_folder("postgresql"), self._compose.read_environment("postgresql")
        password = folder / "password"
        password.write_text(settings["POSTGRES_PASSWORD"])
        prefix: list[str | Path] = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            user = pwd.getpwnam("postgres")
            self._folder.chmod(0o711)
            for path in (folder, password):
                os.chown(path, user.pw_uid, user.pw_gid)
            prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        data = folder / "data"
        create = [*prefix, self._programs.initdb, f"--pgdata={data}", "--encoding=UTF8", "--locale=C.UTF-8"]
        create += [f"--username={settings['POSTGRES_USER']}", f"--pwfile={password}", "--auth=scram-sha-256"]
        await self._run("initdb", [*create, "--no-sync"])
        command: list[str | Path] = [*prefix, self._programs.postgres, "-D", data, "-p", str(self._database_port)]
        # Shared memory as files: nothing of it stays if the processes are killed.
        options = {"listen_addresses": LOOPBACK, "unix_socket_directories": "", "fsync": "off"}
        for name, value in {**options, "dynamic_shared_memory_type": "mmap"}.items():
            command += ["-c", f"{name}={value}"]
        child = await self._start("postgresql", command, folder=folder, grace_seconds=_DATABASE_STOP_SECONDS)
        await child.wait_until(partial(accepts_connections, self._database_port), _START_SECONDS)
        await self.prepare_database()

    @property
    def database_address(self) -> str:
        """The URL of PostgreSQL."""
        settings = self._compose.read_environment("postgresql")
        user, password = settings["POSTGRES_USER"], settings["POSTGRES_PASSWORD"]
        return f"postgresql://{user}:{password}@{LOOPBACK}:{self._database_port}"

    async def prepare_database(self) -> None:
        """Make the tables of Temporal that are not there."""
        await self._run_script("temporal-schema", {"SQL_HOST": LOOPBACK, "SQL_PORT": str(self._database_port)})

    async def start_temporal(self, dynamic_config: Mapping[str, object]) -> None:
        """Start all services of Temporal in one process, and make the namespace with its search attributes."""
        file = self._compose.write_config(_DYNAMIC_CONFIG, self._folder)
        values = {name: [{"value": value}] for name, value in dynamic_config.items()}
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))
        await self._start_server(file)
        port = self._temporal_ports["FRONTEND_GRPC_PORT"]
        address, store = f"{LOOPBACK}:{port}", self._compose.read_environment("worker")["CLEW_STORE"]
        self.server = TemporalServer(address, "default", None, self._temporal.log, store, None, self._temporal)
        await self.prepare_namespace()

    async def crash_temporal(self, seconds: float) -> None:
        """Kill Temporal's server with SIGKILL, and start it again at the same ports after some seconds."""
        await self._temporal.kill()
        await asyncio.sleep(seconds)
        await self._start_server(self._folder / _DYNAMIC_CONFIG)

    async def _start_server(self, dynamic_config: Path) -> None:
        environ = {
            **self._compose.read_environment("temporal"),
            **{name: str(port) for name, port in self._temporal_ports.items()},
            "BIND_ON_IP": LOOPBACK,
            "POSTGRES_SEEDS": LOOPBACK,
            "DB_PORT": str(self._database_port),
            "DYNAMIC_CONFIG_FILE_PATH": str(dynamic_config),
            "LOG_LEVEL": "warn",
        }
        command: list[str | Path] = [self._programs.temporal_server, "--allow-no-auth", "start"]
        self._temporal = await self._start("temporal-server", command, env=environ, grace_seconds=0.0)
        port = self._temporal_ports["FRONTEND_GRPC_PORT"]
        await self._temporal.wait_until(partial(_serves, f"{LOOPBACK}:{port}"), _START_SECONDS)

    async def prepare_namespace(self) -> None:
        """Make the namespace and its search attributes, if they are not there."""
        await self._run_script("temporal-namespace", {"TEMPORAL_ADDRESS": self.server.address})

    async def prepare_again(self) -> None:
        """Run again what compose.yaml prepares at each start."""
        await self.prepare_database()
        await self.prepare_namespace()
        await self.prepare_store()

    def make_worker_settings(self) -> dict[str, str]:
        """Make the environment variables of a worker; those that compose.yaml leaves to the user are not there."""
        environ = {name: value for name, value in self._compose.read_environment("worker").items() if value}
        port, _ = self._store_ports["s3.port"]
        return {
            **environ,
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
            "TEMPORAL_ADDRESS": self.server.address,
        }

    def _make_folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(mode=0o700)
        return folder

    async def _start(self, name: str, command: Sequence[str | Path], **options: Any) -> Child:
        child = await self._stack.enter_async_context(child_process(name, command, **options))
        self.servers[name] = child
        return child

    async def _run_script(self, service: str, environ: Mapping[str, str]) -> None:
        """Run what a service of compose.yaml prepares, until it succeeds, as often as compose.yaml says."""
        folders = [
            self._programs.temporal_sql_tool.parent,
            self._programs.temporal.parent,
            self._programs.weed.parent,
        ]
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        env = {"PATH": path, "HOME": str(self._folder), **self._compose.read_environment(service), **environ}
        for attempts_left in reversed(range(self._compose.read_attempts(service))):
            try:
                await self._run(service, self._compose.read_command(service), env=env)
                break
            except StartFailed:
                if not attempts_left:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _run(self, name: str, command: Sequence[str | Path], **options: Any) -> None:
        """Run a program to its end.

        Raises:
            StartFailed: It failed, or took too long.
        """
        async with child_process(name, command, folder=self._folder, **options) as child:
            status: int | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    status = await child.wait_for_end()
            if status != 0:
                ended = "has not ended" if status is None else f"ended with {status}"
                raise StartFailed(f"{name} {ended}:\n{child.read_log_tail()}")


def _pick_low_ports(count: int) -> list[int]:
    """Pick free ports at random from `_LOW_PORTS`."""
    ports: set[int] = set()
    while len(ports) < count:
        port = secrets.choice(_LOW_PORTS)
        if not is_taken(port):
            ports.add(port)
    return list(ports)


async def _serves(address: str) -> bool:
    """Whether Temporal's frontend answers."""
    if not await accepts_connections(int(address.rpartition(":")[2])):
        return False
    try:
        await Client.connect(address)
    except (RPCError, RuntimeError):
        return False
    return True


async def _start_workers(
    stack: AsyncExitStack, settings: Mapping[str, str], tools: Sequence[str], parts: Sequence[str]
) -> dict[str, Worker]:
    async def run(part: str) -> Worker:
        worker = worker_process(
            settings["TEMPORAL_ADDRESS"],
            env={**settings, "CLEW_SERVE": part},
            # The user's own AWS_SESSION_TOKEN or AWS_PROFILE are not for the cluster's store.
            inherited=_read_own_environment(),
            tools=tools,
            namespace=settings["TEMPORAL_NAMESPACE"],
            task_queue=settings["CLEW_TASK_QUEUE"],
        )
        return await stack.enter_async_context(worker)

    try:
        async with asyncio.TaskGroup() as group:
            starts = {part: group.create_task(run(part)) for part in parts}
    except* StartFailed as failed:
        raise failed.exceptions[0] from None
    return {part: start.result() for part, start in starts.items()}


def _read_own_environment() -> dict[str, str]:
    """Read this process's environment without its settings for S3 stores."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == _BEDROCK_KEY or not name.startswith(_STORE_PREFIX)
    }


async def main(*, with_local_model: bool) -> None:
    """Run the cluster until this process gets SIGINT, SIGTERM or SIGHUP."""
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(name, running.cancel)
    with suppress(asyncio.CancelledError):
        async with AsyncExitStack() as stack:
            print("Starting PostgreSQL, Temporal, SeaweedFS and three workers …", flush=True)
            env, model = {}, "PROVIDER:NAME"
            if with_local_model:
                env, model = (
                    {"CLEW_PROVIDER_LOCAL_BASE_URL": await stack.enter_async_context(model_server())},
                    LOCAL_MODEL,
                )
            tools = [module for module in os.environ.get("CLEW_TOOLS", "").split(",") if module]
            cluster = await stack.enter_async_context(local_cluster(env=env, tools=tools))
            print(f"Temporal's server: {cluster.server.address}\nThe archive's S3: {cluster.s3_address}")
            for part, worker in cluster.workers.items():
                print(f"The worker for {part}: process {worker.pid}")
            print(f"In another terminal: clew --address {cluster.server.address} chat hello --model {model}")
            print("Ctrl-C stops all of it, and deletes its data.", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="deploy.local_cluster", description=__doc__)
    parser.add_argument("--local-model", action="store_true", help="start the embedded model, too")
    arguments = parser.parse_args()
    try:
        asyncio.run(main(with_local_model=arguments.local_model))
    except StartFailed as error:
        sys.exit(f"{error}")
