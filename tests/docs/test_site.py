"""The site for programs that read: a list of its pages, and each page as Markdown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import DOCS
from docs.generate.python_api import slugify
from docs.generate.site import ROOT, make_llms_text, make_versions_page, read_version, show_bars

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
    assert {"index.md", "tools.md", "contract.md", "reference/python-api.md"} <= {name for name, _ in listed}
    for name, summary in listed:
        assert summary or name == "index.md"
        html = {"upstream/README.md": "upstream/index.html"}.get(name, name.replace(".md", ".html"))
        assert (tmp_path / html).exists(), name
        text = re.sub(r"```.*?```", "", (tmp_path / name).read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([\w./-]+\.(?:md|png|svg|json))(?:#[\w-]+)?\)", text):
            assert (tmp_path / name).parent.joinpath(target).resolve().exists(), (name, target)
    assert "`on_busy?`" in (tmp_path / "contract.md").read_text()
    # Read from disk, the page takes the search from a script, and a worker from another one.
    html = (tmp_path / "reference" / "limits.html").read_text()
    assert f"Clew {read_version()}" in html
    assert 'src="../assets/iframe-worker.js"' in html
    assert "https://unpkg.com" not in html
    assert (tmp_path / "search" / "search_index.js").read_text().startswith("var __index = {")


def test_every_page_is_in_the_navigation() -> None:
    """A reader who looks for a page in the site finds it; reports to Temporal are linked from their overview."""
    settings = (DOCS / "generate" / "mkdocs.yml").read_text()
    listed = set(re.findall(r"^ +- [^:]+: ([\w/.-]+\.md)$", settings.partition("\nnav:\n")[2], re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "generate" not in path.parts}
    reports = {name for name in pages if name.startswith("upstream/") and name != "upstream/README.md"}
    assert pages - reports <= listed
    assert listed - pages == {"index.md", "contributing.md"}


def list_links() -> list[tuple[str, str]]:
    """List the links of the repository's pages to files, with the pages."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
    found = []
    for page in sorted(pages):
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        targets = re.findall(r"\]\(([^)\s:]+)\)", re.sub(r"`[^`\n]*`", "", text))
        found += [(page.relative_to(ROOT).as_posix(), target) for target in targets]
    return found


def test_every_link_leads_somewhere_in_the_repository() -> None:
    """To a file, and in a page to a heading that is there."""
    wrong = []
    for name, link in list_links():
        target, _, anchor = link.partition("#")
        path = ROOT / name if not target else (ROOT / name).parent / target
        if not path.exists():
            wrong.append(f"{name}: {link}")
        elif anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
            if anchor not in map(slugify, plain):
                wrong.append(f"{name}: {link}")
    assert wrong == []


def test_the_newest_version_stands_first() -> None:
    """A release before its candidates, and 0.10 before 0.9."""
    page = make_versions_page(["0.9.0", "0.10.0", "0.10.0rc1", "0.2.11"])
    assert re.findall(r"<a href=\"(.*?)/index.html\">", page) == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.11"]


def test_bars_in_the_code_of_a_table_are_shown_as_they_are() -> None:
    """GitHub needs a backslash before them, and the site would show it."""
    assert show_bars("| `a\\|b` | c\\|d |\n\n`e\\|f`\n") == "| `a|b` | c\\|d |\n\n`e\\|f`\n"
