"""The gauges on a real Ray: what Prometheus would scrape from the metrics agent of the driver's node."""

import http.client
import math
import re
import time
import urllib.request
from dataclasses import replace

import pytest

from tests.trainer.examples import iteration
from trainer.metrics import flatten, metric_infos

SAMPLE = re.compile(r"^ray_retrospect_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
WAIT = 180.0  # seconds: Ray reports every 10 s by default, and its agent may just be starting


def scrape(run: str) -> dict[str, float]:
    """Name -> value of the run's gauges, as the node's metrics agent exports them now."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    (node,) = [
        node for node in ray.nodes() if node["NodeID"] == own
    ]  # others may have joined and gone in earlier tests
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    try:
        text = urllib.request.urlopen(address, timeout=10).read().decode()
    except (OSError, http.client.HTTPException):  # the agent is not up yet
        return {}
    return {name: float(value) for name, labels, value in SAMPLE.findall(text) if f'run="{run}"' in labels}


@pytest.mark.usefixtures("ray_cluster")
def test_prometheus_finds_every_number_of_the_newest_iteration() -> None:
    from monitor.ray_metrics import RayGaugeSink

    sink = RayGaugeSink("gauges-test")
    sink.write(replace(iteration(2), root_success=0.5))
    sink.write(replace(iteration(3), root_success=0.375))  # not evaluated: keeps the value of iteration 2
    sink.close()
    # NaN in both iterations: a gauge that was never set is not exported
    absent = {name for name, value in flatten(iteration(2)).items() if math.isnan(value)}
    exported = {info.name for info in metric_infos()} - absent
    newest = {"iteration": 3, "root_success": 0.375, "evaluation_success": pytest.approx(0.29), "total_tokens": 39_000}
    found: dict[str, float] = {}
    deadline = time.monotonic() + WAIT
    while set(found) < exported or any(found[name] != value for name, value in newest.items()):  # perhaps one by one
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
        found = scrape("gauges-test")
    assert set(found) == exported


@pytest.mark.usefixtures("ray_cluster")
def test_the_timeline_has_a_span_per_phase() -> None:
    import ray

    from monitor.ray_metrics import RayGaugeSink

    sink = RayGaugeSink("phases-test")
    for phase in ("generate", "update"):
        sink.phase(phase)
    sink.close()
    deadline = time.monotonic() + WAIT
    while not {"generate", "update"} <= {event["cat"] for event in ray.timeline()}:  # the category of a task is another
        assert time.monotonic() < deadline
        time.sleep(0.2)
