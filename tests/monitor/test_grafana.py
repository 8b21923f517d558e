"""docs/grafana.json: current, and without a panel that would stay empty."""

import json
import re
from pathlib import Path

from monitor.grafana import GAUGE, PANELS, dashboard
from monitor.ray_metrics import PREFIX
from trainer.metrics import describe

DOCUMENT = Path(__file__).parents[2] / "docs" / "grafana.json"


def test_the_file_is_current() -> None:
    assert json.loads(DOCUMENT.read_text(encoding="utf-8")) == dashboard(), (
        "run: python -m monitor.grafana > docs/grafana.json"
    )


def test_it_names_only_metrics_that_exist() -> None:
    used = set(re.findall(rf"{GAUGE}(\w+)", DOCUMENT.read_text(encoding="utf-8")))
    known = {info.name for info in describe()}
    assert used <= known
    # what is left out on purpose: counters that only grow, and the sum of the stacked phases
    assert known - used == {"weight_version", "generated_tokens", "total_tokens", "total_seconds"}


def test_the_gauges_carry_the_name_that_is_asked_for() -> None:
    assert f"ray_{PREFIX}" == GAUGE


def test_panels_do_not_overlap() -> None:
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in json.loads(DOCUMENT.read_text(encoding="utf-8"))["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) == len(PANELS) * 8 * 8
    assert max(x for x, _ in cells) < 24
