"""The SDK's runtime of a worker process: its log lines, and the metrics for Prometheus."""

from __future__ import annotations

import logging
import socket
from typing import Any

import uvloop
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from clew_activities.telemetry.metrics import BUCKETS

# The worker's event loop.


class WorkerLoop(uvloop.Loop):
    """uvloop's event loop, which takes less CPU than asyncio's, with asyncio's way to look host names up.

    uvloop looks them up in four threads: a few lookups that hang would block those of all other calls. HTTP clients
    look a name up before they connect.
    """

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Look a host name up in a thread of the default executor, which `make_room` makes large enough."""
        return await self.run_in_executor(None, socket.getaddrinfo, host, port, family, type, proto, flags)


def make_runtime(metrics_address: str | None = None) -> Runtime:
    """Make the runtime. With an address it serves the SDK's metrics and Clew's at `/metrics`.

    The log lines of the SDK's core go through Python's handlers, where they are formatted and redacted.

    Raises:
        ValueError: The port cannot be opened.
    """
    metrics = None
    if metrics_address is not None:
        metrics = PrometheusConfig(
            bind_address=metrics_address,
            counters_total_suffix=True,
            unit_suffix=True,
            durations_as_seconds=True,
            histogram_bucket_overrides=BUCKETS,
        )
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio"), append_target_to_name=False)
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    try:
        return Runtime(telemetry=TelemetryConfig(logging=logs, metrics=metrics))
    except ValueError as error:
        raise ValueError(f"the metrics port {metrics_address} cannot be opened: {error}") from None
