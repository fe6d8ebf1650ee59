"""Install programs of others: those of the local cluster with `make deploy-servers`, and those that check the chart.

They are built from Go modules: `go.mod` and `go.sum` in a folder pin every module with its hash. A build is kept by
the hash of these two files, outside of the checkout, so that another checkout finds it; it needs no compiler then.
PostgreSQL comes from the system's packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.local import StartFailed
from clew.local.temporal import temporal_command

_FOLDER = Path(__file__).parent
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "temporal": {
        "temporal-server": "go.temporal.io/server/cmd/server",
        "temporal-sql-tool": "go.temporal.io/server/cmd/tools/sql",
    },
    "seaweedfs": {"weed": "github.com/seaweedfs/seaweedfs/weed"},
    "helm": {"helm": "helm.sh/helm/v3/cmd/helm"},
    "etcd": {"etcd": "go.etcd.io/etcd/server/v3"},
    "kubernetes": {"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"},
}
"""The programs of each folder, and the Go packages that they are built from."""
_TARGETS: Mapping[str, Sequence[str]] = {
    "deploy-servers": ("temporal", "seaweedfs"),
    "deploy-tools": ("helm",),
    "deploy-api-server": ("etcd", "kubernetes"),
}
"""The folders that each target of the Makefile builds."""


@dataclass(frozen=True)
class Programs:
    """The programs of a local cluster.

    Attributes:
        temporal_server: Temporal's server.
        temporal_sql_tool: The program that makes Temporal's tables.
        temporal: Temporal's command line, from the extra `local`.
        weed: SeaweedFS.
        initdb: The program that makes a PostgreSQL database folder.
        postgres: The PostgreSQL server.
    """

    temporal_server: Path
    temporal_sql_tool: Path
    temporal: Path
    weed: Path
    initdb: Path
    postgres: Path


def find_programs() -> Programs:
    """Find the programs of the local cluster.

    Raises:
        StartFailed: One is missing.
    """
    postgresql = find_postgresql()
    if postgresql is None:
        raise StartFailed("PostgreSQL is not installed: run `make deploy-servers`")
    return Programs(
        find_program("temporal", "temporal-server"),
        find_program("temporal", "temporal-sql-tool"),
        temporal_command(),
        find_program("seaweedfs", "weed"),
        postgresql / "initdb",
        postgresql / "postgres",
    )


def find_program(folder: str, name: str) -> Path:
    """Find a program that is built from a folder.

    Raises:
        StartFailed: It has not been built.
    """
    program = locate(folder) / name
    if not program.exists():
        target = next(target for target, folders in _TARGETS.items() if folder in folders)
        raise StartFailed(f"{name} has not been built: run `make {target}`")
    return program


def find_postgresql() -> Path | None:
    """Find the folder with the programs of the newest PostgreSQL server."""
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def read_go_version() -> str:
    """Read the oldest version of Go that builds all programs: the newest one that a `go.mod` names."""
    texts = [(_FOLDER / folder / "go.mod").read_text() for folder in _PACKAGES]
    versions = [version for text in texts for version in re.findall(r"(?m)^go ([\d.]+)$", text)]
    return str(max(versions, key=lambda version: tuple(map(int, version.split(".")))))


def read_version(folder: str, module: str) -> str:
    """Read the version of a module that a folder pins."""
    found = re.search(rf"(?m)^\s+{re.escape(module)} (\S+)", (_FOLDER / folder / "go.mod").read_text())
    if found is None:
        raise LookupError(f"{folder}/go.mod does not require {module}")
    return found[1]


def locate(folder: str) -> Path:
    """Name the folder where the programs of a module are once they have been built."""
    digest = hashlib.sha256(f"go{read_go_version()}".encode())
    for file in ("go.mod", "go.sum"):
        digest.update((_FOLDER / folder / file).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "clew", "servers")
    return cache / f"{folder}-{digest.hexdigest()[:16]}"


def build(folder: str) -> None:
    """Build the programs of a module, if they are not there.

    Raises:
        StartFailed: Go is not installed, or it failed. Its output is on standard error.
    """
    target = locate(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        if shutil.which("go") is None:
            raise StartFailed(f"the Go compiler is not installed: it builds {', '.join(_PACKAGES[folder])}")
        names = ", ".join(_PACKAGES[folder])
        print(f"Building {names}: this takes minutes, and happens once for a version.", flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"{folder}-", dir=target.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            for name, package in _PACKAGES[folder].items():
                _compile(folder, package, made / name)
            made.rename(target)
        print(f"Built {names} in {time.monotonic() - begun:.0f} s: {target}", flush=True)


def _compile(folder: str, package: str, program: Path) -> None:
    # The tag is the one of Temporal's own builds: without it, clients of stores that Clew does not use are compiled.
    options = ["-mod=readonly", "-trimpath", "-tags=disable_grpc_modules", "-ldflags=-s -w"]
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    command = ["go", "build", *options, "-o", str(program), package]
    if status := subprocess.run(command, cwd=_FOLDER / folder, env=environ, check=False).returncode:
        raise StartFailed(f"go build {package} ended with {status}")


def install_postgresql() -> None:
    """Install PostgreSQL with Debian's packages, without a database of its own, if it is missing.

    Raises:
        StartFailed: This process may not install packages, or they cannot be installed.
    """
    if find_postgresql() is not None:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise StartFailed("PostgreSQL is not installed, and this is not root on Debian: install it (12 or later)")
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    # With the settings from above, which the package would otherwise ask about.
    keep = ["-o", "Dpkg::Options::=--force-confold"]
    for command in (["update"], ["install", "--yes", *keep, "postgresql"]):
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if subprocess.run(["apt-get", "--quiet", *command], env=environ, check=False).returncode:
            raise StartFailed(f"apt-get {command[0]} failed")


def main(target: str) -> int:
    """Install what a target of the Makefile needs and is missing; return the exit status."""
    try:
        if target == "deploy-servers":
            install_postgresql()
        for folder in _TARGETS[target]:
            build(folder)
        folders = {locate(folder) for folder in _TARGETS[target]}
        if target == "deploy-servers":
            folders |= {program.parent for program in vars(find_programs()).values()}
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(*sorted(map(str, folders)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
