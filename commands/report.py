"""`launch.py report`: summarises the results of a run so far.

Called by `launch.py`. It reads only the run's files, so the run may still be running.
"""

from argparse import Namespace

from core.run_directory import RunDirectory
from monitor.report import print_report


def report_run(options: Namespace) -> int:
    """Print the summary of a run and draw its curves again. Raises CheckpointError when there is no run or no iteration yet."""
    print_report(RunDirectory.open(options.run))
    return 0
