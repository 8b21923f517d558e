"""What experiments of many runs share: the runs of a plan, a child process for each, and tables with a line of JSON per
run. Invariants: a line is written at once, so several processes may append to one table; a run that has a line is never
repeated, so an experiment goes on where it was, also on another machine."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.models import ROOT
from bench.statistics import Curve
from core.errors import ConfigError
from core.run_directory import RunDirectory, read_jsonl

Fields = Mapping[str, Any]  # fields of a configuration by 'section.field'
Result = dict[str, Any]
Arms = Mapping[str, Mapping[int, Result]]  # arm -> seed -> result
NICE = 15  # the children give way to everything else on the machine


@dataclass(frozen=True, slots=True)
class Run:
    """One run: an arm of a part of an experiment at a seed."""

    part: str
    arm: str
    seed: int
    rate: float | None = None  # learning rate of the policy, where it is tuned

    @property
    def name(self) -> str:
        """Of its folder."""
        rate = "" if self.rate is None else f"-{self.rate:g}"
        return f"{self.part}-{self.arm}-{self.seed}{rate}".replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Orders:
    """How the runs of an experiment are performed."""

    module: str  # of one run: `python -m MODULE FILE.json`
    work: Path  # folder of unfinished runs and logs
    scale: float = 1.0  # share of the tokens and problems
    device: str = "cpu"
    changes: Mapping[str, str] | None = None  # fields by 'section.field'


def pending(runs: Iterable[Run], table: Path) -> list[Run]:
    """The runs without a result in the table, in the same order."""
    done = {Run(**row["run"]) for row in read_jsonl(table)}
    return [run for run in runs if run not in done]


def perform_all(runs: Sequence[Run], table: Path, orders: Orders) -> None:
    """Perform what is pending. A run that fails is named; the next start goes on from its checkpoint. Two commands may
    share the runs: each takes the next that nobody has."""
    left = pending(runs, table)
    print(f"{len(left)} of {len(runs)} runs to do; logs in {orders.work / 'logs'}", flush=True)
    for run in left:
        place = RunDirectory(orders.work / f"{run.name}.order")
        place.path.mkdir(parents=True, exist_ok=True)
        with suppress(ConfigError), place.lock():  # another command performs it
            if pending([run], table):
                perform(run, table, orders)
            shutil.rmtree(place.path)


def perform(run: Run, table: Path, orders: Orders) -> None:
    """Perform a run in a child process with one thread."""
    begun, changes = time.monotonic(), dict(orders.changes or {})
    about = {"changes": changes, "commit": commit(), "date": datetime.now().astimezone().isoformat(timespec="seconds")}
    order = {
        "run": asdict(run),
        "work": str(orders.work),
        "table": str(table.resolve()),
        "scale": orders.scale,
        "device": orders.device,
        "changes": changes,
        "about": about,
    }
    run_child(orders.module, order, orders.work / "logs" / f"{run.name}.log")
    word = "FAILED" if pending([run], table) else "done"
    print(f"{datetime.now():%H:%M:%S} {run.name}: {word} after {time.monotonic() - begun:.0f} s", flush=True)


def run_child(module: str, order: Mapping[str, Any], log: Path) -> None:
    """Perform an order with `python -m MODULE FILE.json` in a child process, whose output replaces `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        path = Path(folder) / "order.json"
        path.write_text(json.dumps(order), encoding="utf-8")
        subprocess.run(
            ["nice", "-n", str(NICE), sys.executable, "-m", module, str(path)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},  # a crash says where
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )


def append_line(table: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a table of results."""
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("ab", buffering=0) as file:
        file.write(f"{json.dumps(plain(row))}\n".encode())


def plain(value: Any) -> Any:
    """JSON data: numbers with five significant digits, null for what is not finite."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def arms_of(rows: Iterable[Result], order: Iterable[str]) -> dict[str, dict[int, Result]]:
    """The results of a part by arm and seed; arms and seeds in order."""
    found: dict[str, dict[int, Result]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: row["run"]["seed"]):
        found[row["run"]["arm"]][row["run"]["seed"]] = row
    return {arm: found[arm] for arm in order if arm in found}


def curve(result: Result, cost: str = "generated") -> Curve:
    """Held-out pass@1 against generated tokens, or another entry of every evaluation."""
    rows = result["evaluations"]
    return Curve([float(row[cost]) for row in rows], [float(row["pass@1"]) for row in rows])


def final(result: Result) -> float:
    """Held-out pass@1 at the end."""
    return float(result["evaluations"][-1]["pass@1"])


def commit() -> str:
    """The commit of the code, with '+' if files other than results differ from it. In a copy without a
    repository the variable GIT_COMMIT says it."""
    if not (ROOT / ".git").exists():
        return os.environ.get("GIT_COMMIT", "")
    changes = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    head, changed = (
        subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for arguments in (("rev-parse", "--short", "HEAD"), changes)
    )
    return head + "+" * bool(changed)
