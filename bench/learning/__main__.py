"""`python -m bench.learning`: perform the runs that are missing, then write table and plot (bench/README.md)."""

import argparse
import tempfile
from pathlib import Path

from bench.learning.page import write_page
from bench.learning.plan import ARMS, SETTINGS, matrix
from bench.models import ROOT
from bench.report import RESULTS
from bench.runs import Orders, perform_all

QUICK_SCALE = 0.05


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--set", nargs="+", default=[], metavar="SECTION.FIELD=VALUE", help="other fields, for trials")
    parser.add_argument("--results", type=Path, default=RESULTS / "learning.jsonl", help="table of the results")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "learning", help="folder of runs and logs")
    parser.add_argument("--quick", action="store_true", help="two short runs that check the machinery")
    parser.add_argument("--page", action="store_true", help="write the page from the results that there are")
    return parser.parse_args()


def main() -> None:
    """Perform the runs that have no result, and write the page if the results are those of the repository."""
    given = arguments()
    changes = dict(text.split("=", 1) for text in given.set)
    work = given.work.resolve()
    if given.quick:
        with tempfile.TemporaryDirectory() as folder:
            table, runs = Path(folder) / "learning.jsonl", matrix(["rule medium"], ["ppo", "both"], [1])
            perform_all(runs, table, Orders("bench.learning.run", Path(folder), QUICK_SCALE, changes=changes))
            write_page(table, quick=True)
        return
    if not given.page:
        runs = matrix(given.settings, given.arms, given.seeds)
        perform_all(runs, given.results, Orders("bench.learning.run", work, changes=changes))
    if given.page or given.results == RESULTS / "learning.jsonl":
        write_page(given.results, quick=False)


if __name__ == "__main__":
    main()
