"""Checks whether this checkout may be released, and freezes its corpus.

    python -m tests.support.release check
    python -m tests.support.release freeze

`CONTRIBUTING.md` says how a release is made.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tests.support.corpus import NEXT, Corpus, list_corpora, read_corpus
from tests.support.shapes import describe_shapes, find_problems

ROOT = Path(__file__).parents[2]


def read_version(pyproject: str) -> str:
    """Read the version of the package."""
    version: str = tomllib.loads(pyproject)["project"]["version"]
    return version


def check_names(version: str, changelog: str, tags: Collection[str], corpora: Collection[str]) -> Iterator[str]:
    """Check that the version of the package, the changelog, the tag and the corpus agree."""
    sections = re.findall(r"(?m)^## \[([^\]]+)\]", changelog)
    released = next((section for section in sections if section != "Unreleased"), None)
    if released != version:
        yield f"the newest section of CHANGELOG.md is {released}, and pyproject.toml has {version}"
    if tags and f"v{version}" not in tags:
        yield f"the commit has the tag {', '.join(sorted(tags))}, and pyproject.toml has {version}"
    if version not in corpora:
        yield f"tests/released has no files of {version}: `make release-files` freezes them"


def check_shapes(corpora: Sequence[Corpus], version: str) -> Iterator[str]:
    """Check that no format has changed under its version, and that the corpora are those of this code."""
    current = describe_shapes()
    for corpus in corpora:
        if corpus.name not in (NEXT, version):
            problems = find_problems(corpus.manifest["shapes"], current)
            yield from (f"since {corpus.name}: {problem}" for problem in problems)
        elif corpus.manifest["shapes"] != current:
            command = "make record" if corpus.name == NEXT else "make record release-files"
            yield f"the files of {corpus.name} were recorded by other code: `{command}` records them anew"


def list_tags() -> set[str]:
    """List the tags of the checked-out commit that name versions."""
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {tag for tag in tags.stdout.split() if re.match(r"v\d", tag)}


def check() -> list[str]:
    """Check the checkout. Returns the problems."""
    version, names = read_version((ROOT / "pyproject.toml").read_text()), list_corpora()
    problems = list(check_names(version, (ROOT / "CHANGELOG.md").read_text(), list_tags(), names))
    return problems + list(check_shapes([read_corpus(name) for name in names], version))


def freeze() -> str:
    """Make the corpus of the next version that of the version in pyproject.toml. Returns the version."""
    version = read_version((ROOT / "pyproject.toml").read_text())
    Corpus(version, read_corpus(NEXT).files).write()
    return version


def main(command: str) -> int:
    """Run a command. Returns the exit code."""
    match command:
        case "freeze":
            sys.stdout.write(f"froze tests/released/{freeze()}\n")
            return 0
        case "check":
            problems = check()
            sys.stdout.writelines(f"{problem}\n" for problem in problems)
            return 1 if problems else 0
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2


if __name__ == "__main__":
    sys.exit(main("".join(sys.argv[1:])))
