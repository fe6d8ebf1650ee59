"""The programs of the local cluster: which of them are found, and when Go is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.local import StartFailed
from deploy.servers import programs
from deploy.servers.programs import build, find_programs, locate


@pytest.fixture(autouse=True)
def without_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an empty cache, PostgreSQL in a folder, and no Go on the path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "find_postgresql", lambda: tmp_path / "postgresql")


def test_programs_that_were_built_are_found_without_go() -> None:
    """A compiler is needed to build them, not to run them."""
    for folder, names in {"temporal": ("temporal-server", "temporal-sql-tool"), "seaweedfs": ("weed",)}.items():
        locate(folder).mkdir(parents=True)
        for name in names:
            (locate(folder) / name).touch()
    found = find_programs()
    assert (found.temporal_server.parent, found.weed.parent) == (locate("temporal"), locate("seaweedfs"))


def test_programs_that_were_not_built_need_go() -> None:
    """The error of a build names the compiler that is missing; that of a search says how they are built."""
    with pytest.raises(StartFailed, match="make deploy-servers"):
        find_programs()
    with pytest.raises(StartFailed, match="Go"):
        build("seaweedfs")
