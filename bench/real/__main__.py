"""`python -m bench.real PART`: perform the runs of a part that have no result yet, one after another. `python -m
bench.real page`: write bench/results/real.md from all results (PROTOCOL.md)."""

import argparse
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from bench.real.plan import ON, PARTS, THREADS, TUNED, TUNING_SEED, Run, matrix, tuning_matrix
from bench.real.whole_page import write_page
from bench.report import RESULTS
from bench.runs import ROOT, commit, run_child
from core.errors import ConfigError
from core.run_directory import RunDirectory, read_jsonl


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "page"])
    parser.add_argument("--seeds", nargs="+", type=int, help="seed indices, instead of those that are planned")
    parser.add_argument("--arms", nargs="+", help="arms, instead of all of the part")
    parser.add_argument("--tune", action="store_true", help="the tuning runs of the part instead")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tokens and problems, for trials")
    parser.add_argument("--set", nargs="+", default=[], metavar="SECTION.FIELD=VALUE", help="other fields, for trials")
    parser.add_argument("--device", choices=ON, default="cpu", help="device of engine and learner (default: cpu)")
    parser.add_argument("--results", type=Path, help="folder of the tables (default: of the repository, or of trials)")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "real", help="folder of unfinished runs and logs")
    given = parser.parse_args()
    if given.part != "page":
        part = PARTS[given.part]
        if unknown := [arm for arm in given.arms or () if arm not in part.arms]:
            parser.error(f"--arms {unknown[0]}: {given.part} has the arms {', '.join(part.arms)}")
        if given.tune and not (part.tuned and TUNED in part.arms):
            parser.error(f"--tune: nothing is tuned in {given.part}")
    return given


def main() -> None:
    """Perform or write."""
    given = arguments()
    trial = given.scale != 1.0 or bool(given.set)
    work = (given.work / "trial" if trial else given.work).resolve()
    results = given.results or (work / "results" if trial else RESULTS / "real")
    if given.part == "page":
        write_page(results, quick=given.results is not None)
        return
    part = PARTS[given.part]
    tuning = read_jsonl(results / "tuning.jsonl") if part.tuned else []
    planned = matrix(given.part, given.arms or part.arms, given.seeds or (), tuning)
    runs = tuning_matrix(given.part) if given.tune else planned
    changes = dict(text.split("=", 1) for text in given.set)
    perform_all(runs, results, work, Way(given.scale, given.device, changes))


@dataclass(frozen=True, slots=True)
class Way:
    """How runs are performed."""

    scale: float  # share of the tokens and problems
    device: str
    changes: Mapping[str, str]  # fields by 'section.field'


def table_of(run: Run, results: Path) -> Path:
    """The file with the run's result."""
    return results / f"{'tuning' if run.seed == TUNING_SEED else run.part}.jsonl"


def pending(runs: Sequence[Run], results: Path) -> list[Run]:
    """The runs without a result."""
    return [
        run for run in runs if run.name not in {Run(**row["run"]).name for row in read_jsonl(table_of(run, results))}
    ]


def perform_all(runs: Sequence[Run], results: Path, work: Path, way: Way) -> None:
    """Perform what is pending. A run that fails is named; the next start goes on from its checkpoint. Two commands may
    share the runs: each takes the next that nobody has."""
    left = pending(runs, results)
    print(f"{len(left)} of {len(runs)} runs to do; logs in {work / 'logs'}", flush=True)
    for run in left:
        place = RunDirectory(work / f"{run.name}.order")
        place.path.mkdir(parents=True, exist_ok=True)
        with suppress(ConfigError), place.lock():  # another command performs it
            if pending([run], results):
                perform_one(run, results, work, way)
            shutil.rmtree(place.path)


def perform_one(run: Run, results: Path, work: Path, way: Way) -> None:
    """Perform a run in a child process."""
    part, begun = PARTS[run.part], time.monotonic()
    budget = part.budget // 2 if run.seed == TUNING_SEED else part.budget
    about = {
        "changes": way.changes,
        "commit": commit(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    order = {
        "run": asdict(run),
        "work": str(work),
        "table": str(table_of(run, results).resolve()),
        "scale": way.scale,
        "device": way.device,
        "budget": round(way.scale * budget),
        "changes": way.changes,
        "about": about,
    }
    run_child("bench.real.run", order, work / "logs" / f"{run.name}.log", threads=THREADS)
    word = "FAILED" if pending([run], results) else "done"
    print(f"{datetime.now():%H:%M:%S} {run.name}: {word} after {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
