"""The local cluster of `python -m tests.cluster`: its tests run on it, others of the same process do not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from clew.local import TemporalServer
from clew.local.child import Child
from deploy.local_cluster import LocalCluster
from tests.support.rolling import QUICK_ROLLOVERS
from tests.support.versions import QUICK_DRAINS

ONE_PARTITION: Mapping[str, object] = {
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    "matching.TaskQueueInfoByBuildIdTTL": "10ms",
}
"""With several partitions the order holds within each of them only. The server tells the backlog as it is."""
DYNAMIC_CONFIG: Mapping[str, object] = {**QUICK_ROLLOVERS, **QUICK_DRAINS, **ONE_PARTITION}
"""What the tests change of the cluster's dynamic configuration, as they do with the development server."""
_ADDRESS = "CLEW_TEST_CLUSTER"


def write_environment(cluster: LocalCluster) -> dict[str, str]:
    """Write the variables with which tests find the cluster, and their workers its store."""
    return {_ADDRESS: cluster.server.address, "CLEW_STORE": cluster.server.store, **cluster.store_settings}


def find_cluster() -> TemporalServer | None:
    """Find the cluster on which these tests run; None: they run on a development server."""
    if (address := os.environ.get(_ADDRESS)) is None:
        return None
    # Another process runs it: these tests do not kill it.
    store, child = os.environ["CLEW_STORE"], cast("Child", None)
    return TemporalServer(address, "default", None, Path(os.devnull), store, None, child)
