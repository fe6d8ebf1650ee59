"""What is released has one version everywhere, and files of that version."""

from __future__ import annotations

import dataclasses
import json
from copy import deepcopy

from tests.support.corpus import NEXT, Corpus, read_corpus
from tests.support.release import ROOT, check_names, check_shapes, read_version
from tests.support.shapes import describe_shapes

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n\n## [1.1.0] - 2026-01-01\n"


def test_one_version_stands_everywhere() -> None:
    """In pyproject.toml, in the changelog's newest section, in the tag and in the name of the files."""
    assert list(check_names("1.2.0", CHANGELOG, {"v1.2.0"}, ["1.1.0", "1.2.0", NEXT])) == []
    assert list(check_names("1.2.0", CHANGELOG, set(), ["1.2.0"])) == []
    (changelog,) = check_names("1.3.0", CHANGELOG, set(), ["1.3.0"])
    assert "the newest section of CHANGELOG.md is 1.2.0, and pyproject.toml has 1.3.0" in changelog
    (tag,) = check_names("1.2.0", CHANGELOG, {"v1.3.0"}, ["1.2.0"])
    assert "the tag v1.3.0" in tag
    (files,) = check_names("1.2.0", CHANGELOG, {"v1.2.0"}, ["1.1.0", NEXT])
    assert "`make release-files` freezes them" in files
    assert read_version((ROOT / "pyproject.toml").read_text()).count(".") == 2


def make_corpus(name: str, *, changed: bool = False) -> Corpus:
    shapes = deepcopy(describe_shapes())
    if changed:
        shapes["carried state"]["schemas"]["State"]["properties"].pop("phase")
    return Corpus(name, {"corpus.json": json.dumps({"shapes": shapes}).encode()})


def test_shapes_are_compared_with_those_of_each_release() -> None:
    """Of an older release a changed shape is a problem of the format; of this one the files are outdated."""
    same = [make_corpus("1.0.0"), make_corpus("1.2.0"), make_corpus(NEXT)]
    assert list(check_shapes(same, "1.2.0")) == []
    changed = [dataclasses.replace(make_corpus(name, changed=True)) for name in ("1.0.0", "1.2.0", NEXT)]
    older, current, upcoming = check_shapes(changed, "1.2.0")
    assert older.startswith("since 1.0.0: the carried state has another shape at /State/properties/phase")
    assert "`make record release-files`" in current
    assert upcoming == "the files of next were recorded by other code: `make record` records them anew"


def test_a_corpus_is_written_the_same_again() -> None:
    """Its files are what was recorded, and `corpus.json` names the thread of each history."""
    corpus = read_corpus(NEXT)
    assert corpus.threads.keys() == {history.workflow_id for history in corpus.histories}
