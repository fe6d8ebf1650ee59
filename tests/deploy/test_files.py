"""The files of the deployment agree with the checkout that they stand in."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.processes import ROOT

CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))
REQUIREMENT = re.compile(r"(?m)^([a-z0-9-]+)==(\S+)(.*?)(?=^\S|\Z)", re.DOTALL)


def read_pins(file: Path) -> dict[str, tuple[str, int]]:
    """Name to version and number of hashes."""
    return {
        name: (version, rest.count("--hash=sha256:")) for name, version, rest in REQUIREMENT.findall(file.read_text())
    }


@pytest.mark.parametrize("file", CONSTRAINTS, ids=lambda file: file.name)
def test_every_pinned_package_has_hashes_and_no_address(file: Path) -> None:
    """What is installed is what was pinned, wherever it comes from."""
    packages = read_pins(file)
    assert packages
    assert all(hashes > 0 for _, hashes in packages.values())
    assert "://" not in file.read_text()


def test_the_image_has_the_versions_that_were_tested() -> None:
    """The worker's pins are a part of the checkout's."""
    worker, everything = read_pins(ROOT / "constraints/worker.txt"), read_pins(ROOT / "constraints/dev.txt")
    assert {name: everything.get(name) for name in worker} == worker


def test_the_image_is_made_of_files_that_are_there_and_are_sent_to_the_builder() -> None:
    """Each source that the Dockerfile copies exists and passes the ignore file."""
    instructions = (ROOT / "deploy/Dockerfile").read_text()
    sources = [line.split()[1] for line in instructions.splitlines() if re.match(r"COPY (?!--from)", line)]
    ignore = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    packages = {"client/clew", "workflows/clew_workflows", "activities/clew_activities", "audit/clew_audit"}
    assert packages | {"worker.py"} < set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), source


def test_compose_publishes_to_this_machine_alone() -> None:
    """The development server has no authentication, so no port of it is open to the network."""
    text = (ROOT / "deploy/compose.yaml").read_text()
    published = re.findall(r'(?m)^\s+- "([\d.:]*:\d+)"$', text)
    assert len(published) == text.count("ports:") == 2
    assert all(port.startswith("127.0.0.1:") for port in published)
