"""`launch.py report`: summarises runs, on the terminal and as one page, from their files: they may be running."""

import sys
from argparse import Namespace
from pathlib import Path

from core.errors import ConfigError
from core.run_directory import RunDirectory
from monitor.page import write_page
from monitor.report import draw_report, summary
from monitor.run_files import read_run


def report_runs(options: Namespace) -> int:
    """Print each run's summary and write its curves and page again; of several runs also one page that compares them.
    Raises CheckpointError when one is no run or has no iteration yet."""
    runs = [read_run(run) for run in {run.path: run for run in map(RunDirectory.open, options.runs)}.values()]
    page = Path("report.html") if options.output is None and len(runs) > 1 else options.output
    if page is not None:
        page = page.expanduser().resolve()
        try:
            write_page(runs, page)
        except OSError as error:
            raise ConfigError(f"--output {page}: {error.strerror}; name a file that can be written") from None
    for item in runs:
        print(summary(item))
        try:
            draw_report(item)
        except OSError as error:  # a run of another user
            reason = f"{error.filename}: {error.strerror}"
            print(f"warning: {reason}; curves and report of {item.run.path} are not written", file=sys.stderr)
    if page is not None:
        print(f"{len(runs)} runs compared in {page}" if len(runs) > 1 else f"page {page}")
    return 0
