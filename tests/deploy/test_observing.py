"""The dashboard and the alerts name metrics that a worker has, as a real Prometheus reads them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.local.child import LOOPBACK, child_process, free_ports
from tests.support.page_code import find_block
from tests.support.processes import ROOT
from tests.support.scraping import run_observed_worker, serve_turns
from tests.support.stack import Stack

DASHBOARD = ROOT / "deploy/grafana-dashboard.json"
RULES = ROOT / "deploy/prometheus-rules.yaml"
METRIC = re.compile(r"\b(?:clew|temporal)_\w+")
START_SECONDS = 60

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")


def list_expressions() -> list[str]:
    """List the queries of the dashboard and of the page about observing, with Grafana's variables replaced."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries.append(find_block("operations.md", "rate(clew_", ""))
    return [query.replace("$__rate_interval", "1m").replace("$namespace", ".*") for query in queries]


def list_metrics() -> set[str]:
    """List the metrics that the dashboard and the alerts name."""
    return set(METRIC.findall(" ".join(list_expressions()))) | set(METRIC.findall(RULES.read_text()))


def test_the_reference_of_metrics_has_every_metric_of_the_dashboard() -> None:
    """A metric of Clew's is in its table, a histogram by the name without Prometheus' suffix."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in list_metrics() if name.startswith("clew_")}
    assert len(names) > 8
    assert not {name for name in names if f"| `{name}` |" not in page}


@needs_prometheus
@pytest.mark.parametrize("check", [("rules", RULES), ("config", ROOT / "deploy/prometheus.yaml")], ids=lambda c: c[0])
def test_prometheus_accepts_the_files(check: tuple[str, Path]) -> None:
    """`promtool` reports no problem."""
    kind, file = check
    done = subprocess.run(["promtool", "check", kind, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_prometheus
@pytest.mark.slow
async def test_every_query_has_the_metrics_that_it_names(stack: Stack, tmp_path: Path) -> None:
    """Prometheus scrapes a worker: each metric is there, each query and each alert is evaluated without an error."""
    port = free_ports(1)[0]
    async with run_observed_worker(stack, "observed") as worker:
        await serve_turns(stack, "observed", 4)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "clew", "static_configs": [{"targets": [worker.metrics]}]}],
        }
        file = tmp_path / "prometheus.json"
        file.write_text(json.dumps(config))
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]
        url = f"http://{LOOPBACK}:{port}/api/v1"
        async with (
            child_process("prometheus", command, folder=tmp_path) as child,
            httpx.AsyncClient(trust_env=False, timeout=START_SECONDS) as http,
        ):

            async def query(expression: str) -> list[Any]:
                answer = await http.get(f"{url}/query", params={"query": expression})
                assert answer.status_code == 200, answer.text
                return list(answer.json()["data"]["result"])

            async def has_scraped() -> bool:
                try:
                    # Prometheus answers 503 until it is ready.
                    ready = (await http.get(f"http://{LOOPBACK}:{port}/-/ready")).is_success
                except httpx.TransportError:
                    return False
                return ready and bool(await query("count_over_time(clew_turns_total[1m]) > 2"))

            await child.wait_until(has_scraped, START_SECONDS)
            assert {name for name in list_metrics() if not await query(name)} == set()
            for expression in list_expressions():
                await query(expression)
            groups = (await http.get(f"{url}/rules")).json()["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) == RULES.read_text().count("- alert:")
            assert {rule["health"] for rule in rules} == {"ok"}
            assert not [rule["name"] for rule in rules if rule["state"] == "firing"]
