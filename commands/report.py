"""`launch.py report`: what a run has reached so far.

Called by `launch.py`. It reads the run's files only, so the run may be going on.
"""

from argparse import Namespace

from core.load import load_config
from core.run_directory import RunDirectory
from monitor.report import curves, load, success_before, summary


def report_run(options: Namespace) -> int:
    """Print the summary of a run and draw its curves anew. Raises CheckpointError when there is no run or no iteration yet."""
    run = RunDirectory.open(options.run)
    metrics = load(run)
    curves(metrics, run.curves, title=run.name, before=success_before(run))
    print(summary(run, metrics, iterations=load_config(run.config).run.iterations))
    return 0
