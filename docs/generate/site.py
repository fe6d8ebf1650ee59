"""Fits the pages to the site that `make docs` builds. In the repository they stand as they are.

README.md is the first page of the site. A link to a file that the site has leads to it. A link to any other file
becomes the path in the repository. The contract gets its tables.

For programs that read, the site has each page as Markdown, `page.md` beside `page.html`, and a list, `llms.txt`.

Each version of Clew has a folder in `site/`, and `site/index.html` lists them. A folder that is there stays: build the
pages of each release once, and keep its folder.
"""

from __future__ import annotations

import logging
import posixpath
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
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
    "docs/generate/site.css": "assets/site.css",
    "docs/generate/iframe-worker.js": "assets/iframe-worker.js",
}
"""What the site takes from outside of `docs/`, with its path in the site."""

LOOKED_UP = ("reference/", "upstream/", "contract.md")
"""Pages with so many names that a search would find them before the pages that say how to do something."""
BOOST = 0.3
"""What the search multiplies their score by."""

# A block of code, or a link or a picture.
_LINK = re.compile(
    r"(?P<block>^ *```.*?^ *```$)|\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_SENTENCE = re.compile(r".*?\.(?= |$)")
_LINK_TEXT = re.compile(r"\[([^\[\]]*)\]\([^)\s]+\)")
# mkdocs counts the warnings of this logger.
_log = logging.getLogger("mkdocs.hooks")


_markdown: dict[str, str] = {}
"""The Markdown of the site's pages, by their paths in it."""
_groups: list[tuple[str, list[Page]]] = []
"""The pages of the navigation, by its groups."""


PLACE = "VERSION"
"""What stands for the version in `site_dir`."""
VERSIONS = "clew-versions.html"
"""What stands for the list of versions in the pages, until its path is known."""


def read_version() -> str:
    """Read the version of Clew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version on each page, and link to the other ones where the site has a folder for each."""
    version, folder = read_version(), Path(config.site_dir)
    config.site_name = note = f"Clew {version}"
    if folder.name == PLACE:
        config.site_dir = str(folder.parent / version)
        note += f' · <a href="{VERSIONS}">All versions</a>'
    config.copyright = note
    return config


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Point the link to the list of versions."""
    del config
    return output.replace(f'href="{VERSIONS}"', f'href="{"../" * (page.url.count("/") + 1)}index.html"')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside of `docs/`."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill the tables of the contract, and point each link of a page to its target in the site."""
    del config
    if page.file.src_uri.startswith(LOOKED_UP):
        page.meta.setdefault("search", {"boost": BOOST})
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

    fitted = _LINK.sub(fit, markdown)
    _markdown[page.file.src_uri] = fitted
    return show_bars(fitted)


def show_bars(markdown: str) -> str:
    """Write bars in the code of a table without a backslash, which the site would show and GitHub needs."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Note the groups of the navigation."""
    del config, files
    _groups.clear()
    for item in nav.items:
        if isinstance(item, Section):
            _groups.append((item.title, [child for child in item.children if isinstance(child, Page)]))
        elif isinstance(item, Page):
            _groups.append(("", [item]))
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages as Markdown, and `llms.txt`."""
    site = Path(config.site_dir)
    for name, text in _markdown.items():
        (site / name).write_text(text, encoding="utf-8")
    groups = [(title, [(str(page.title), page.file.src_uri) for page in pages]) for title, pages in _groups]
    (site / "llms.txt").write_text(make_llms_text(groups, _markdown), encoding="utf-8")
    if site.name == read_version() and VERSIONS in str(config.copyright):
        folders = [folder.name for folder in site.parent.iterdir() if (folder / "index.html").exists()]
        (site.parent / "index.html").write_text(make_versions_page(folders), encoding="utf-8")


def make_versions_page(versions: Sequence[str]) -> str:
    """Make the list of versions, the newest first."""

    def rank(version: str) -> tuple[list[int], bool, str]:
        numbers, rest = re.fullmatch(r"([\d.]*)(.*)", version).groups()  # type: ignore[union-attr]
        return [int(part) for part in numbers.split(".") if part], not rest, rest

    ordered = sorted(versions, key=rank, reverse=True)
    items = "".join(f'<li><a href="{version}/index.html">Clew {version}</a></li>' for version in ordered)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>Clew: versions of the pages</title>"
        "<style>:root{color-scheme:light dark}body{font:1.1rem/1.6 system-ui;margin:3rem auto;max-width:40rem}</style>"
        f"<h1>Versions of the pages</h1><ul>{items}</ul></html>\n"
    )


def make_llms_text(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]], markdown: Mapping[str, str]) -> str:
    """Make the list of pages for programs, in the form of llmstxt.org.

    `groups`: the title of each group, with the titles and the paths of its pages; the first is the overview alone.
    """
    (_, ((_, overview),)), *others = groups
    lines = ["# Clew", "", f"> {_find_summary(markdown[overview])}", "", f"- [Overview]({overview})"]
    for title, pages in others:
        lines += ["", f"## {title}", ""]
        lines += [f"- [{name}]({path}): {_find_summary(markdown[path])}" for name, path in pages]
    return "\n".join(lines) + "\n"


def _find_summary(markdown: str) -> str:
    """Find the first sentence of a page, without links."""
    paragraphs = (" ".join(part.split()) for part in _FENCE.sub("", markdown).split("\n\n"))
    text = next(part for part in paragraphs if part and not part.startswith(("#", "|", "!", "<", "- ")))
    text = _LINK_TEXT.sub(r"\1", text)
    return found[0] if (found := _SENTENCE.match(text)) else text
