"""A real API server of Kubernetes accepts the objects of the chart: `make deploy-api-server` builds it and etcd.

It has no controllers and no nodes: what it shows is that every object is well formed, has all defaults and passes
admission, with Pod Security's standard `restricted` among it.
"""

from __future__ import annotations

import copy
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from clew.local import StartFailed
from clew.local.child import LOOPBACK, child_process, free_ports
from deploy.servers.programs import find_program
from tests.support.chart import CASES, NAMESPACE, Object, render, render_values, select

START_SECONDS = 120
TOKEN = "of-the-test"
KINDS = {"ScaledObject": "scaledobjects", "TriggerAuthentication": "triggerauthentications"}
"""KEDA's kinds and their names in paths. Here they take any fields: KEDA's types check those elsewhere."""

pytestmark = pytest.mark.slow


def find_programs() -> tuple[Path, Path]:
    """Find the API server and etcd; it skips the test if they are not built."""
    try:
        return find_program("kubernetes", "kube-apiserver"), find_program("etcd", "etcd")
    except StartFailed as error:
        pytest.skip(str(error))


class Cluster:
    """What the API server says to objects."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def find_path(self, each: Object) -> str:
        """Find the path of an object's kind, as the server lists it."""
        version = each["apiVersion"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        answer = await self._http.get(group)
        answer.raise_for_status()
        (resource,) = [
            one for one in answer.json()["resources"] if one["kind"] == each["kind"] and "/" not in one["name"]
        ]
        return f"{group}/namespaces/{NAMESPACE}/{resource['name']}"

    async def apply(self, each: Object, *, keeps: bool = False) -> httpx.Response:
        """Apply an object as `kubectl apply --server-side` does, by default with `--dry-run=server`."""
        parameters = {"fieldManager": "helm", "fieldValidation": "Strict"} | ({} if keeps else {"dryRun": "All"})
        path = f"{await self.find_path(each)}/{each['metadata']['name']}"
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return await self._http.patch(path, params=parameters, headers=headers, content=yaml.safe_dump(each))

    async def create(self, path: str, each: Object) -> httpx.Response:
        """Create an object."""
        return await self._http.post(path, json=each)

    async def has(self, path: str) -> bool:
        """Whether a path answers."""
        try:
            return (await self._http.get(path)).is_success
        except httpx.TransportError:
            return False


@asynccontextmanager
async def run_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Run etcd and an API server on loopback, with KEDA's kinds and a namespace that enforces `restricted`."""
    server, etcd = find_programs()
    store, peer, port = free_ports(3)
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "accounts.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    database = [
        str(etcd),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://{LOOPBACK}:{store}",
        f"--advertise-client-urls=http://{LOOPBACK}:{store}",
        f"--listen-peer-urls=http://{LOOPBACK}:{peer}",
        "--unsafe-no-fsync",
    ]
    command = [
        str(server),
        f"--etcd-servers=http://{LOOPBACK}:{store}",
        f"--cert-dir={folder / 'certificates'}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        # It would publish the address, which must not be a loopback one then.
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'accounts.pem'}",
        f"--service-account-signing-key-file={folder / 'accounts.pem'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        # It would wait for the controller that makes the account of a namespace.
        "--disable-admission-plugins=ServiceAccount",
    ]
    certificate = folder / "certificates/apiserver.crt"
    async with (
        child_process("etcd", database, folder=folder),
        child_process("api-server", command, folder=folder) as child,
    ):

        async def has_certificate() -> bool:
            return certificate.exists() and "END" in certificate.read_text()

        await child.wait_until(has_certificate, START_SECONDS)
        context = ssl.create_default_context(cafile=str(certificate))
        address, headers = f"https://{LOOPBACK}:{port}", {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=address, headers=headers, verify=context, trust_env=False, timeout=60
        ) as http:
            cluster = Cluster(http)

            async def is_ready() -> bool:
                return await cluster.has("/readyz")

            await child.wait_until(is_ready, START_SECONDS)
            restricted = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
            namespace = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": NAMESPACE, "labels": restricted},
            }
            (await cluster.create("/api/v1/namespaces", namespace)).raise_for_status()
            for kind, plural in KINDS.items():
                definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                (await cluster.create(definitions, define(kind, plural))).raise_for_status()

                async def is_served(plural: str = plural) -> bool:
                    return await cluster.has(f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/{plural}")

                await child.wait_until(is_served, START_SECONDS)
            yield cluster


def define(kind: str, plural: str) -> Object:
    """Define a kind of KEDA's whose objects have any fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    spec = {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**definition, "metadata": {"name": f"{plural}.keda.sh"}, "spec": spec}


def list_pods(objects: Sequence[Object]) -> list[Object]:
    """List the pods that the controller of Deployments would create."""
    pods: list[Object] = []
    for name, deployment in select(objects, "Deployment").items():
        template: dict[str, Any] = copy.deepcopy(deployment["spec"]["template"])
        template["metadata"]["name"] = name
        pods.append({"apiVersion": "v1", "kind": "Pod", **template})
    return pods


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Run one API server for the tests of this module."""
    async with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.parametrize("case", CASES)
async def test_the_objects_of_a_case_are_accepted(cluster: Cluster, case: str) -> None:
    """No field is unknown, nothing is deprecated, and the pods pass the standard `restricted`."""
    objects = render(case)
    for each in [*objects, *list_pods(objects)]:
        answer = await cluster.apply(each)
        assert answer.status_code in (200, 201), (each["kind"], each["metadata"]["name"], answer.text)
        assert answer.headers.get_list("Warning") == []


async def test_an_upgrade_changes_no_field_that_must_stay(cluster: Cluster) -> None:
    """Other settings, another image and further workers: the server accepts the new objects over the old ones."""
    for each in render("own-server"):
        (await cluster.apply(each, keeps=True)).raise_for_status()
    newer = render_values(image={"tag": "43"}, rateLimits={"openai": 50}, serve={"enabled": True})
    for each in newer:
        answer = await cluster.apply(each)
        assert answer.is_success, answer.text


async def test_objects_that_are_wrong_are_refused(cluster: Cluster) -> None:
    """The server sees an unknown field, a selector without pods, and a pod with more rights than it needs."""
    deployment = select(render("own-server"), "Deployment")["clew-sessions"]
    misspelled, astray = copy.deepcopy(deployment), copy.deepcopy(deployment)
    misspelled["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    astray["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] = "models"
    (pod,) = [each for each in list_pods([deployment]) if each["metadata"]["name"] == "clew-sessions"]
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    answers = [await cluster.apply(each) for each in (misspelled, astray, pod)]
    # Server-side apply answers 500 to a field that the type does not have.
    assert [answer.is_success for answer in answers] == [False, False, False]
    assert ["livenessProb" in answers[0].text, "selector" in answers[1].text, "restricted" in answers[2].text] == [
        True
    ] * 3
