"""`python -m bench.real PART`: perform the runs of a part that have no result yet, one after another. `python -m
bench.real page`: write bench/results/real.md from all results (PROTOCOL.md)."""

import argparse
from pathlib import Path

from bench.models import ROOT
from bench.real.page import write_page
from bench.real.plan import ON, PARTS, TUNED, matrix, tuning_matrix
from bench.report import RESULTS
from bench.runs import Orders, perform_all
from core.run_directory import read_jsonl


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
    part, tuning = PARTS[given.part], results / f"{given.part}_tuning.jsonl"
    tried = read_jsonl(tuning) if part.tuned else []
    planned = matrix(given.part, given.arms or part.arms, given.seeds or (), tried)
    orders = Orders("bench.real.run", work, given.scale, given.device, dict(text.split("=", 1) for text in given.set))
    if given.tune:
        perform_all(tuning_matrix(given.part), tuning, orders)
    else:
        perform_all(planned, results / f"{given.part}.jsonl", orders)


if __name__ == "__main__":
    main()
