"""`python -m bench.learning`: perform what is missing of the matrix, then write the table and the plots. See bench/README.md."""

import argparse
from pathlib import Path

from bench.learning.matrix import perform_all
from bench.learning.plan import ARMS, HARDNESSES, SETTINGS, matrix
from bench.report import RESULTS


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--hardness", nargs="+", choices=HARDNESSES, default=list(HARDNESSES))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, each with one thread")
    parser.add_argument("--results", type=Path, default=RESULTS / "learning", help="folder of the result files")
    parser.add_argument("--logs", type=Path, default=Path("runs/learning"), help="folder of the children's output")
    parser.add_argument("--tokens", type=int, help="generated tokens of a run, instead of the plan's")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="SECTION.FIELD=VALUE", help="fields of every run (tuning)"
    )
    return parser.parse_args()


def main() -> None:
    """Perform the runs that have no result."""
    given = arguments()
    runs = matrix(given.tasks, given.hardness, given.arms, given.seeds)
    changes = dict(text.split("=", 1) for text in given.set)
    perform_all(runs, given.results, given.logs, given.jobs, changes, given.tokens)


if __name__ == "__main__":
    main()
