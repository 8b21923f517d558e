"""The result files of the runs, and what is read from one of them. Pure but for `read_results`."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.learning.measures import Curve

Result = dict[str, Any]
Setting = tuple[str, str]
"""Task and hardness."""
Arms = Mapping[str, Mapping[int, Result]]
"""Arm -> seed -> result, of one setting."""
OURS = "learnability_imitating"
ABLATED = "learnability_small"
"""The arm of which the ablations change one piece."""
ENOUGH = 5
"""Seeds from which a goal is judged."""


def read_results(folder: Path) -> dict[Setting, dict[str, dict[int, Result]]]:
    """The arms of each setting, of all complete result files."""
    found: dict[Setting, dict[str, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
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
