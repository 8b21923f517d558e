"""`launch.py report`: what a run has reached so far.

Called by `launch.py`. It reads the run's files only, so the run may be going on.
"""

from argparse import Namespace

from core.run_directory import RunDirectory
from monitor.report import print_report


def report_run(options: Namespace) -> int:
    """Print the summary of a run and draw its curves again. Raises CheckpointError when there is no run or no iteration yet."""
    print_report(RunDirectory.open(options.run))
    return 0
