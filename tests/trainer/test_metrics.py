"""The record of an iteration: names, units, round trip, the clock, the documentation."""

import math
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference_pages import metrics_page
from tests.trainer.examples import iteration
from trainer.metrics import (
    PHASES,
    IterationMetrics,
    PhaseClock,
    PhaseSeconds,
    SourceMetrics,
    flatten,
    metric_infos,
    unflatten,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_number_has_a_unit_and_a_meaning() -> None:
    infos = metric_infos()
    # all fields but the nested `seconds`, `sources` and `rewards`, then the phases, `other` and `total`
    assert len(infos) == len(fields(IterationMetrics)) - 3 + len(PHASES) + 2
    assert len({info.name for info in infos}) == len(infos)
    assert all(info.unit and info.group and info.meaning.endswith(".") for info in infos)


def test_flatten_names_what_describe_names_in_the_same_order() -> None:
    flat = flatten(iteration(3))
    assert list(flat) == [info.name for info in metric_infos()]
    assert flat["generate_seconds"] == 3.0
    assert flat["iteration"] == 3
    assert isinstance(flat["iteration"], int)


def test_unflatten_inverts_flatten() -> None:
    metrics = iteration(2)
    back = unflatten({name: None if math.isnan(value) else value for name, value in flatten(metrics).items()})
    assert math.isnan(back.erroneous_share)  # not measured in the example: NaN -> null -> NaN
    # NaN != NaN, so compare the printed records
    assert repr(back) == repr(metrics)


def test_unflatten_reads_records_of_other_versions() -> None:
    metrics = unflatten({"iteration": 4, "a_metric_of_tomorrow": 1.0})
    assert metrics.iteration == 4
    assert metrics.store_states == 0
    assert math.isnan(metrics.reward)


@given(st.lists(st.sampled_from(PHASES), max_size=6))
def test_phases_and_other_add_up_to_the_total(entered: list[str]) -> None:
    clock = PhaseClock()
    for name in entered:
        with clock.phase(name):  # type: ignore[arg-type]
            pass
    seconds = clock.seconds()
    parts = [getattr(seconds, entry.name) for entry in fields(PhaseSeconds) if entry.name != "total"]
    assert sum(parts) == pytest.approx(seconds.total)


def test_the_clock_charges_a_phase_also_when_it_raises() -> None:
    clock = PhaseClock()
    with suppress(RuntimeError), clock.phase("update"):
        time.sleep(0.02)
        raise RuntimeError
    with clock.phase("update"):
        time.sleep(0.02)
    seconds = clock.seconds()
    assert seconds.update >= 0.04  # 0.02 + 0.02: two visits add up
    assert seconds.generate == 0


def test_the_clock_announces_every_phase() -> None:
    heard: list[str] = []
    clock = PhaseClock(heard.append)
    with clock.phase("generate"), suppress(RuntimeError):
        raise RuntimeError
    with suppress(RuntimeError), clock.phase("score"):
        raise RuntimeError
    assert heard == ["generate", "score"]


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == metrics_page(), "run: python -m tests.reference_pages"


def test_absolute_bars_do_not_break_the_table() -> None:
    whole, _, of_sources = metrics_page().partition("## Data sets of a mixture")
    rows = [line for line in whole.splitlines() if line.startswith("| `")]
    assert len(rows) == len(metric_infos())
    assert of_sources.count("\n| `") == len(fields(SourceMetrics))
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)  # 4 cells
