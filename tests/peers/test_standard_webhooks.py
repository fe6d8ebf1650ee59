"""The libraries of Standard Webhooks in four languages verify what a worker has delivered, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.npm import NODE, install_packages
from tests.support.stack import Stack, make_client, serve
from tests.support.webhooks import SECRET, SETTINGS, Attempt, receive

SOURCE = Path(__file__).with_name("webhooks")
OTHER_SECRET = "whsec_" + "b" * 32
BUILD_SECONDS = 300
REFUSED = 3
"""What a program exits with whose library has refused the notice."""


def build_python(_folder: Path) -> Sequence[str | Path]:
    """The package `standardwebhooks` of PyPI."""
    return [sys.executable, SOURCE / "verify.py"]


def build_javascript(folder: Path) -> Sequence[str | Path]:
    """The package `standardwebhooks` of npm."""
    install_packages(SOURCE, folder)
    return [NODE, folder / "verify.mjs"]


def build_go(folder: Path) -> Sequence[str | Path]:
    """The module `github.com/standard-webhooks/standard-webhooks/libraries`."""
    _build(folder / "go", ["go", "mod", "download"], ["go", "build", "-o", "verify", "."])
    return [folder / "go" / "verify"]


def build_rust(folder: Path) -> Sequence[str | Path]:
    """The crate `standardwebhooks`."""
    build = ["cargo", "build", "--quiet", "--target-dir", "target"]
    _build(folder / "rust", ["cargo", "fetch", "--quiet"], build)
    return [folder / "rust" / "target" / "debug" / "verify"]


def _build(folder: Path, fetch: Sequence[str], build: Sequence[str]) -> None:
    """Build a program. Skips the test where there is no such compiler, or no such package."""
    if shutil.which(fetch[0]) is None:
        pytest.skip(f"{fetch[0]} is not installed")
    shutil.copytree(SOURCE / folder.name, folder)
    if _run_in(folder, fetch).returncode != 0:
        pytest.skip(f"{fetch[0]} did not bring the packages of {folder.name}")
    built = _run_in(folder, build)
    assert built.returncode == 0, built.stderr


def _run_in(folder: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)


def run(command: Sequence[str | Path], secret: str, headers: Mapping[str, str], body: Path) -> int:
    """Run a program that verifies a notice; returns what it exits with."""
    named = [headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")]
    done = subprocess.run([*command, secret, *named, body], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, REFUSED), done.stderr
    return done.returncode


async def deliver(stack: Stack) -> Attempt:
    """Have a worker deliver a notice of a session."""
    async with (
        serve(make_client(stack), stack.environ, store=stack.store, webhooks=SETTINGS) as clew,
        receive() as receiver,
    ):
        model = stack.add_model("Grüße, 世界 \U0001f9f6")
        session = await clew.open(f"test-{uuid.uuid4().hex}", model=model, webhooks=[receiver.make_webhook()])
        await session.ask("hello")
        await receiver.wait_for(1)
        return receiver.attempts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [build_python, build_javascript, build_go, pytest.param(build_rust, marks=pytest.mark.long)],
    ids=lambda build: build.__name__,
)
async def test_a_library_verifies_a_notice(
    stack: Stack, tmp_path: Path, build: Callable[[Path], Sequence[str | Path]]
) -> None:
    """It takes the notice as it came, and refuses it with another body, id, time, signature or secret."""
    notice = await deliver(stack)
    command = build(tmp_path / "built")
    came, altered = tmp_path / "came", tmp_path / "altered"
    came.write_bytes(notice.body)
    altered.write_bytes(notice.body.replace(b"request.ended", b"request.begun"))
    assert altered.read_bytes() != notice.body
    assert run(command, SECRET, notice.headers, came) == 0
    time = notice.headers["webhook-timestamp"]
    for secret, changes, body in (
        (SECRET, {}, altered),
        (OTHER_SECRET, {}, came),
        (SECRET, {"webhook-id": notice.id + "x"}, came),
        (SECRET, {"webhook-timestamp": str(int(time) + 1)}, came),
        (SECRET, {"webhook-timestamp": str(int(time) - 3600)}, came),
        (SECRET, {"webhook-signature": "v1," + "A" * 43 + "="}, came),
    ):
        assert run(command, secret, {**notice.headers, **changes}, body) == REFUSED
