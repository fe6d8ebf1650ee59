"""The files of the deployment agree with the checkout that they stand in."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from clew.local.temporal import FAIRNESS, QUICK_DELETIONS, QUICK_TRANSFERS
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES
from deploy.servers.programs import read_version
from tests.support.processes import ROOT

CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))
REQUIREMENT = re.compile(r"(?m)^([a-z0-9-]+)==(\S+)(.*?)(?=^\S|\Z)", re.DOTALL)


ENDED_POLLS = {"frontend.enableCancelWorkerPollsOnShutdown": True}
"""What a server needs beside that, so that a worker's stop loses no tasks."""


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


@pytest.mark.parametrize("file", ["build", "image", "serve"])
def test_what_is_deployed_has_the_versions_that_were_tested(file: str) -> None:
    """The pins of the image and of the service are a part of the checkout's."""
    own, everything = read_pins(ROOT / f"constraints/{file}.txt"), read_pins(ROOT / "constraints/dev.txt")
    assert {name: everything.get(name) for name in own} == own


@pytest.mark.parametrize(
    ("file", "extras"),
    [("image", "worker,serve,mcp,bedrock,encryption,live,telemetry"), ("serve", "serve,encryption,live")],
)
def test_the_pins_have_all_that_is_needed(file: str, extras: str) -> None:
    """Each package that an extra names, by others of its extras too, is pinned: the image lacks none of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, left = set[str](), [*project["dependencies"], f"clew[{extras}]"]
    while left:
        requirement = left.pop()
        if named := re.match(r"clew\[(.*)\]", requirement):
            left += [each for extra in named[1].split(",") for each in project["optional-dependencies"][extra]]
        else:
            needed.add(re.split(r"[^a-z0-9-]", requirement)[0])
    assert needed <= read_pins(ROOT / f"constraints/{file}.txt").keys()


def test_the_image_is_made_of_files_that_are_there_and_are_sent_to_the_builder() -> None:
    """Each source that the Dockerfile copies exists and passes the ignore file, and the wheel finds its packages."""
    instructions = (ROOT / "deploy/Dockerfile").read_text()
    copies = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", instructions)
    sources = [source for copied in copies for source in copied.split()]
    ignore = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    assert set(sources) == set(allowed)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {package.partition("/")[0] for package in build["packages"]} <= set(sources)


def test_compose_publishes_to_this_machine_alone() -> None:
    """The development server has no authentication, so no port of it is open to the network."""
    text = (ROOT / "deploy/compose.yaml").read_text()
    published = re.findall(r'(?m)^\s+- "([\d.:]*:\d+)"$', text)
    assert len(published) == text.count("ports:") == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_has_the_server_that_the_local_cluster_is_built_from() -> None:
    """What is tested as processes is what the images hold."""
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    version = read_version("temporal", "go.temporal.io/server").removeprefix("v")
    images = {service["image"] for service in services.values() if "image" in service}
    assert {image for image in images if re.match("temporalio/(server|admin-tools):", image)} == {
        f"temporalio/server:{version}",
        f"temporalio/admin-tools:{version}",
    }


def test_compose_registers_the_search_attributes_of_sessions() -> None:
    """Each with its type."""
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    (script,) = services["temporal-namespace"]["command"]
    assert dict(re.findall(r"--name (\w+) --type (\w+)", script)) == SEARCH_ATTRIBUTES


def test_compose_has_the_dynamic_configuration_of_the_development_server() -> None:
    """What the tests rely on is what a deployment has."""
    configs = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["configs"]
    values = yaml.safe_load(configs["dynamicconfig"]["content"])
    assert values == {
        name: [{"value": value}]
        for name, value in {**FAIRNESS, **QUICK_TRANSFERS, **QUICK_DELETIONS, **ENDED_POLLS}.items()
    }


def test_the_page_has_the_dynamic_configuration_of_compose() -> None:
    """The table for a server of one's own has each key with its value, what it does, and what is without it."""
    configs = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["configs"]
    values = yaml.safe_load(configs["dynamicconfig"]["content"])
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    section = page.partition("\n## A Temporal server of your own\n")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| `([\w.]+)` \| `(\w+)` \| [^|]+ \| [^|]+ \|$", section)
    assert {key: yaml.safe_load(value) for key, value in rows} == {
        key: one["value"] for key, (one,) in values.items()
    }


@pytest.mark.parametrize("folder", sorted(file.parent.name for file in (ROOT / "deploy/servers").glob("*/go.mod")))
def test_every_module_of_a_program_has_a_hash(folder: str) -> None:
    """What is built is what was pinned, wherever it comes from."""
    files = ROOT / "deploy/servers" / folder
    text = (files / "go.mod").read_text()
    replaced = dict(re.findall(r"(?m)^(?:replace|\t)\s*(\S+) => (\S+ v\S+)", text))
    listed = dict(re.findall(r"(?m)^\s+(\S+) (v\S+)", text))
    required = [tuple(replaced.get(name, f"{name} {version}").split()) for name, version in listed.items()]
    hashed = {tuple(line.split()[:2]) for line in (files / "go.sum").read_text().splitlines()}
    assert required
    assert [one for one in required if not hashed & {one, (one[0], f"{one[1]}/go.mod")}] == []
