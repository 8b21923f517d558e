"""`launch.py runs`: lists the runs of a folder, the one that was active last first. It reads only files. A run counts
as running while a process holds its lock, so one on another machine of a shared disk may be shown as stopped."""

import sys
from argparse import Namespace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.errors import CheckpointError, RetrospectError
from core.load import load_config
from core.run_directory import TAIL, RunDirectory, last_record, read_jsonl, tail
from monitor.console import byte_count
from trainer.checkpoint import is_saved
from trainer.evaluation.files import lacks_evaluation

WIDTH = 250  # columns where there is no terminal


def list_runs(options: Namespace) -> int:
    """Print a line for every run below `root`. Raises CheckpointError when there is none."""
    root = options.root.expanduser()
    runs = [RunDirectory(path.parent) for path in root.glob("*/config.yaml")]
    if not runs:
        raise CheckpointError(f"{root}: no runs here (folders with a config.yaml); name the folder of the runs")
    table = Table("run", "state", "step", "best", "last active", "size", "last line", box=None, pad_edge=False)
    for run in sorted(runs, key=_active, reverse=True):
        try:
            row = _row(run)
        except (RetrospectError, OSError, ValueError, TypeError, OverflowError) as error:  # the others are shown
            row = (run.name, "damaged", "", "", "", "", str(error))
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
    return 0


def _row(run: RunDirectory) -> tuple[str, ...]:
    numbers = last_record(run.metrics)
    if "step" in numbers:  # of sft and reward-model
        step, done = str(numbers["step"]), (run.policy / "config.json").exists()
    else:
        iteration, planned = int(numbers.get("iteration") or 0), load_config(run.config).run.iterations
        step, done = f"{iteration}/{planned}", iteration >= planned and is_saved(run, iteration)
        done = done and not lacks_evaluation(run.evaluations, iteration)  # a resume makes up for it
    state = "running" if run.locked() else "finished" if done else "stopped"
    success = [line["success"] for line in read_jsonl(run.evaluations, lambda line: line["success"] + 0.0)]
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    when = f"{datetime.fromtimestamp(_active(run)):%Y-%m-%d %H:%M}"
    best = f"{max(success):.1%}" if success else "-"
    return run.name, state, step, best, when, byte_count(size), _last_line(run.log)[:100]


def _active(run: RunDirectory) -> float:
    return max(path.stat().st_mtime for path in (run.config, run.log, run.metrics) if path.exists())


def _last_line(path: Path) -> str:
    """The last line of a text file without its time and place in the code; empty if there is none."""
    line = "".join(tail(path, TAIL)[-1:])
    return line.partition(": ")[2] or line
