"""Draws the success of runs into one picture, such as docs/guess.png from a run of bench/recipes/guess.yaml:
`python -m bench.picture runs/guess --output docs/guess.png`. It reads the runs' files only."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from core.run_directory import RunDirectory
from monitor.charts import STYLE
from monitor.run_files import RunFiles, read_run, series


def draw(runs: Sequence[RunFiles], labels: Sequence[str], path: Path) -> None:
    """Success over the tokens that each run generated: from the root, and on held-out problems with its interval."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), dpi=100, layout="constrained")
        axes = figure.subplots()
        for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
            tokens = {0: 0} | {m.iteration: m.total_tokens for m in run.metrics}
            root = series(run, "root_success")
            axes.plot(
                [tokens[at] for at in root],
                [*root.values()],
                f"C{number}",
                alpha=0.4,
                label=f"{label}: training, from the root",
            )
            x, y, low, high = zip(
                *((tokens[e["iteration"]], e["success"], e["low"], e["high"]) for e in run.evaluations), strict=True
            )
            bars = np.array([np.subtract(y, low), np.subtract(high, y)])
            axes.errorbar(
                x, y, bars, color=f"C{number}", marker="o", capsize=3, linewidth=1.8, label=f"{label}: held out, greedy"
            )
        axes.set(xlabel="tokens generated in training", ylabel="success", ylim=(0, 1), xlim=(0, None))
        axes.legend(frameon=False)
        figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the success of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    files = [read_run(RunDirectory.open(run)) for run in options.runs]
    draw(files, [file.run.name for file in files], options.output)
