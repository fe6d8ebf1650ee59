"""The image: its own steps build it on an empty Debian, and each role runs in it without rights.

buildah builds the Dockerfile, and the images that the page makes from it. The base image, which only a registry has,
is replaced by Debian 13 and its Python.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.local import Reply, ToolCall
from clew.local.child import LOOPBACK, Child, accepts_connections, child_process, free_ports
from clew.serve.access import compute_hash, make_token
from tests.support.chart import Object, find_container, read_variables, render, select
from tests.support.processes import ROOT
from tests.support.stack import Stack
from tests.support.tls import make_certificates

BASE = "docker.io/library/python:3.13-slim"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
CERTIFICATES = ("/etc/ssl/certs", "/usr/local/share/ca-certificates")
"""How this machine's pip believes the index of its packages."""
PIP = ["--volume=/etc/pip.conf:/etc/pip.conf:ro"] if Path("/etc/pip.conf").exists() else []
"""Its settings, for a build without the secret."""
START_SECONDS = 60
USER = 10001

AGENTS = """
from clew import Agent, tool


@tool
def look_up(order_id: int) -> str:
    "Look an order up."
    return f"order {order_id} is on its way"


support = Agent("support", model="scripted:in-the-image", system_prompt="You help.", tools=[look_up])
"""
NGINX = """
user root; daemon off; pid {folder}/nginx.pid; error_log stderr; events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen {host}:{port} ssl; ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.pem;
    proxy_http_version 1.1; proxy_set_header Connection ""; {rules}
    location / {{ proxy_pass http://{host}:{target}; }}
  }}
}}
"""

# The root is read-only as with `docker run --read-only`, with what a container engine mounts.
ENTER = """
set -eu
mount --bind "$ROOT" "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -t tmpfs -o mode=0700,uid=10001 tmpfs "$ROOT/var/lib/clew"
mount --bind "$SECRETS" "$ROOT/run"
mount -o remount,bind,ro "$ROOT"
exec chroot --userspec="$IDENTITY" "$ROOT" /bin/sh -c 'cd "$0" && exec "$@"' "$@"
"""

MISSING = [tool for tool in ("buildah", "debootstrap", "unshare") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        bool(MISSING) or os.geteuid() != 0, reason=f"needs root and {', '.join(MISSING) or 'nothing'}"
    ),
]


@dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        root: Its files.
        config: What it says about its process, as Docker names it.
        secrets: A folder of this machine that is `/run` in it.
    """

    root: Path
    config: Mapping[str, Any]
    secrets: Path

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Make the command that runs a program in the image, as the image's user, in a mount namespace of its own."""
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "enter"]
        return [*enter, self.config["WorkingDir"], *arguments]

    def make_environment(self, **environment: str) -> dict[str, str]:
        """Make the program's environment: the image's variables and these, nothing of this machine's."""
        variables = dict(variable.split("=", 1) for variable in self.config["Env"])
        # `chroot`, `mount` and `unshare` are this machine's, the rest is found in the image.
        path = f"{variables['PATH']}:/usr/sbin:/sbin"
        where = {"ROOT": str(self.root), "SECRETS": str(self.secrets), "IDENTITY": self.config["User"]}
        return {**variables, **environment, "PATH": path, **where}


@dataclass(frozen=True)
class Builder:
    """Builds images with buildah, in a folder of its own."""

    folder: Path

    def run(self, *command: str) -> str:
        """Run a program to its end; returns its output."""
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    @property
    def buildah(self) -> tuple[str, ...]:
        """The program, with its folders."""
        images, state = str(self.folder / "images"), str(self.folder / "run")
        return ("buildah", "--root", images, "--runroot", state, "--storage-driver", "vfs")

    def build(self, tag: str, context: str | Path, *arguments: str) -> None:
        """Build a Dockerfile."""
        mounts = [f"--volume={file}:{file}:ro" for file in CERTIFICATES if Path(file).exists()]
        options = ("--isolation=chroot", "--format=docker", "--pull-never", "--tag", tag)
        self.run(*self.buildah, "build-using-dockerfile", *options, *mounts, *arguments, str(context))

    def open(self, tag: str) -> Image:
        """Make the files of an image readable here."""
        container = self.run(*self.buildah, "from", "--pull-never", tag).strip()
        inspected = json.loads(self.run(*self.buildah, "inspect", "--type=image", tag))
        root = Path(self.run(*self.buildah, "mount", container).strip())
        secrets = self.folder / "secrets"
        secrets.mkdir(exist_ok=True)
        os.chown(secrets, USER, USER)
        return Image(root, inspected["Docker"]["config"], secrets)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Build the image `clew` on Debian."""
    folder = tmp_path_factory.mktemp("image")
    builder = Builder(folder)
    builder.run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", str(folder / "debian"))
    excluded = [f"--exclude=./{name}" for name in ("dev", "proc", "sys", "var/cache/apt", "var/lib/apt")]
    (folder / "context").mkdir()
    builder.run("tar", "-C", str(folder / "debian"), *excluded, "-cf", str(folder / "context/debian.tar"), ".")
    shutil.rmtree(folder / "debian")
    (folder / "context/Dockerfile").write_text(
        "FROM scratch\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "ADD debian.tar /\nRUN ln -s python3 /usr/bin/python\n"
    )
    builder.build(BASE, folder / "context")
    shutil.rmtree(folder / "context")
    files = ("--file=deploy/Dockerfile", "--ignorefile=deploy/Dockerfile.dockerignore")
    secret = ["--secret=id=pip.conf,src=/etc/pip.conf"] if Path("/etc/pip.conf").exists() else []
    builder.build("clew", ".", *files, *secret)
    yield builder
    subprocess.run([*builder.buildah, "rm", "--all"], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def image(builder: Builder) -> Image:
    """The image `clew`."""
    return builder.open("localhost/clew")


@pytest.fixture(scope="module")
def own(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image of the page, with a package of one's own and an agent."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "Dockerfile").write_text(read_block("RUN pip install") + read_block("COPY my_package"))
    (folder / "requirements.txt").write_text("iniconfig\npydantic\n")
    (folder / "my_package").mkdir()
    (folder / "my_package/agents.py").write_text(AGENTS)
    builder.build("own", folder, *PIP)
    return builder.open("localhost/own")


def read_block(word: str) -> str:
    """Read the block of the page that has a word."""
    blocks = re.findall(r"(?ms)^```(?:dockerfile)?\n(.*?)^```", (ROOT / "docs/deployment.md").read_text())
    (block,) = [block for block in blocks if word in block]
    return str(block)


def run_inside(image: Image, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the image to its end."""
    return subprocess.run(
        image.make_command(arguments),
        env=image.make_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@asynccontextmanager
async def run_role(image: Image, arguments: Sequence[str], **environment: str) -> AsyncIterator[Child]:
    """Run a role of the image until it has said that it is ready; it ends with status 0 at SIGTERM."""
    ready = {"worker": "worker ready", "serve": "serving: "}[arguments[0]]
    command = image.make_command([*image.config["Entrypoint"], *arguments])
    async with child_process(arguments[0], command, env=image.make_environment(**environment)) as child:

        async def is_ready() -> bool:
            return ready in child.log.read_text()

        await child.wait_until(is_ready, START_SECONDS)
        yield child
        await child.stop(40)
        assert child.process.returncode == 0, child.read_log_tail()


async def check_health(image: Image, **environment: str) -> int:
    """Run the health check of the image beside a role; returns its status."""
    check = image.config["Healthcheck"]["Test"][1:]
    ended = await asyncio.to_thread(run_inside, image, *check, **environment)
    return ended.returncode


def format_key(key: str) -> str:
    """Format the file of keys with one key, which may set models."""
    return f'[[key]]\nname = "one"\nhash = "{compute_hash(key)}"\ntenant = "acme"\n'


# The image.


def test_the_image_holds_the_package_and_nothing_of_the_checkout(image: Image) -> None:
    """No tests, no keys; the process has a user, a health check and a signal that ends it."""
    assert list((image.root / "app").iterdir()) == []
    assert not (image.root / "src").exists()
    assert image.config["User"] == "10001:10001"
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Healthcheck"]["Test"][0] == "CMD"
    assert [name for name in image.make_environment() if name.endswith("_KEY")] == []
    assert not (image.root / "etc/pip.conf").exists() or not (image.root / "etc/pip.conf").read_text()


def test_the_process_cannot_write_to_the_image(image: Image) -> None:
    """It is no root, and the root file system is read-only."""
    ended = run_inside(
        image,
        "sh",
        "-c",
        "id -u; touch /tmp/a /var/lib/clew/a && echo written; "
        "touch /app/a || echo kept; touch /opt/clew/a || echo kept",
    )
    assert ended.stdout.split() == ["10001", "written", "kept", "kept"], ended.stderr


async def test_the_arguments_are_those_of_the_command(image: Image, stack: Stack) -> None:
    """`--version` and `setup-namespace` run as they do elsewhere, and a word that is no command is refused."""
    entry = image.config["Entrypoint"]
    assert run_inside(image, *entry, "--version").stdout.strip()
    prepared = await asyncio.to_thread(
        run_inside, image, *entry, "setup-namespace", TEMPORAL_ADDRESS=stack.server.address
    )
    assert prepared.returncode == 0, prepared.stderr
    assert run_inside(image, *entry, "wroker").returncode == 2


async def test_a_message_to_the_service_is_answered_by_the_worker(image: Image, stack: Stack) -> None:
    """Both roles run from the image against one server; each passes the health check, and SIGTERM ends it."""
    key, (serve_port, health_port) = make_token(), free_ports(2)
    (image.secrets / "keys.toml").write_text(
        f'[[key]]\nname = "one"\nhash = "{compute_hash(key)}"\ntenant = "acme"\n'
    )
    common = {"TEMPORAL_ADDRESS": stack.server.address, "CLEW_TASK_QUEUE": "in-the-image"}
    working = {
        **common,
        "CLEW_HEALTH_ADDRESS": f"{LOOPBACK}:{health_port}",
        "CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url,
    }
    serving = {
        **common,
        "CLEW_HEALTH_ADDRESS": "",
        "CLEW_SERVE_HOST": LOOPBACK,
        "CLEW_SERVE_PORT": str(serve_port),
        "CLEW_SERVE_KEYS": "/run/keys.toml",
    }
    headers = {"Authorization": f"Bearer {key}"}
    url = f"http://{LOOPBACK}:{serve_port}/v1/sessions/from-outside"
    assert await check_health(image, **working) == 1
    async with (
        run_role(image, ["worker"], **working),
        run_role(image, ["serve"], **serving),
        httpx.AsyncClient(headers=headers, trust_env=False, timeout=START_SECONDS) as http,
    ):
        (await http.put(url, json={"model": stack.add_model("from the image")})).raise_for_status()
        answered = await http.post(f"{url}/messages", params={"wait": 30}, json={"content": "where are you?"})
        assert (answered.status_code, answered.json()["answer"]) == (200, "from the image")
        assert await check_health(image, **working) == 0
        assert await check_health(image, **serving) == 0


async def test_the_image_has_what_each_variable_asks_for(image: Image, stack: Stack) -> None:
    """A worker starts with MCP servers, Bedrock, traces, encryption and a bucket, a service with what it can have."""
    (image.secrets / "mcp.json").write_text('{"mcpServers": {}}')
    (image.secrets / "keys.toml").write_text("")
    health_port, serve_port = free_ports(2)
    both = {
        "TEMPORAL_ADDRESS": stack.server.address,
        "CLEW_ENCRYPTION_KEYS": "one:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{LOOPBACK}:1",
        "CLEW_TASK_QUEUE": "with-extras",
    }
    working = {
        "CLEW_HEALTH_ADDRESS": f"{LOOPBACK}:{health_port}",
        "CLEW_MCP": "/run/mcp.json",
        "CLEW_BEDROCK_REGION": "us-east-1",
        "CLEW_STORE": "s3://bucket/sessions",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "two-is-secret",
    }
    serving = {"CLEW_SERVE_HOST": LOOPBACK, "CLEW_SERVE_PORT": str(serve_port), "CLEW_SERVE_KEYS": "/run/keys.toml"}
    async with run_role(image, ["worker"], **both, **working) as worker:
        assert "models: bedrock" in worker.log.read_text()
    async with run_role(image, ["serve"], **both, **serving):
        pass


# Images that are made from it.


def freeze(image: Image) -> set[str]:
    """List the packages of an image with their versions."""
    ended = run_inside(image, "pip", "freeze", "--exclude", "clew")
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


def test_an_image_of_three_lines_has_packages_of_ones_own(image: Image, own: Image) -> None:
    """As the page says it: they are in the same environment, and all others keep the versions that were tested."""
    assert own.config["User"] == image.config["User"]
    assert {name.partition("==")[0] for name in freeze(own) - freeze(image)} == {"iniconfig"}
    assert freeze(image) - freeze(own) == set()
    imported = run_inside(own, "python", "-c", "import clew.worker, clew.serve, iniconfig, my_package.agents")
    assert imported.returncode == 0, imported.stderr


def test_a_requirement_that_changes_a_tested_version_is_refused(builder: Builder, tmp_path: Path) -> None:
    """The build fails, and names the constraint."""
    (tmp_path / "Dockerfile").write_text(read_block("RUN pip install"))
    (tmp_path / "requirements.txt").write_text("pydantic<2.10\n")
    with pytest.raises(AssertionError, match="constraint"):
        builder.build("conflicting", tmp_path, *PIP)


def make_nginx(ingress: Object, folder: Path, port: int, target: int) -> str:
    """Make the configuration of nginx that an Ingress asks ingress-nginx for, on this machine."""
    prefix = "nginx.ingress.kubernetes.io/"
    rules = {name.removeprefix(prefix): value for name, value in ingress["metadata"]["annotations"].items()}
    largest = rules.pop("proxy-body-size")
    lines = [f"client_max_body_size {largest};", *(f"{name.replace('-', '_')} {rules[name]};" for name in rules)]
    return NGINX.format(folder=folder, host=LOOPBACK, port=port, target=target, rules=" ".join(lines))


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
async def test_an_agent_is_served_over_tls_by_what_the_chart_says(own: Image, stack: Stack, tmp_path: Path) -> None:
    """Processes of the image with the arguments and variables of the chart's objects, behind nginx as its ingress.

    Addresses, and the folders of Secrets and of the store, are those of this machine.
    """
    objects = render("serve")
    key, ports = make_token(), free_ports(6)
    tls, serving = ports[:2]
    (own.secrets / "keys.toml").write_text(format_key(key))
    make_certificates(tmp_path)
    nginx = tmp_path / "nginx.conf"
    nginx.write_text(make_nginx(select(objects, "Ingress")["clew-serve"], tmp_path, tls, serving))

    def use_tool(body: dict[str, Any]) -> Reply:
        newest = body["messages"][-1]
        if newest["role"] == "tool":
            return Reply(newest["content"])
        return Reply(tool_calls=(ToolCall("look_up", {"order_id": 1234}),))

    stack.scripts["in-the-image"] = use_tool
    here = {
        **stack.environ,
        "TEMPORAL_ADDRESS": stack.server.address,
        "TEMPORAL_NAMESPACE": stack.server.namespace,
        "CLEW_TASK_QUEUE": "of-the-chart",
        "CLEW_STORE": "/run/store",
        "CLEW_METRICS_ADDRESS": "",
        "CLEW_SERVE_HOST": LOOPBACK,
        "CLEW_SERVE_PORT": str(serving),
        "CLEW_SERVE_KEYS": "/run/keys.toml",
    }
    url, headers = f"https://{LOOPBACK}:{tls}/v1/sessions/order", {"Authorization": f"Bearer {key}"}
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    async with AsyncExitStack() as running:
        deployments = select(objects, "Deployment").values()
        for port, deployment in zip(ports[2:], deployments, strict=True):
            variables = {**read_variables(objects, deployment), **here, "CLEW_HEALTH_ADDRESS": f"{LOOPBACK}:{port}"}
            role = run_role(own, find_container(deployment)["args"], **variables)
            await running.enter_async_context(role)
        proxy = child_process("nginx", ["nginx", "-p", str(tmp_path), "-c", str(nginx)])
        child = await running.enter_async_context(proxy)
        await child.wait_until(lambda: accepts_connections(tls), START_SECONDS)
        http = httpx.AsyncClient(headers=headers, verify=context, trust_env=False, timeout=START_SECONDS)
        await running.enter_async_context(http)
        (await http.put(url, json={"agent": "support"})).raise_for_status()
        sent = {"Idempotency-Key": "first"}
        answered = await http.post(
            f"{url}/messages", params={"wait": 30}, headers=sent, json={"content": "Where is my order?"}
        )
        assert (answered.status_code, answered.json().get("answer")) == (200, "order 1234 is on its way")
        async with http.stream("GET", f"{url}/requests/first/events") as events:
            assert events.headers["Content-Type"].startswith("text/event-stream")
            assert "order 1234 is on its way" in (await events.aread()).decode()


def test_packages_come_from_a_private_index(builder: Builder, tmp_path: Path) -> None:
    """As the page says it: the build reads a secret `pip.conf`, of which the image has nothing."""
    wheel = "team_tools-1.0-py3-none-any.whl"
    folder = tmp_path / "index/simple/team-tools"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / wheel, "w") as made:
        made.writestr("team_tools.py", "")
        files = {
            "METADATA": "Metadata-Version: 2.1\nName: team-tools\nVersion: 1.0\nRequires-Dist: pydantic\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        for name, text in files.items():
            made.writestr(f"team_tools-1.0.dist-info/{name}", text)
    (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    (tmp_path / "Dockerfile").write_text(read_block("RUN --mount=type=secret"))
    (tmp_path / "requirements.txt").write_text("team-tools\n")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            (tmp_path / "pip.conf").write_text(
                f"[global]\nindex-url = http://{LOOPBACK}:{server.server_port}/simple/\n"
            )
            builder.build("private", tmp_path, f"--secret=id=pip.conf,src={tmp_path / 'pip.conf'}")
        finally:
            server.shutdown()
    private = builder.open("localhost/private")
    assert "team-tools==1.0" in freeze(private)
    assert not (private.root / "etc/pip.conf").exists() or not (private.root / "etc/pip.conf").read_text()
