"""The page about the first hour: its files and its commands, in their order, on real parts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clew.local.child import free_ports
from docs.generate import DOCS
from tests.support.command_line import make_environment

PAGE = (DOCS / "first-hour.md").read_text(encoding="utf-8")
EXAMPLE = DOCS.parent / "examples" / "own-repository"
SECONDS = 240
_BLOCK = re.compile(
    r"(?P<skipped><!-- not run.*?-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


def list_blocks() -> Iterator[tuple[str, str]]:
    """List the page's blocks in order: a file's name or `commands` or `output`, and the text."""
    for block in _BLOCK.finditer(PAGE):
        if block["skipped"]:
            continue
        if block["language"] in ("python", "toml"):
            first, _, text = block["text"].partition("\n")
            yield first.removeprefix("# "), text
        else:
            yield {"": "commands", "text": "output"}[block["language"]], block["text"]


def test_the_files_are_those_of_the_example() -> None:
    """`examples/own-repository` can be copied instead of typing the page's files."""
    files = {name: text for name, text in list_blocks() if name not in ("commands", "output")}
    assert {name: (EXAMPLE / name).read_text(encoding="utf-8") for name in files} == files


@pytest.mark.slow
def test_the_page_works_as_it_is_typed(tmp_path: Path) -> None:
    """Each command runs, and prints what the page shows. Two killed workers change no answer."""
    port, ui_port = free_ports(2)
    script, shown = ["set -eu"], []
    for number, (name, text) in enumerate(list_blocks()):
        if name == "commands":
            script += [f"echo '# block {number}'", text]
        elif name == "output":
            shown.append((f"# block {number - 1}\n", text.rstrip("\n")))
        else:
            script += [f"mkdir -p \"$(dirname '{name}')\"", f"cat > '{name}' <<'END_OF_FILE'\n{text}END_OF_FILE"]
    typed = "\n".join(script).replace(":7233", f":{port}").replace("--port 7233", f"--port {port}")
    typed = typed.replace("clew dev ", f"clew dev --port {port} --ui-port {ui_port} ")
    output = run_typed(typed, tmp_path)
    for command, expected in shown:
        assert expected in output.partition(command)[2].partition("# block")[0], output


def run_typed(typed: str, folder: Path) -> str:
    """Run a script of bash in a folder, and return its output. All processes that it has started end with it."""
    environ = make_environment()
    for name in ("PYTHONPATH", "PYTEST_ADDOPTS"):
        environ.pop(name, None)
    log = folder / "shell.log"
    with log.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-c", typed], cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | str = shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = f"not ended after {SECONDS} seconds"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    logs = "\n".join(f"# {path.name}\n{path.read_text()}" for path in sorted(folder.glob("*.log")))
    assert code == 0, f"{code}\n{logs}"
    return log.read_text()
