"""The site for programs that read: a list of its pages, and each page as Markdown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import DOCS
from docs.generate.site import make_llms_text

SECONDS = 300


def test_the_list_names_each_page_with_its_first_sentence() -> None:
    """In the form of llmstxt.org: a title, a quotation, and sections of links."""
    markdown = {
        "index.md": "# Clew\n\nIt runs [sessions](sessions.md)\non Temporal. It has tests.\n",
        "tools.md": "# Tools\n\n```\nclew chat\n```\n\n`tool` makes a tool. It is a function.\n",
    }
    made = make_llms_text([("", [("Overview", "index.md")]), ("Begin", [("Tools", "tools.md")])], markdown)
    assert made == (
        "# Clew\n\n> It runs sessions on Temporal.\n\n- [Overview](index.md)\n\n"
        "## Begin\n\n- [Tools](tools.md): `tool` makes a tool.\n"
    )


@pytest.mark.slow
def test_the_site_has_each_page_as_markdown(tmp_path: Path) -> None:
    """Beside its HTML, with all that is made from the code, and with links that lead to files of the site."""
    built = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"),
            *("--config-file", str(DOCS / "generate" / "mkdocs.yml"), "--site-dir", str(tmp_path)),
        ],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, cwd=DOCS.parent, capture_output=True, text=True,
        check=False, timeout=SECONDS,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    listed = re.findall(r"^- \[[^]]+\]\((\S+?)\)(?:: (.+))?$", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    assert {"index.md", "tools.md", "contract.md", "moving.md"} <= {name for name, _ in listed}
    for name, summary in listed:
        assert summary or name == "index.md"
        html = {"upstream/README.md": "upstream/index.html"}.get(name, name.replace(".md", ".html"))
        assert (tmp_path / html).exists(), name
        text = re.sub(r"```.*?```", "", (tmp_path / name).read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([\w./-]+\.(?:md|png|svg|json))(?:#[\w-]+)?\)", text):
            assert (tmp_path / name).parent.joinpath(target).resolve().exists(), (name, target)
    assert "`on_busy?`" in (tmp_path / "contract.md").read_text()
