"""Performs the runs of a matrix that have no result yet: a child process each, several side by side. Invariant: a run
whose result is in a table of the folder is never repeated, so a matrix goes on where it was, also on another
machine."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from bench.learning.plan import Fields, Run
from bench.learning.results import by_name

ROOT = Path(__file__).parents[2]
NICE = 15  # the children give way to everything else on the machine


def pending(runs: Sequence[Run], results: Path) -> list[Run]:
    """The runs without a result, in the same order."""
    done = by_name(results)
    return [run for run in runs if run.name not in done]


def perform_all(runs: Sequence[Run], results: Path, logs: Path, jobs: int, changes: Fields, tokens: int | None) -> None:
    """Perform all pending runs, `jobs` at a time. A run that fails is named; the next start tries it again."""
    left = pending(runs, results)
    logs.mkdir(parents=True, exist_ok=True)
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
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        path = Path(folder) / "order.json"
        path.write_text(json.dumps(order), encoding="utf-8")
        subprocess.run(
            ["nice", "-n", str(NICE), sys.executable, "-m", "bench.learning.run", str(path)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    good = not pending([run], results)
    word = "done" if good else "FAILED"
    print(f"{datetime.now():%H:%M:%S} {run.name}: {word} after {time.monotonic() - begun:.0f} s", flush=True)
    return good


def commit() -> str:
    """The commit of the code, with '+' if files differ from it; empty outside a repository."""
    known = [
        subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for arguments in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    ]
    return known[0] + ("+" if known[1] else "")
