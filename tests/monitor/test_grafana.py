"""monitor/grafana.json: no panel stays empty."""

import http.client
import json
import math
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.ray_metrics import PREFIX
from tests.processes import free_port
from tests.trainer.examples import iteration
from trainer.metrics import flatten, metric_infos

DOCUMENT = Path(__file__).parents[2] / "monitor" / "grafana.json"
GAUGE = f"ray_{PREFIX}"  # Ray puts `ray_` before a gauge's own name


def test_it_names_only_metrics_that_exist() -> None:
    used = set(re.findall(rf"{GAUGE}(\w+)", DOCUMENT.read_text(encoding="utf-8")))
    known = {info.name for info in metric_infos()}
    assert used <= known
    # what is left out on purpose: counters that only grow, and the sum of the stacked phases
    assert known - used == {"weight_version", "generated_tokens", "total_tokens", "total_seconds"}


def test_panels_do_not_overlap() -> None:
    panels = json.loads(DOCUMENT.read_text(encoding="utf-8"))["panels"]
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) == len(panels) * 8 * 8
    assert max(x for x, _ in cells) < 24


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (apt-get install prometheus)"
)
def test_every_panel_shows_something_in_prometheus(tmp_path: Path) -> None:
    """A real one, with our configuration, finds the nodes of a real Ray by the file that Ray writes for it."""
    import ray
    from ray._private.metrics_agent import PrometheusServiceDiscoveryWriter

    from monitor.ray_metrics import RayGaugeSink

    sink = RayGaugeSink("panels-test")
    absent: dict[str, Any] = {name: 0.1 for name, value in flatten(iteration(2)).items() if math.isnan(value)}
    sink.write(replace(iteration(2), **absent))
    nodes = PrometheusServiceDiscoveryWriter(
        ray.get_runtime_context().gcs_address, str(tmp_path)
    )  # Ray's dashboard has one
    nodes.write()
    text = (DOCUMENT.parent / "prometheus.yml").read_text(encoding="utf-8")
    assert text.count("/tmp/ray/prom_metrics_service_discovery.json") == 1
    settings = tmp_path / "prometheus.yml"
    settings.write_text(text.replace("/tmp/ray", str(tmp_path)).replace("scrape_interval: 10s", "scrape_interval: 1s"))
    panels = json.loads(DOCUMENT.read_text(encoding="utf-8"))["panels"]
    expressions = {target["expr"] for panel in panels for target in panel["targets"]}
    assert len(expressions) >= len(panels)
    try:
        with prometheus(settings) as server:
            empty, deadline = expressions, time.monotonic() + 180
            while empty := {
                one for one in empty if not asked(server, "query", query=one.replace("$run", "panels-test"))
            }:
                assert time.monotonic() < deadline, empty
                time.sleep(0.5)
            runs = asked(
                server, "label/run/values", **{"match[]": "ray_retrospect_iteration"}
            )  # the dashboard's choice
            assert "panels-test" in runs
    finally:
        sink.close()


@contextmanager
def prometheus(settings: Path) -> Iterator[str]:
    """Start a server with these settings; its address."""
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={settings}", f"--storage.tsdb.path={settings.parent}", f"--web.listen-address={address}"]
    with subprocess.Popen(["prometheus", *options], stderr=subprocess.DEVNULL) as server:
        yield address
        server.kill()


def asked(server: str, path: str, **parameters: str) -> list[Any]:
    """What Prometheus answers; nothing while it starts."""
    url = f"http://{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        data = json.loads(urllib.request.urlopen(url, timeout=10).read())["data"]
    except (OSError, http.client.HTTPException):
        return []
    return list(data if isinstance(data, list) else data["result"])
