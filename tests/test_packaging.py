"""The installed package: a client with light dependencies, and module names of this project only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from email.parser import Parser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml  # type: ignore[import-untyped]

from clew import Clew
from clew.local import Reply, TemporalServer, ToolCall, scripted_model, temporal_server
from clew.local.child import child_process
from tests.support.command_line import make_environment

ROOT = Path(__file__).parent.parent

INSPECT = """
import importlib.metadata, json, sys
names = sorted(dist.metadata["Name"].lower() for dist in importlib.metadata.distributions())
files = [str(file) for file in importlib.metadata.files("clew")]
import clew
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"names": names, "files": files, "loaded": loaded, "home": clew.__file__}))
"""

USE = """
from clew import ContextPolicy, ToolContext, tool
from clew.thread import Thread
from clew.context import build_context

@tool
def add(a: int, context: ToolContext, b: int = 2) -> int:
    "The sum."
    return a + b

assert add.spec["description"] == "The sum."
assert build_context(Thread(), policy=ContextPolicy.long_context()).messages == []
"""


TOOL = """
import os
import clew

@clew.tool
def greet() -> str:
    "Greet."
    assert "site-packages" in clew.__file__
    return f"hello from {os.getcwd()}"
"""


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **{"timeout": 120, **options})


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install this project into an empty environment; the value is its interpreter."""
    home = tmp_path_factory.mktemp("backend")
    assert run(sys.executable, "-m", "venv", "--without-pip", home).returncode == 0
    python = home / "bin" / "python"
    options = ("--disable-pip-version-check", "--no-input", "--quiet")
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", *options, ROOT)
    assert installed.returncode == 0, installed.stderr
    return python


def in_environment(python: Path, script: str) -> str:
    """Run a script outside the checkout, with warnings as errors; returns its output."""
    ran = run(python, "-I", "-W", "error", "-c", script, cwd=python.parent)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_backend_gets_the_package_alone(python: Path) -> None:
    """It installs `clew` with types, the Temporal SDK and three small libraries: no HTTP client, no tokenizer.

    The top-level names are `clew` and four names that begin with `clew_`.
    """
    environment = json.loads(in_environment(python, INSPECT))
    assert {"clew", "temporalio", "pydantic", "rfc8785", "docstring_parser"} <= set(environment["names"])
    assert not {"httpx", "requests", "tiktoken", "bpe-openai", "typer", "rich", "pytest"} & set(environment["names"])
    assert len(environment["names"]) <= 15, environment["names"]
    tops = {Path(file).parts[0] for file in environment["files"]} - {".."}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "clew",
        "clew_activities",
        "clew_audit",
        "clew_pytest",
        "clew_workflows",
    }
    assert {"clew/py.typed", "clew_workflows/py.typed"} <= set(environment["files"])
    assert not {"httpx", "tiktoken", "typer", "rich", "jsonschema_rs"} & set(environment["loaded"])
    assert not {"clew_activities", "clew_audit"} & set(environment["loaded"])
    assert ROOT not in Path(environment["home"]).parents


@pytest.mark.slow
def test_the_package_works_there(python: Path) -> None:
    """A tool can be made and a context built without further dependencies."""
    in_environment(python, USE)


@pytest.mark.slow
def test_the_command_names_the_missing_extra(python: Path) -> None:
    """Without the extra `cli`, the command prints the `pip install` line and no traceback."""
    ran = run(python.parent / "clew", "status", "some-session", cwd=python.parent)
    assert ran.returncode == 1
    assert "pip install 'clew[cli]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def list_install_commands() -> list[tuple[Path, str]]:
    """List what the pages tell people to type to install something: the folder of the page, and the command."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(
        # The pages of docs/ speak of the repository's folder.
        (page.parent if "examples" in page.parts else ROOT, command.strip())
        for page in pages
        # The images of docs/deployment.md are built by its own test.
        for command in re.findall(r"\bpip install [^#`\n]+", re.sub(r"(?m)^RUN .*$", "", page.read_text()))
    )


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what `python3 -m venv` makes; the value is the folder of its commands."""
    home = tmp_path_factory.mktemp("newcomer")
    assert run(sys.executable, "-m", "venv", home).returncode == 0
    return home / "bin"


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "command"), list_install_commands(), ids=lambda value: Path(value).name)
def test_what_a_page_tells_people_to_install_can_be_installed(
    folder: Path, command: str, new_environment: Path
) -> None:
    """Each `pip install` line of the pages works as it stands in a new environment, and each extra exists."""
    environ = {**make_plain_environment(), "PATH": f"{new_environment}:{os.environ['PATH']}"}
    # As typed, but nothing is downloaded: the fixture `installed` installs all of it.
    without_download = 'pip() { command pip "$@" --dry-run --no-deps; }'
    typed = run("bash", "-c", f"{without_download}; {command}", cwd=folder, env=environ, timeout=300)
    assert typed.returncode == 0, typed.stderr
    assert "Would install" in typed.stdout
    assert "does not provide the extra" not in typed.stdout + typed.stderr


@pytest.mark.slow
def test_an_installed_package_gets_the_extra_that_an_error_names(python: Path) -> None:
    """`pip install 'clew[cli]'` adds the extra to the installed package; it asks no index for a package `clew`."""
    added = run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--dry-run", "--disable-pip-version-check"),
        "clew[cli]",
    )
    assert added.returncode == 0, added.stderr
    (would,) = re.findall("Would install (.*)", added.stdout)
    assert "typer-" in would
    assert "clew-" not in would


BUILD = "-m build --no-isolation"
"""The build of a release, behind the name of the interpreter."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package as `make dist` does: the sdist, and the wheel of its files."""
    home = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, *BUILD.split(), "--outdir", home, ROOT, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return home


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel with its extras and the pinned versions; the value is the folder of the commands."""
    home = tmp_path_factory.mktemp("user")
    options = ("--disable-pip-version-check", "--no-input", "--quiet")
    pip = (sys.executable, "-m", "pip")
    (wheel,) = dist.glob("clew-*.whl")
    # With the hashes of the pins, pip would ask for a hash of the wheel, too.
    pins = re.findall(r"(?m)^([a-z0-9-]+==[^\\\n]+?) *\\?$", (ROOT / "constraints/dev.txt").read_text())
    (home / "pins.txt").write_text("\n".join(pins))
    assert run(sys.executable, "-m", "venv", "--without-pip", home / "venv").returncode == 0
    commands = home / "venv" / "bin"
    wanted = (f"clew[local,testing] @ {wheel.as_uri()}", "pytest-asyncio")
    done = run(
        *(*pip, "--python", commands / "python", "install", *options, "--constraint", home / "pins.txt", *wanted),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return commands


@pytest.mark.slow
def test_the_package_says_what_it_is(dist: Path) -> None:
    """Its metadata has addresses, classifiers, keywords, all licences and the README; the wheel has the SKILL.md."""
    (wheel,), (sdist,) = dist.glob("clew-*.whl"), dist.glob("clew-*.tar.gz")
    with ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(files.read(name).decode())
        assert "clew/SKILL.md" in files.namelist()
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("License-File", ())) == {
        "LICENSE",
        "client/clew/report/vendor/dompurify.LICENSE",
        "client/clew/report/vendor/marked.LICENSE",
    }
    labels = {address.partition(",")[0] for address in metadata.get_all("Project-URL", ())}
    assert labels == {"Documentation", "Source", "Changelog", "Issues", "Security"}
    assert {"Summary", "Keywords", "Author", "Requires-Python"} <= set(metadata)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# Clew")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml"} <= inside
    assert not {name for name in inside if name.startswith(("tests/", "bench/", "docs/"))}


@pytest.mark.slow
def test_an_index_accepts_the_package(dist: Path) -> None:
    """`twine check` has no remark about it. `make publish-tools` installs it."""
    twine = ROOT / ".venv" / "publish" / "bin" / "twine"
    if not twine.with_name("python").exists():
        pytest.skip("make publish-tools installs twine")
    checked = run(twine.with_name("python"), "-m", "twine", "check", "--strict", *dist.iterdir())
    assert checked.returncode == 0, checked.stdout


def test_a_release_is_published_as_it_is_tested() -> None:
    """The workflow makes what `make dist` builds, with the build of these tests; each action is pinned."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    commands = [step["run"] for step in build["steps"] if "run" in step]
    assert commands[-2:] == ["make release-check", "make dist"]
    makefile = (ROOT / "Makefile").read_text()
    assert f"BUILD_PACKAGE := $(BIN)/python {BUILD}\n" in makefile
    assert re.search(r"(?m)^dist:.*\n(?:\t.*\n)*\t\$\(BUILD_PACKAGE\) --outdir dist \.$", makefile)
    assert workflow["permissions"] == {}
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"attestations": "write", "id-token": "write"}
    steps = [*build["steps"], *publish["steps"]]
    used = {name: version for name, _, version in (step["uses"].partition("@") for step in steps if "uses" in step)}
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+|[0-9a-f]{40}", version) for version in used.values()), used
    assert {"actions/attest-build-provenance", "actions/attest-sbom", "pypa/gh-action-pypi-publish"} <= used.keys()
    (upload,) = [step for step in publish["steps"] if step.get("uses", "").startswith("pypa/")]
    assert upload["with"] == {"attestations": True}, "trusted publishing: no token, no password"


@pytest.mark.slow
async def test_an_installed_worker_runs_a_tool_of_the_current_folder(
    installed: Path, server: TemporalServer, tmp_path: Path
) -> None:
    """The wheel alone is enough: `clew worker` in a folder outside the checkout serves a session with its tool."""
    (tmp_path / "my_tools.py").write_text(TOOL)
    queue = f"wheel-{uuid.uuid4().hex}"

    def use_tool(body: dict[str, Any]) -> Reply:
        newest = body["messages"][-1]
        return Reply(newest["content"]) if newest["role"] == "tool" else Reply(tool_calls=(ToolCall("greet", {}),))

    async with scripted_model(use_tool) as model:
        environ = {
            **make_environment(server.address, CLEW_PROVIDER_SCRIPTED_BASE_URL=model.base_url),
            "CLEW_STORE": "memory://",
        }
        environ.pop("PYTHONPATH", None)
        command: list[str | Path] = [installed / "clew", "worker", "--tools", "my_tools", "--task-queue", queue]
        async with child_process("installed", command, env=environ, folder=tmp_path) as child:

            async def is_ready() -> bool:
                return "worker ready" in child.read_log_tail()

            await child.wait_until(is_ready, 60)
            clew = await Clew.connect(server.address, task_queue=queue)
            session = await clew.open(queue, model="scripted:any", tools=["greet"])
            assert await session.ask("Hello?") == f"hello from {tmp_path}"
            await session.close()


@pytest.mark.slow
async def test_a_repository_of_ones_own_is_tested_and_served(installed: Path, tmp_path: Path) -> None:
    """`examples/own-repository` with the wheel alone: its tests pass, and a backend asks the agent of its worker."""
    folder = tmp_path / "own-repository"
    shutil.copytree(ROOT / "examples" / "own-repository", folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    tested = run(installed / "python", "-W", "error", "-m", "pytest", "-q", cwd=folder, env=make_plain_environment())
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout

    def answer(body: dict[str, Any]) -> Reply:
        newest = body["messages"][-1]
        if newest["role"] == "tool":
            return Reply(f"Your order is {json.loads(newest['content'])['status']}.")
        return Reply(tool_calls=(ToolCall("lookup_order", {"order_id": 1234}),))

    async with temporal_server(ui=False) as server, scripted_model(answer) as model:
        environ = {
            **make_plain_environment(),
            **make_environment(server.address, OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="test-key-of-nobody"),
            "CLEW_STORE": "memory://",
        }
        environ.pop("PYTHONPATH", None)
        command: list[str | Path] = [installed / "clew", "worker", "--agents", "support.agents"]
        async with child_process("own", command, env=environ, folder=folder) as child:

            async def is_ready() -> bool:
                return "worker ready" in child.read_log_tail()

            await child.wait_until(is_ready, 60)
            asked = await asyncio.to_thread(
                run, installed / "python", "backend.py", "4711", "Where is order 1234?", cwd=folder, env=environ
            )
    assert asked.stdout == "Your order is shipped.\n", asked.stderr


def make_plain_environment() -> dict[str, str]:
    """Copy this process's environment without what would show the checkout to Python."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
