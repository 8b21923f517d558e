"""Exports an iteration's metrics as Ray gauges, for Prometheus and Grafana, and its phases as spans of `ray timeline`.
Invariant: one gauge `retrospect_<name>` per metric of `trainer.metrics.metric_infos`, labelled with the run's name."""

import math
from contextlib import ExitStack

from ray._private.profiling import profile
from ray.util.metrics import Gauge

from trainer.metrics import IterationMetrics, flatten, metric_infos

PREFIX = "retrospect_"


class RayGaugeSink:
    """Gauges on the metrics agent of the driver's node. A metric that is NaN keeps its last value."""

    def __init__(self, run: str) -> None:
        self._gauges = {
            info.name: Gauge(f"{PREFIX}{info.name}", f"{info.meaning} [{info.unit}]", ("run",))
            for info in metric_infos()
        }
        for gauge in self._gauges.values():
            gauge.set_default_tags({"run": run})
        self._span = ExitStack()  # of the phase that has begun

    def phase(self, name: str) -> None:
        """A phase begins; it ends with the next one, or with the iteration."""
        self._span.close()
        self._span.enter_context(profile(name))

    def write(self, metrics: IterationMetrics) -> None:
        """Set every gauge; Ray exports them a few seconds later (RAY_metrics_report_interval_ms)."""
        self._span.close()
        for name, value in flatten(metrics).items():
            if math.isfinite(value):
                self._gauges[name].set(value)

    def close(self) -> None:
        """End the last phase. Ray removes the gauges with the driver."""
        self._span.close()
