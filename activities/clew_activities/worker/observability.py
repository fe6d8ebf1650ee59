"""The settings of what operators see of a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address

from clew_activities.telemetry.interceptor import Spans
from clew_activities.worker.logs import LogFormat, read_log_format


@dataclass(frozen=True, kw_only=True)
class ObservabilitySettings:
    """The settings of what operators see of a worker process.

    Attributes:
        log_format: How log lines are written.
        metrics_address: Where Prometheus reads the metrics, `IP:PORT`; None: nowhere.
        health_address: Where `/live` and `/ready` are answered: IP and port; None: nowhere.
    """

    log_format: LogFormat
    metrics_address: str | None
    health_address: tuple[str, int] | None


def read_observability_settings(environ: Mapping[str, str]) -> ObservabilitySettings:
    """Read `CLEW_LOG_FORMAT`, `CLEW_METRICS_ADDRESS` and `CLEW_HEALTH_ADDRESS`.

    Raises:
        ValueError: A value cannot be used.
    """
    metrics = _read_address(environ, "CLEW_METRICS_ADDRESS")
    return ObservabilitySettings(
        log_format=read_log_format(environ),
        metrics_address=_join(*metrics) if metrics else None,
        health_address=_read_address(environ, "CLEW_HEALTH_ADDRESS"),
    )


def _read_address(environ: Mapping[str, str], variable: str) -> tuple[str, int] | None:
    text = environ.get(variable)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ip_address(host)
    except ValueError:
        host = ""
    if not (host and port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise ValueError(f"{variable} must be an IP address and a port, as in 0.0.0.0:9464, not {text[:50]!r}")
    return host, int(port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_spans(environ: Mapping[str, str]) -> Spans | None:
    """Make the spans of this process if the variables of OpenTelemetry name a collector; None: they do not.

    Raises:
        ValueError: The extra `telemetry` is not installed.
    """
    collectors = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if is_off or not any(environ.get(variable) for variable in collectors):
        return None
    try:
        spans = import_module("clew_activities.telemetry.spans")
    except ModuleNotFoundError as error:
        raise ValueError(f"traces need the extra `telemetry`: pip install 'clew[telemetry]' ({error})") from None
    made: Spans = spans.make_spans(environ)
    return made
