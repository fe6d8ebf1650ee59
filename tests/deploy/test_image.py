"""The image: its own steps build it on an empty Debian, and a worker in it serves a session without rights.

buildah builds the Dockerfile. Its base image, which only a registry has, is replaced by Debian 13 and its Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clew import Clew
from clew.local.child import child_process
from tests.support.processes import ROOT
from tests.support.stack import Stack

BASE = "docker.io/library/python:3.13-slim"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
# How this machine's pip reaches its packages.
HOST_FILES = ("/etc/pip.conf", "/etc/ssl/certs", "/usr/local/share/ca-certificates")

# The root is read-only as with `docker run --read-only`, with what a container engine mounts.
ENTER = """
set -eu
mount --bind "$ROOT" "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -t tmpfs -o mode=0700,uid=10001 tmpfs "$ROOT/var/lib/clew"
mount -o remount,bind,ro "$ROOT"
exec chroot --userspec="$IDENTITY" "$ROOT" /bin/sh -c 'cd "$0" && exec "$@"' "$@"
"""

MISSING = [tool for tool in ("buildah", "debootstrap", "unshare") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.slow,
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
    """

    root: Path
    config: Mapping[str, Any]

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Make the command that runs a program in the image, as the image's user, in a mount namespace of its own."""
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "enter"]
        return [*enter, self.config["WorkingDir"], *arguments]

    def make_environment(self, **environment: str) -> dict[str, str]:
        """Make the program's environment: the image's variables and these, nothing of this machine's."""
        variables = dict(variable.split("=", 1) for variable in self.config["Env"])
        # `chroot`, `mount` and `unshare` are this machine's, the rest is found in the image.
        path = f"{variables['PATH']}:/usr/sbin:/sbin"
        return {**variables, **environment, "PATH": path, "ROOT": str(self.root), "IDENTITY": self.config["User"]}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Build the image."""
    folder = tmp_path_factory.mktemp("image")
    storage = ["--root", str(folder / "images"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]

    def run(*command: str) -> str:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    def build(*arguments: str) -> None:
        mounts = [f"--volume={file}:{file}:ro" for file in HOST_FILES if Path(file).exists()]
        run(
            "buildah",
            *storage,
            "build-using-dockerfile",
            "--isolation=chroot",
            "--format=docker",
            *mounts,
            *arguments,
        )

    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", str(folder / "debian"))
    excluded = [f"--exclude=./{name}" for name in ("dev", "proc", "sys", "var/cache/apt", "var/lib/apt")]
    (folder / "context").mkdir()
    run("tar", "-C", str(folder / "debian"), *excluded, "-cf", str(folder / "context/debian.tar"), ".")
    shutil.rmtree(folder / "debian")
    (folder / "context/Dockerfile").write_text(
        "FROM scratch\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "ADD debian.tar /\nRUN ln -s python3 /usr/bin/python\n"
    )
    build("--tag", BASE, str(folder / "context"))
    build(
        "--pull-never", "--file=deploy/Dockerfile", "--ignorefile=deploy/Dockerfile.dockerignore", "--tag=built", "."
    )
    container = run("buildah", *storage, "from", "--pull-never", "localhost/built").strip()
    config = json.loads(run("buildah", *storage, "inspect", "--type=image", "localhost/built"))["Docker"]["config"]
    yield Image(Path(run("buildah", *storage, "mount", container).strip()), config)
    run("buildah", *storage, "umount", container)
    shutil.rmtree(folder, ignore_errors=True)


def run_inside(image: Image, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the image to its end."""
    return subprocess.run(
        image.make_command(arguments),
        env=image.make_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_image_holds_the_program_and_nothing_of_the_checkout(image: Image) -> None:
    """No tests, no keys, no pip; the process has a user, a health check and a signal that ends it."""
    assert sorted(path.name for path in (image.root / "app").iterdir()) == [
        "activities",
        "audit",
        "client",
        "worker.py",
        "workflows",
    ]
    assert not (image.root / "opt/clew/bin/pip").exists()
    assert image.config["User"] == "10001:10001"
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Healthcheck"]["Test"][0] == "CMD"
    assert [name for name in image.make_environment() if name.endswith("_KEY")] == []


def test_the_process_cannot_write_to_the_image(image: Image) -> None:
    """It is no root, and the root file system is read-only."""
    ended = run_inside(
        image, "sh", "-c", "id -u; touch /tmp/a /var/lib/clew/a && echo written; touch /app/a || echo kept"
    )
    assert ended.stdout.split() == ["10001", "written", "kept"], ended.stderr


async def test_a_worker_in_the_image_serves_a_session(image: Image, stack: Stack) -> None:
    """A session works with it alone, the health check of the image passes, and SIGTERM ends it with status 0."""
    queue = "in-the-image"
    environment = image.make_environment(
        TEMPORAL_ADDRESS=stack.server.address,
        CLEW_TASK_QUEUE=queue,
        CLEW_PROVIDER_SCRIPTED_BASE_URL=stack.provider.base_url,
    )
    command = image.make_command(image.config["Entrypoint"])
    async with child_process("worker", command, env=environment) as worker:

        async def is_ready() -> bool:
            return "worker ready: task queue 'in-the-image'" in worker.log.read_text()

        await worker.wait_until(is_ready, 60)
        session = await Clew(stack.clew.temporal, queue).open("in-the-image", model=stack.add_model("from the image"))
        assert await session.ask("where are you?") == "from the image"
        health = await asyncio.to_thread(run_inside, image, *image.config["Healthcheck"]["Test"][1:])
        assert health.returncode == 0, health.stderr
        await worker.stop(40)
        assert worker.process.returncode == 0, worker.read_log_tail()
