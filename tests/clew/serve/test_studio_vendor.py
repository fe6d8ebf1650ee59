"""The files of others that the pages have: they are what their README and the locked packages say."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

import clew.report
from clew.serve.studio import _pages
from tests.support.npm import install_packages

VENDOR = Path(clew.report.__file__).with_name("vendor")
LOCKED = Path(__file__).with_name("npm_studio")
MOST_BYTES = 200_000
"""All of them together: a backend's environment has them."""
ROW = re.compile(r"\| `([^`]+)` \| `([^`]+)` (\S+) \| `([^`]+)` \| .*`([^`]+\.LICENSE)` \| `([0-9a-f]{64})` \|")


def read_rows() -> list[tuple[str, ...]]:
    """The rows of the README: file, package, version, path in the package, license, hash."""
    return ROW.findall((VENDOR / "README.md").read_text())


def test_each_file_has_a_row_with_its_hash() -> None:
    """Its version is the locked one, its license is beside it, and it is served as it is."""
    rows = read_rows()
    licenses = {row[4] for row in rows}
    assert {row[0] for row in rows} | licenses | {"README.md"} == {file.name for file in VENDOR.iterdir()}
    locked = json.loads((LOCKED / "package-lock.json").read_text())["packages"]
    for name, package, version, _, _, digest in rows:
        data = (VENDOR / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        assert locked[f"node_modules/{package}"]["version"] == version
        assert _pages[name].content == data
        assert _pages[name].media_type == "text/javascript"
    assert sum(file.stat().st_size for file in VENDOR.iterdir()) < MOST_BYTES


@pytest.mark.slow
def test_each_file_is_that_of_its_package(tmp_path: Path) -> None:
    """Byte for byte, as npm has it under the integrity of the lock file. Skipped where npm cannot."""
    install_packages(LOCKED, tmp_path)
    for name, package, _, path, licence, _ in read_rows():
        folder = tmp_path / "node_modules" / package
        assert (folder / path).read_bytes() == (VENDOR / name).read_bytes()
        assert (VENDOR / licence).read_bytes() in [file.read_bytes() for file in folder.glob("LICENSE*")]
