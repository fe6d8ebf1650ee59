"""The objects that Helm makes of the chart."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from clew.local import StartFailed
from deploy.servers.programs import find_program
from tests.support.processes import ROOT

CHART = ROOT / "deploy/chart"
CASES = sorted(file.stem for file in (CHART / "cases").glob("*.yaml"))
NAMESPACE = "clew"
# Helm that is built from source takes an old version of Kubernetes for the cluster's.
KUBERNETES = "1.34"

Object = dict[str, Any]


def run_helm(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run Helm to its end. It skips the test if Helm is not built."""
    try:
        helm = find_program("helm", "helm")
    except StartFailed as error:
        pytest.skip(str(error))
    command = [str(helm), *arguments]
    return subprocess.run(command, cwd=CHART, input=typed, capture_output=True, text=True, check=False, timeout=60)


@cache
def render_text(case: str, release: str = "clew") -> str:
    """Render the chart with the values of a case."""
    return _template(release, f"cases/{case}.yaml", "")


def render(case: str, release: str = "clew") -> list[Object]:
    """Render the chart with the values of a case, as objects."""
    return _read(render_text(case, release))


def render_values(**values: Any) -> list[Object]:
    """Render the chart with some values, as objects."""
    return _read(_template("clew", "-", yaml.safe_dump(values)))


def _template(release: str, file: str, typed: str) -> str:
    options = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", file)
    ended = run_helm("template", release, ".", *options, typed=typed)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _read(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def select(objects: Sequence[Object], kind: str) -> dict[str, Object]:
    """Select the objects of a kind, by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def find_container(deployment: Object) -> Object:
    """Find the one container of a Deployment."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found: Object = container
    return found


def read_variables(objects: Sequence[Object], deployment: Object) -> Mapping[str, str]:
    """Read the variables of a Deployment's process, without those of Secrets."""
    container = find_container(deployment)
    configs = select(objects, "ConfigMap")
    variables: dict[str, str] = {}
    for source in container["envFrom"]:
        if "configMapRef" in source:
            variables |= configs[source["configMapRef"]["name"]]["data"]
    return variables | {each["name"]: each["value"] for each in container["env"]}


def list_secrets(deployment: Object) -> list[str]:
    """List the Secrets that become variables of a Deployment's process."""
    return [source["secretRef"]["name"] for source in find_container(deployment)["envFrom"] if "secretRef" in source]
