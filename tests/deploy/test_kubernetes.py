"""The Kubernetes files agree with the worker: its options, its task queues, its time to drain, its ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from clew.contract import TASK_QUEUE, SessionConfig
from clew_activities.worker.environment import ALL_WORK, read_grace, read_settings
from clew_activities.worker.process import LEAVE_SECONDS
from clew_workflows.contract.names import name_model_queue, name_tool_queue
from clew_workflows.host.execution import ARCHIVE_TIMEOUT
from tests.support.processes import ROOT

FOLDER = ROOT / "deploy/kubernetes"


def read(file: Path) -> Any:
    """A file's one document."""
    return yaml.safe_load(file.read_text())


def read_changes(work: str) -> dict[str, Any]:
    """What the Kustomization of one kind of worker adds to the Deployment, by path; variables by their names."""
    (patch,) = read(FOLDER / work / "kustomization.yaml")["patches"]
    changes: dict[str, Any] = {}
    for operation in yaml.safe_load(patch["patch"]):
        value = operation["value"]
        if operation["path"].endswith("/env/-"):
            changes[value["name"]] = value["value"]
        else:
            changes[operation["path"].removeprefix("/spec/template/spec/")] = value
    return changes


@pytest.mark.parametrize("work", ALL_WORK)
def test_each_kind_of_worker_has_a_deployment_that_serves_it_alone(work: str) -> None:
    """The folder, the suffix of the names and the worker's option are the same word."""
    kustomization = read(FOLDER / work / "kustomization.yaml")
    assert kustomization["nameSuffix"] == f"-{work}"
    assert read_changes(work)["CLEW_SERVE"] == work
    assert f"../{work}" in read(FOLDER / "base/kustomization.yaml")["resources"]


@pytest.mark.parametrize("work", ALL_WORK)
def test_a_worker_may_drain_longer_than_its_longest_call_lasts(work: str) -> None:
    """The kubelet kills a worker only after its grace and the time that its process needs to end."""
    changes = read_changes(work)
    grace = read_grace(changes).total_seconds()
    default = SessionConfig.model_fields["request_timeout_seconds"].default
    assert grace >= (ARCHIVE_TIMEOUT.total_seconds() if work == "sessions" else default)
    assert changes["terminationGracePeriodSeconds"] >= grace + 10 * LEAVE_SECONDS


def test_tools_run_without_the_keys_of_models() -> None:
    """The code of tools is the user's: what it needs not is not in its environment."""
    shown = {work: "clew-models" in str(read_changes(work)) for work in ALL_WORK}
    assert shown == {"sessions": True, "models": True, "tools": False}


def test_workers_are_scaled_by_the_task_queues_that_they_poll() -> None:
    """Each ScaledObject names its own Deployment and the queue that the code names."""
    queues = {"sessions": TASK_QUEUE, "models": name_model_queue(TASK_QUEUE), "tools": name_tool_queue(TASK_QUEUE)}
    documents = list(yaml.safe_load_all((FOLDER / "autoscaling/scaled-objects.yaml").read_text()))
    scaled = {}
    for document in documents:
        spec = document["spec"]
        assert spec["scaleTargetRef"]["name"] == document["metadata"]["name"]
        (backlog,) = [trigger["metadata"] for trigger in spec["triggers"] if trigger["type"] == "temporal"]
        scaled[document["metadata"]["name"].removeprefix("clew-")] = backlog["taskQueue"]
        assert ("workflow" in backlog["queueTypes"]) == (backlog["taskQueue"] == TASK_QUEUE)
    assert scaled == queues


def test_the_settings_are_variables_that_a_worker_can_read(tmp_path: Path) -> None:
    """A worker starts with the base's settings, and the pages name each variable."""
    lines = (FOLDER / "base/settings.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert read_settings({**settings, "CLEW_STORE": str(tmp_path)}).tools == {}
    known = (ROOT / "docs/configuration.md").read_text()
    assert [name for name in settings if name.startswith("CLEW_") and f"`{name}`" not in known] == []


def test_probes_ask_the_port_that_the_worker_answers() -> None:
    """Names of ports and addresses in variables are one."""
    (container,) = read(FOLDER / "worker/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert variables["CLEW_HEALTH_ADDRESS"] == f"0.0.0.0:{ports['health']}"
    assert variables["CLEW_METRICS_ADDRESS"] == f"0.0.0.0:{ports['metrics']}"
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/live",
        "livenessProbe": "/live",
        "readinessProbe": "/ready",
    }


def test_a_worker_has_no_rights_that_it_does_not_need() -> None:
    """No root, no writable root, no capabilities, no token of the cluster; the user is the image's."""
    pod = read(FOLDER / "worker/deployment.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (ROOT / "deploy/Dockerfile").read_text()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
