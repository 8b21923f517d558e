"""Performs the runs of a matrix that have no result yet: a child process each, several side by side. Invariant: a run
whose result is in a table of the folder is never repeated, so a matrix goes on where it was, also on another
machine."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from bench.learning.plan import Fields, Run
from bench.learning.results import by_name
from bench.runs import commit, run_child

NICE = 15  # the children give way to everything else on the machine


def pending(runs: Sequence[Run], results: Path) -> list[Run]:
    """The runs without a result, in the same order."""
    done = by_name(results)
    return [run for run in runs if run.name not in done]


def perform_all(runs: Sequence[Run], results: Path, logs: Path, jobs: int, changes: Fields, tokens: int | None) -> None:
    """Perform all pending runs, `jobs` at a time. A run that fails is named; the next start tries it again."""
    left = pending(runs, results)
    print(f"{len(left)} of {len(runs)} runs to do, {jobs} at a time; logs in {logs}", flush=True)

    def _one(run: Run) -> bool:
        return perform(run, results, logs / f"{run.name}.log", changes, tokens)

    with ThreadPoolExecutor(jobs) as threads:
        failed = [run.name for run, good in zip(left, threads.map(_one, left), strict=True) if not good]
    if failed:
        print(f"failed: {', '.join(failed)}; see their logs in {logs}", flush=True)


def perform(run: Run, results: Path, log: Path, changes: Fields, tokens: int | None) -> bool:
    """One run in a child process with one thread. Returns whether it wrote its result."""
    if not pending([run], results):  # another matrix was faster
        return True
    about = {
        "run": asdict(run),
        "changes": dict(changes),
        "commit": commit(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    order = {
        "run": asdict(run),
        "changes": dict(changes),
        "tokens": tokens,
        "about": about,
        "results": str(results.resolve()),
    }
    begun = time.monotonic()
    run_child("bench.learning.run", order, log, threads=1, nice=NICE)
    good = not pending([run], results)
    word = "done" if good else "FAILED"
    print(f"{datetime.now():%H:%M:%S} {run.name}: {word} after {time.monotonic() - begun:.0f} s", flush=True)
    return good
