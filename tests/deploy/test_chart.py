"""The chart agrees with the worker and the service: their options, task queues, times to drain, ports and secrets."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from temporalio.envconfig import ClientConfigProfile

from clew.contract import TASK_QUEUE, SessionConfig
from clew_activities.worker.environment import (
    ALL_WORK,
    read_deployment,
    read_grace,
    read_rate_limits,
    read_settings,
    split_names,
)
from clew_activities.worker.process import LEAVE_SECONDS
from clew_workflows.contract.names import name_caller_queue, name_model_queue, name_provider_queue, name_tool_queue
from clew_workflows.host.execution import ARCHIVE_TIMEOUT
from tests.support.chart import (
    CASES,
    CHART,
    Object,
    find_container,
    list_secrets,
    read_variables,
    render,
    render_values,
    run_helm,
    select,
)
from tests.support.processes import ROOT

PAGE = ROOT / "docs/deployment.md"


def render_workers() -> dict[str, Object]:
    """The Deployments of the defaults, by the kind of their workers."""
    return {name.removeprefix("clew-"): each for name, each in select(render_values(), "Deployment").items()}


def test_each_kind_of_worker_has_a_deployment_that_serves_it_alone() -> None:
    """The names of the kinds and the worker's option are the same words."""
    objects, workers = render_values(), render_workers()
    assert {kind: read_variables(objects, each)["CLEW_SERVE"] for kind, each in workers.items()} == {
        work: work for work in ALL_WORK
    }
    assert all(find_container(each)["args"] == ["worker"] for each in workers.values())


@pytest.mark.parametrize("work", ALL_WORK)
def test_a_worker_may_drain_longer_than_its_longest_call_lasts(work: str) -> None:
    """The kubelet kills a worker only after its grace and the time that its process needs to end."""
    deployment = render_workers()[work]
    grace = read_grace(read_variables(render_values(), deployment)).total_seconds()
    default = SessionConfig.model_fields["request_timeout_seconds"].default
    assert grace >= (ARCHIVE_TIMEOUT.total_seconds() if work == "sessions" else default)
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= grace + 10 * LEAVE_SECONDS


def test_each_process_has_the_secrets_that_it_needs_and_no_others() -> None:
    """The code of tools is the user's, and the service faces callers: neither has the keys of models."""
    deployments = select(render_values(serve={"enabled": True}), "Deployment")
    assert {name: list_secrets(each) for name, each in deployments.items()} == {
        "clew-sessions": ["clew", "clew-workers", "clew-models"],
        "clew-models": ["clew", "clew-workers", "clew-models"],
        "clew-tools": ["clew", "clew-workers"],
        "clew-serve": ["clew"],
    }


@pytest.mark.parametrize("case", CASES)
def test_workers_are_scaled_by_the_task_queues_that_they_poll(case: str) -> None:
    """Each autoscaler scales its own Deployment by all queues that its workers poll."""
    objects = render(case)
    deployments = select(objects, "Deployment")
    for name, scaled in select(objects, "ScaledObject").items():
        assert scaled["spec"]["scaleTargetRef"]["name"] == name
        assert "replicas" not in deployments[name]["spec"]
        if name == "clew-serve":
            continue
        variables = read_variables(objects, deployments[name])
        queue, limits = variables["CLEW_TASK_QUEUE"], read_rate_limits(variables)
        models = [name_model_queue(queue), *(name_provider_queue(queue, limited) for limited in limits)]
        served = {
            "sessions": {queue: "workflow,activity", name_caller_queue(queue): "activity"},
            "models": dict.fromkeys(models, "activity"),
            "tools": {name_tool_queue(queue): "activity"},
        }
        expected = {
            each: types for work in split_names(variables["CLEW_SERVE"]) for each, types in served[work].items()
        }
        backlogs = [trigger["metadata"] for trigger in scaled["spec"]["triggers"] if trigger["type"] == "temporal"]
        assert {each["taskQueue"]: each["queueTypes"] for each in backlogs} == expected
        assert {each["endpoint"] for each in backlogs} == {variables["TEMPORAL_ADDRESS"]}
        assert {each["namespace"] for each in backlogs} == {variables["TEMPORAL_NAMESPACE"]}


@pytest.mark.parametrize("case", CASES)
def test_the_settings_are_variables_that_a_worker_can_read(case: str, tmp_path: Path) -> None:
    """A worker starts with the settings of each case, and the pages name each variable."""
    objects = render(case)
    known = (ROOT / "docs/reference/variables.md").read_text()
    for name, deployment in select(objects, "Deployment").items():
        variables = read_variables(objects, deployment)
        assert [each for each in variables if each.startswith("CLEW_") and f"`{each}`" not in known] == []
        if name != "clew-serve":
            # The modules of the cases are nobody's.
            own = {"CLEW_STORE": str(tmp_path), "CLEW_AGENTS": "", "CLEW_TOOLS": ""}
            assert read_settings({**variables, **own}).rate_limits == read_rate_limits(variables)


def test_values_of_variables_are_texts_as_they_are_written() -> None:
    """Numbers have no exponent, and truth values are words."""
    settings = {"CLEW_GRACE_SECONDS": 1000000, "CLEW_ROLLOVER_EVENTS": "9000", "CLEW_ENCRYPTION_ACCEPT_PLAIN": True}
    workers = {"all": {"serves": ["sessions"], "graceSeconds": 1, "settings": {"CLEW_STORE_CALLS": 2000000}}}
    objects = render_values(settings=settings, workers=workers, rateLimits={"openai": 0.5})
    variables = read_variables(objects, select(objects, "Deployment")["clew-all"])
    (config,) = select(objects, "ConfigMap").values()
    assert {name: config["data"][name] for name in settings} == {
        "CLEW_GRACE_SECONDS": "1000000",
        "CLEW_ROLLOVER_EVENTS": "9000",
        "CLEW_ENCRYPTION_ACCEPT_PLAIN": "true",
    }
    assert variables["CLEW_STORE_CALLS"] == "2000000"
    assert read_rate_limits(variables) == {"openai": 0.5}


@pytest.mark.parametrize("case", CASES)
def test_the_connection_is_made_of_variables_that_the_sdk_reads(case: str) -> None:
    """The certificates of a client, the authority and the name of the server are where the Secret is mounted."""
    values = yaml.safe_load((CHART / f"cases/{case}.yaml").read_text()).get("temporal", {})
    objects = render(case)
    for deployment in select(objects, "Deployment").values():
        variables = dict(read_variables(objects, deployment))
        profile = ClientConfigProfile.load(override_env_vars=variables, disable_file=True)
        assert profile.address == values.get("address", "temporal-frontend.temporal:7233")
        mounts = {each["name"]: each["mountPath"] for each in find_container(deployment)["volumeMounts"]}
        tls = values.get("tls", {})
        assert ("temporal-tls" in mounts) == bool(tls.get("secret")) == (profile.tls is not None)
        if profile.tls is not None:
            folder = mounts["temporal-tls"]
            assert profile.tls.client_cert == Path(folder, "tls.crt")
            assert profile.tls.client_private_key == Path(folder, "tls.key")
            assert profile.tls.server_root_ca_cert == (Path(folder, "ca.crt") if tls.get("ca") else None)
            assert profile.tls.server_name == tls.get("serverName")
    port = int(values.get("address", "temporal-frontend.temporal:7233").rpartition(":")[2])
    (policy,) = [each for name, each in select(objects, "NetworkPolicy").items() if name == "clew"]
    assert {"port": port} in [each for rule in policy["spec"]["egress"] for each in rule["ports"]]


def test_probes_ask_the_ports_that_the_processes_answer() -> None:
    """Names of ports and addresses in variables are one, for the network policies and the Service, too."""
    objects = render("serve")
    deployments = select(objects, "Deployment")
    for name, deployment in deployments.items():
        container, variables = find_container(deployment), read_variables(objects, deployment)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        paths = {each: container[each]["httpGet"]["path"] for each in ("livenessProbe", "readinessProbe")}
        port = {container[each]["httpGet"]["port"] for each in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert variables["CLEW_METRICS_ADDRESS"] == f"0.0.0.0:{ports['metrics']}"
        if name == "clew-serve":
            assert (variables["CLEW_SERVE_HOST"], ports["http"]) == ("0.0.0.0", 8080)
            assert paths == {"livenessProbe": "/health/live", "readinessProbe": "/health/ready"}
            assert port == {"http"}
        else:
            assert variables["CLEW_HEALTH_ADDRESS"] == f"0.0.0.0:{ports['health']}"
            assert paths == {"livenessProbe": "/live", "readinessProbe": "/ready"}
            assert port == {"health"}


def test_requests_reach_the_service_and_nothing_else() -> None:
    """The ingress leads to the Service, that to the service's pods; policies let in the ingress and Prometheus."""
    objects = render("serve")
    (rule,) = select(objects, "Ingress")["clew-serve"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = select(objects, "Service")[path["backend"]["service"]["name"]]
    (port,) = service["spec"]["ports"]
    assert port["name"] == path["backend"]["service"]["port"]["name"]
    assert "sessionAffinity" not in service["spec"]
    selected = [
        (name, [each["name"] for each in find_container(deployment)["ports"] if each["name"] == port["targetPort"]])
        for name, deployment in select(objects, "Deployment").items()
        if is_selected(service["spec"]["selector"], deployment)
    ]
    assert selected == [("clew-serve", ["http"])]
    policies = select(objects, "NetworkPolicy")
    let_in = {
        name: [port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]]
        for name, each in policies.items()
    }
    assert let_in == {"clew": ["metrics"], "clew-serve": ["http"]}
    assert all(
        is_selected(policies["clew"]["spec"]["podSelector"]["matchLabels"], each)
        for each in select(objects, "Deployment").values()
    )


def is_selected(labels: dict[str, str], deployment: Object) -> bool:
    """Whether a selector selects the pods of a Deployment."""
    return bool(labels) and labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_the_service_reads_the_keys_of_a_secret_anew_and_drains_before_it_is_killed() -> None:
    """The Secret is mounted as a folder: the kubelet changes no file that is mounted alone."""
    objects = render("serve")
    deployment = select(objects, "Deployment")["clew-serve"]
    container, variables = find_container(deployment), read_variables(objects, deployment)
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "keys"]
    assert variables["CLEW_SERVE_KEYS"] == f"{mount['mountPath']}/keys.toml"
    assert "subPath" not in mount
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= float(variables["CLEW_SERVE_DRAIN_SECONDS"]) + 10


@pytest.mark.parametrize("case", CASES)
def test_no_process_has_rights_that_it_does_not_need(case: str) -> None:
    """No root, no writable root, no capabilities, no token of the cluster; the user is the image's."""
    for deployment in select(render(case), "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        user = pod["securityContext"]["runAsUser"]
        assert f"USER {user}:{user}" in (ROOT / "deploy/Dockerfile").read_text()
        assert find_container(deployment)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("case", CASES)
def test_at_most_one_process_of_a_kind_is_evicted_at_a_time(case: str) -> None:
    """Each Deployment has a disruption budget for its own pods."""
    objects = render(case)
    deployments = select(objects, "Deployment")
    for name, budget in select(objects, "PodDisruptionBudget").items():
        labels = budget["spec"]["selector"]["matchLabels"]
        assert [each for each, deployment in deployments.items() if is_selected(labels, deployment)] == [name]
        assert budget["spec"]["maxUnavailable"] == 1
    assert select(objects, "PodDisruptionBudget").keys() == deployments.keys()


def test_temporal_cloud_is_configuration_alone() -> None:
    """The values change addresses and add the autoscalers' key: the workers are the same."""

    def read_workers(case: str) -> dict[str, Any]:
        workers = copy.deepcopy(select(render(case), "Deployment"))
        for worker in workers.values():
            del worker["spec"]["template"]["metadata"]["annotations"]
        return workers

    assert read_workers("temporal-cloud") == read_workers("own-server")
    objects = render("temporal-cloud")
    (authentication,) = select(objects, "TriggerAuthentication").values()
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "apiKey", "name": "clew", "key": "TEMPORAL_API_KEY"}
    ]
    for scaled in select(objects, "ScaledObject").values():
        for trigger in scaled["spec"]["triggers"]:
            if trigger["type"] == "temporal":
                assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}


def test_workers_of_two_versions_share_nothing_but_secrets() -> None:
    """Each version is a release: no object has the same name, and selectors tell its pods from those of others."""
    one, other = render("versioned", "clew-v42"), render("versioned", "clew-v43")
    assert not {(each["kind"], each["metadata"]["name"]) for each in one} & {
        (each["kind"], each["metadata"]["name"]) for each in other
    }
    for each in one:
        labels = each["spec"].get("selector", each["spec"].get("podSelector")) if "spec" in each else None
        if labels is not None and "matchLabels" in labels:
            assert any(is_selected(labels["matchLabels"], own) for own in select(one, "Deployment").values())
            assert not any(is_selected(labels["matchLabels"], own) for own in select(other, "Deployment").values())
    for deployment in select(one, "Deployment").values():
        version = read_deployment(read_variables(one, deployment))
        assert version is not None
        assert version.version.build_id == "42"


@pytest.mark.parametrize(
    "values",
    [
        {"temporal": {"adress": "localhost:7233"}},
        {"temporal": {"address": "localhost"}},
        {"workers": {"all": {"serves": ["model"], "graceSeconds": 1}}},
        {"workers": {"all": {"serves": ["models"]}}},
        {"workers": {"serve": {"serves": ["models"], "graceSeconds": 1}}},
        {"autoscaling": {"by": "vpa"}},
        {"settings": {"CLEW_TOOLS": ["a", "b"]}},
        {"serve": {"corsOrigins": ["app.example.com"]}},
        {"rateLimits": {"openai": 0}},
    ],
    ids=str,
)
def test_values_that_the_chart_does_not_know_are_refused(values: dict[str, Any]) -> None:
    """A word that is misspelled changes nothing in silence."""
    options = ("--kube-version", "1.34", "--values", "-")
    ended = run_helm("template", "clew", ".", *options, typed=yaml.safe_dump(values))
    assert ended.returncode != 0
    assert "values.schema.json" in ended.stderr or "don't meet the specifications" in ended.stderr


def test_the_chart_is_of_the_version_of_the_package() -> None:
    """Its image is the one of this checkout, unless the values name another one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert yaml.safe_load((CHART / "values.yaml").read_text())["taskQueue"] == TASK_QUEUE


def test_the_page_names_every_case() -> None:
    """Each file of values has a line in the table, and each line a file."""
    assert sorted(re.findall(r"(?m)^\| `cases/([\w-]+)\.yaml` \|", PAGE.read_text())) == CASES
