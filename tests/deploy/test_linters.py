"""The files of the deployment pass the linters of their fields: `make deploy-tools` installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.chart import CASES, KUBERNETES, render, render_text, run_helm
from tests.support.processes import ROOT

TOOLS = ROOT / ".venv/deploy/bin"

KEDA = """
import json, sys
from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
kinds = {"ScaledObject": ScaledObject, "TriggerAuthentication": TriggerAuthentication}
read = [kinds[document["kind"]].model_validate(document) for document in json.load(sys.stdin)]
print(json.dumps([model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in read]))
"""

pytestmark = pytest.mark.slow


def run(tool: str | Path, *arguments: str | Path, typed: str = "") -> str:
    """Run a linter over files; it fails the test with its output, and skips it if it is not installed."""
    program = shutil.which(tool, path=os.pathsep.join([str(TOOLS), os.environ["PATH"]]))
    if program is None:
        pytest.skip(f"{tool} is not installed: make deploy-tools")
    ended = subprocess.run(
        [program, *arguments], cwd=ROOT, input=typed, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_dockerfile() -> None:
    """hadolint has nothing to say."""
    run("hadolint", "--failure-threshold", "style", "deploy/Dockerfile")


def test_the_compose_file() -> None:
    """It meets the Compose Specification's schema."""
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml")


def test_every_yaml_file() -> None:
    """One style, no key twice."""
    rules = "{line-length: {max: 130}, document-start: disable, comments: {min-spaces-from-content: 1}}"
    # The templates become YAML when Helm has filled them in.
    config = f"{{extends: default, ignore: [deploy/chart/templates], rules: {rules}}}"
    run("yamllint", "--strict", "--config-data", config, "deploy")


@pytest.mark.parametrize("case", CASES)
def test_helm_has_nothing_to_say(case: str) -> None:
    """The chart and the values of each case pass Helm's own linter; a warning is an error."""
    ended = run_helm("lint", ".", "--strict", "--kube-version", KUBERNETES, "--values", f"cases/{case}.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WARNING" not in ended.stdout


@pytest.mark.parametrize("case", CASES)
def test_what_helm_makes_is_valid_for_kubernetes(case: str, tmp_path: Path) -> None:
    """Each object of Kubernetes' own meets the strict schema of the newest version that the validator knows."""
    rendered = tmp_path / "objects.yaml"
    rendered.write_text(render_text(case))
    run("kubernetes-validate", "--strict", rendered)


@pytest.mark.parametrize("case", CASES)
def test_the_autoscalers_are_valid_for_keda(case: str) -> None:
    """KEDA's types read every field of them, and none is left out."""
    objects = [each for each in render(case) if each["apiVersion"].startswith("keda.sh/")]
    assert json.loads(run(TOOLS / "python", "-c", KEDA, typed=json.dumps(objects))) == objects
