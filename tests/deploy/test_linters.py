"""The files of the deployment pass the linters of their fields: `make deploy-tools` installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from clew.contract import TASK_QUEUE
from clew_activities.worker.environment import read_deployment
from clew_workflows.contract.names import name_provider_queue
from tests.support.processes import ROOT

TOOLS = ROOT / ".venv/deploy/bin"
OVERLAYS = ("base", "self-hosted", "cloud", "versioned")

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


def render(overlay: str | Path) -> str:
    """The objects that `kubectl apply --kustomize` would send; an overlay of a test is a path."""
    return run("kubectl", "kustomize", ROOT / "deploy/kubernetes" / overlay)


def list_objects(overlay: str | Path) -> Iterator[dict[str, Any]]:
    """The same, as objects."""
    yield from yaml.safe_load_all(render(overlay))


def test_the_dockerfile() -> None:
    """hadolint has nothing to say."""
    run("hadolint", "--failure-threshold", "style", "deploy/Dockerfile")


def test_the_compose_file() -> None:
    """It meets the Compose Specification's schema."""
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml")


def test_every_yaml_file() -> None:
    """One style, no key twice."""
    rules = "{extends: default, rules: {line-length: {max: 130}, document-start: disable, "
    run("yamllint", "--strict", "--config-data", rules + "comments: {min-spaces-from-content: 1}}}", "deploy")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kustomize_makes_is_valid_for_kubernetes(overlay: str, tmp_path: Path) -> None:
    """Each object of Kubernetes' own meets the strict schema of the newest version that the validator knows."""
    rendered = tmp_path / "objects.yaml"
    rendered.write_text(render(overlay))
    run("kubernetes-validate", "--strict", rendered)


@pytest.mark.parametrize("overlay", OVERLAYS[1:])
def test_the_autoscalers_are_valid_for_keda(overlay: str) -> None:
    """KEDA's types read every field of them, and none is left out."""
    objects = [each for each in list_objects(overlay) if each["apiVersion"].startswith("keda.sh/")]
    assert len(objects) >= 3
    assert json.loads(run(TOOLS / "python", "-c", KEDA, typed=json.dumps(objects))) == objects


def test_temporal_cloud_is_configuration_alone() -> None:
    """The overlay changes addresses and adds the autoscalers' key: the workers are the same."""

    def read_workers(overlay: str) -> list[dict[str, Any]]:
        settings = {
            each["metadata"]["name"]: "settings" for each in list_objects(overlay) if each["kind"] == "ConfigMap"
        }
        text = json.dumps([each for each in list_objects(overlay) if each["kind"] == "Deployment"])
        for name, word in settings.items():
            text = text.replace(name, word)
        workers: list[dict[str, Any]] = json.loads(text)
        return workers

    assert read_workers("cloud") == read_workers("self-hosted")
    for scaled in list_objects("cloud"):
        if scaled["kind"] == "ScaledObject":
            assert scaled["spec"]["triggers"][0]["authenticationRef"] == {"name": "clew-temporal"}


@pytest.mark.parametrize("overlay", OVERLAYS[1:])
def test_the_queue_of_a_limited_provider_is_counted(overlay: str, tmp_path: Path) -> None:
    """Its trigger differs from that of the models' queue in its name and its queue, and KEDA's types read it."""
    folder = ROOT / "deploy/kubernetes"
    lines = {"resources": overlay, "components": "rate-limited"}
    (tmp_path / "kustomization.yaml").write_text(
        "".join(f"{name}: [{os.path.relpath(folder / part, tmp_path.resolve())}]\n" for name, part in lines.items())
    )
    objects = [each for each in list_objects(tmp_path) if each["kind"] == "ScaledObject"]
    assert json.loads(run(TOOLS / "python", "-c", KEDA, typed=json.dumps(objects))) == objects
    triggers = {
        each["spec"]["scaleTargetRef"]["name"].removesuffix("-v1"): each["spec"]["triggers"] for each in objects
    }
    models, limited, cpu = triggers["clew-models"]
    queue = name_provider_queue(TASK_QUEUE, "openai")
    assert limited == {**models, "name": "backlog-openai", "metadata": {**models["metadata"], "taskQueue": queue}}
    assert (models["name"], cpu["name"]) == ("backlog", "cpu")
    assert [trigger["name"] for trigger in triggers["clew-tools"]] == ["backlog", "cpu"]


def test_workers_of_two_versions_share_nothing_but_secrets() -> None:
    """Every name ends with the version, selectors tell its pods from others, and each autoscaler scales its own."""
    objects = [each for each in list_objects("versioned") if each["kind"] != "Namespace"]
    assert [each["metadata"]["name"] for each in objects if "-v1" not in each["metadata"]["name"]] == []
    version = {"app.kubernetes.io/version": "1"}
    for each in objects:
        assert version.items() <= each["metadata"]["labels"].items()
        match each["kind"]:
            case "Deployment" | "PodDisruptionBudget":
                assert version.items() <= each["spec"]["selector"]["matchLabels"].items()
            case "NetworkPolicy":
                assert version.items() <= each["spec"]["podSelector"]["matchLabels"].items()
            case "ScaledObject":
                assert each["spec"]["scaleTargetRef"]["name"] == each["metadata"]["name"]
            case "ConfigMap":
                deployment = read_deployment(each["data"])
                assert deployment is not None
                assert deployment.version.build_id == "1"
