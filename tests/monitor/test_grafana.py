"""monitor/grafana.json: no panel stays empty."""

import json
import re
from pathlib import Path

from monitor.ray_metrics import PREFIX
from trainer.metrics import metric_infos

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
