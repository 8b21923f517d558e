"""The tables of results, one line of JSON per run, and what is read from one result."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.learning.measures import Curve
from bench.learning.plan import Run
from bench.runs import append_line

Result = dict[str, Any]
Setting = tuple[str, str]  # task and hardness
Arms = Mapping[str, Mapping[int, Result]]  # arm -> seed -> result, of one setting
OURS = "learnability_imitating"
ABLATED = "learnability_small"  # the arm of which the ablations change one piece
ENOUGH = 5  # seeds from which a goal is judged


def by_name(folder: Path) -> dict[str, Result]:
    """The result of each complete run, by its name."""

    def _lines() -> Iterator[Result]:
        for path in folder.glob("*.jsonl"):
            with path.open(encoding="utf-8") as table:
                yield from map(json.loads, table)

    return {Run(**result["run"]).name: result for result in _lines()}


def append_result(folder: Path, result: Result) -> None:
    """Add a line to the table of the run's task."""
    append_line(folder / f"{result['run']['task']}.jsonl", result)


def read_results(folder: Path) -> dict[Setting, dict[str, dict[int, Result]]]:
    """The arms of each setting, of all complete runs."""
    found: dict[Setting, dict[str, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for _, result in sorted(by_name(folder).items()):
        run = result["run"]
        found[run["task"], run["hardness"]][run["arm"]][run["seed"]] = result
    return {setting: dict(arms) for setting, arms in found.items()}


def curve(result: Result, cost: str = "generated") -> Curve:
    """Held-out success (pass@1) against generated tokens, or against `trained` tokens or `seconds`."""
    rows = result["rows"]
    return Curve([row[cost] for row in rows], [row["pass@1"]["mean"] for row in rows])


def average(result: Result, name: str) -> float:
    """Mean of a column over a run's evaluations; NaN if it has no value anywhere."""
    known = [row[name] for row in result["rows"] if row.get(name) is not None]
    return sum(known) / len(known) if known else math.nan


def passes(result: Result) -> float:
    """pass@k after training, with the largest k."""
    final = result["final"]
    return float(
        final[max((name for name in final if name.startswith("pass@")), key=lambda name: int(name[5:]))]["mean"]
    )


def success_before(arms: Arms) -> list[float]:
    """Held-out success before training, one value per seed: its runs all start from the same model."""
    seeds = sorted({seed for found in arms.values() for seed in found})
    runs = {seed: [found[seed] for found in arms.values() if seed in found] for seed in seeds}
    return [sum(one["rows"][0]["pass@1"]["mean"] for one in found) / len(found) for found in runs.values()]
