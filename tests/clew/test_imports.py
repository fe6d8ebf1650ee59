"""What a backend installs is enough to read and project a thread."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from clew_workflows.thread.context.contexts import build_context
from tests.support.threads import Writer, assistant_calls, assistant_says, tool_returns, user_says

ROOT = Path(__file__).parents[2]
PURE = (
    "clew_workflows.contract",
    "clew_workflows.thread",
    "clew_workflows.thread.context",
)
READER = f"""
import importlib, json, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("httpx", "httpx_sse", "tiktoken", "bpe_openai"):
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, Blocked())
sys.path[:0] = [{str(ROOT / "client")!r}, {str(ROOT / "workflows")!r}]
import clew
for name in {PURE!r}:
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{{name}}.{{module.name}}")
from clew.context import build_context
from clew.errors import EncodingUnavailable
from clew_workflows.contract.tokens import load_encoding
from clew.thread import Entry, Thread

context = build_context(Thread(map(Entry.from_json, json.load(sys.stdin))))
try:
    load_encoding("o200k_base")
except EncodingUnavailable as error:
    refused = str(error)
print(json.dumps([context.messages, context.meta.as_dict(), refused]))
"""


def test_a_thread_is_projected_without_the_workers_libraries() -> None:
    """Without httpx and tokenizers the package imports, and a thread from JSON projects as on a worker."""
    writer = Writer("o200k_base")
    writer.config()
    writer.talk(user_says("a"), assistant_calls("x", "y"), tool_returns("x"), assistant_says("b"), user_says("c"))
    writer.summary(1)
    entries = json.dumps([entry.as_dict() for entry in writer.thread])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER], input=entries, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    messages, meta, refused = json.loads(done.stdout)
    here = build_context(writer.thread)
    assert (messages, meta) == (here.messages, here.meta.as_dict())
    assert "install 'clew[worker]'" in refused


def test_importing_the_package_imports_no_servers() -> None:
    """`clew.local` is loaded only by the programs that start servers."""
    script = "import clew, sys; print([name for name in sys.modules if name.startswith('clew.local')])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
