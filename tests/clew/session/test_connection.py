"""A client connects as Temporal's environment configuration says: to Temporal Cloud, or to a server with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import TLSConfig

from clew import Clew
from clew.errors import ServerUnreachable

CLOUD = {
    "TEMPORAL_ADDRESS": "us-east-1.aws.api.temporal.io:7233",
    "TEMPORAL_NAMESPACE": "example.a1b2c",
}


async def read_options(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> dict[str, Any]:
    """Read the options with which the SDK connects under an environment."""
    options: dict[str, Any] = {}

    async def connect(**config: Any) -> None:
        options.update(config)
        raise RuntimeError("there is no such server")

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Client, "connect", connect)
    with pytest.raises(ServerUnreachable, match="there is no such server"):
        await Clew.connect()
    return options


async def test_an_api_key_of_temporal_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, namespace and key are the variables'; the connection has TLS."""
    options = await read_options(monkeypatch, CLOUD | {"TEMPORAL_API_KEY": "a-key"})
    assert (options["target_host"], options["namespace"]) == tuple(CLOUD.values())
    assert (options["api_key"], options["tls"]) == ("a-key", True)


async def test_a_client_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its files and those of a private authority are read."""
    files = {
        "TEMPORAL_TLS_CLIENT_CERT_PATH": "certificate",
        "TEMPORAL_TLS_CLIENT_KEY_PATH": "key",
        "TEMPORAL_TLS_SERVER_CA_CERT_PATH": "authority",
    }
    for name in files.values():
        (tmp_path / name).write_text(f"the {name}")
    paths = {variable: str(tmp_path / name) for variable, name in files.items()}
    options = await read_options(monkeypatch, CLOUD | paths | {"TEMPORAL_TLS_SERVER_NAME": "temporal.example"})
    tls = options["tls"]
    assert isinstance(tls, TLSConfig)
    assert (tls.client_cert, tls.client_private_key) == (b"the certificate", b"the key")
    assert (tls.server_root_ca_cert, tls.domain) == (b"the authority", "temporal.example")
