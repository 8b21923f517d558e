"""`python -m bench.learning`: perform the runs that are missing, then write table and plots (bench/README.md)."""

import argparse
import tempfile
from pathlib import Path

from bench.learning.matrix import perform_all
from bench.learning.page import write_page
from bench.learning.plan import ARMS, HARDNESSES, SETTINGS, matrix
from bench.report import RESULTS

QUICK_ARMS = ("ppo", "grpo", "frontier", "canonical")
QUICK_TOKENS = 12_000


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--hardness", nargs="+", choices=HARDNESSES, default=list(HARDNESSES))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, each with one thread")
    parser.add_argument("--results", type=Path, default=RESULTS / "learning", help="folder of the tables of results")
    parser.add_argument("--logs", type=Path, default=Path("runs/learning"), help="folder of the runs' output")
    parser.add_argument("--tokens", type=int, help="generated tokens of a run, instead of the plan's")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="SECTION.FIELD=VALUE", help="fields of every run (tuning)"
    )
    parser.add_argument("--quick", action="store_true", help="a few short runs that check the machinery")
    parser.add_argument("--page", action="store_true", help="write the page from the results that there are")
    return parser.parse_args()


def main() -> None:
    """Perform the runs that have no result, and write the page if the results are those of the repository."""
    given = arguments()
    changes = dict(text.split("=", 1) for text in given.set)
    if given.quick:
        runs = matrix(["rule"], HARDNESSES[:1], QUICK_ARMS, [1])
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "learning"
            perform_all(runs, results, given.logs, given.jobs, changes, QUICK_TOKENS)
            write_page(results, quick=True)
        return
    if not given.page:
        runs = matrix(given.tasks, given.hardness, given.arms, given.seeds)
        perform_all(runs, given.results, given.logs, given.jobs, changes, given.tokens)
    if given.page or given.results == RESULTS / "learning":
        write_page(given.results, quick=False)


if __name__ == "__main__":
    main()
