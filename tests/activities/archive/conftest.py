from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew_activities.archive import Store
from tests.support.cluster import find_cluster
from tests.support.s3 import make_s3_env, run_s3


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of a real HTTP server that speaks S3, with the bucket `clew`: the local cluster's, or Moto."""
    if find_cluster():
        yield os.environ["AWS_ENDPOINT_URL"]
        return
    with run_s3() as address:
        yield address


@pytest.fixture
def s3_env(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of a worker whose bucket is on that server."""
    if find_cluster() is None:
        for name, value in make_s3_env(s3).items():
            monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(params=["folder", "memory", "module"])
def local_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store on this machine. Moto's threads trip over one another where one object has several writers."""
    return _open_store(request.param, tmp_path)


def _open_store(kind: str, path: Path) -> Store:
    match kind:
        case "folder":
            return Store.from_url((path / "a store").as_uri())
        case "module":
            return Store.from_url(f"module://tests.support.sqlite_store{path / 'objects.db'}")
        case _:
            return Store.from_url("memory://")


@pytest.fixture(params=["folder", "s3", "memory", "module"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    match request.param:
        case "s3":
            request.getfixturevalue("s3_env")
            return Store.from_url(f"s3://clew/{uuid.uuid4().hex}/a prefix")
        case kind:
            return _open_store(kind, tmp_path)
