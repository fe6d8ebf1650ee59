"""Fits the pages to the site that `make docs` builds. In the repository they stand as they are.

README.md is the first page of the site. A link to a file that the site has leads to it. A link to any other file
becomes the path in the repository. The contract gets its tables.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.generate import page as tables

CONTRACT = "docs/contract.md"
ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "deploy/README.md": "files-of-deploy.md",
    "examples/own-repository/README.md": "own-repository.md",
    "bench/plots/load.svg": "images/load.svg",
}
"""What the site takes from outside of `docs/`, with its path in the site."""

STYLES = {
    # Some twenty narrow columns, which the theme would make wide.
    "docs/models.md": ".md-typeset table:not([class]) :is(th,td){min-width:0;padding:.4em .5em}"
}
"""Styles of single pages."""

# A block of code, or a link or a picture.
_LINK = re.compile(
    r"(?P<block>^ *```.*?^ *```$)|\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)
# mkdocs counts the warnings of this logger.
_log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside of `docs/`."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill the tables of the contract, and point each link of a page to its target in the site."""
    del config
    path = Path(str(page.file.abs_src_path)).relative_to(ROOT).as_posix()
    here = posixpath.dirname(page.file.src_uri)
    if path == CONTRACT:
        markdown = tables.filled(markdown, tables.blocks(), Path(CONTRACT).name)

    def fit(match: re.Match[str]) -> str:
        target, hash_, anchor = (match["target"] or "").partition("#")
        if match["block"] or not target or ":" in target:
            return match[0]
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not (ROOT / named).exists():
            _log.warning("%s links to %s, which does not exist", path, target)
        name = OUTSIDE.get(named, named.removeprefix("docs/"))
        if files.get_file_from_path(name) is None:
            return match["text"] if named.endswith(match["text"]) else f"{match['text']} (`{named}`)"
        return f"[{match['text']}]({posixpath.relpath(name, here or '.')}{hash_}{anchor})"

    style = f"\n\n<style>{STYLES[path]}</style>\n" if path in STYLES else ""
    return _LINK.sub(fit, markdown) + style
