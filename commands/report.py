"""`launch.py report`: summarises runs, on the terminal and as one page, from their files: they may be running."""

from argparse import Namespace

from core.errors import ConfigError
from core.run_directory import RunDirectory
from monitor.page import write_page
from monitor.report import draw_report, summary
from monitor.run_files import read_run


def report_runs(options: Namespace) -> int:
    """Print each run's summary and write its curves and page again; of several runs also one page that compares them.
    Raises CheckpointError when one is no run or has no iteration yet."""
    runs = [read_run(RunDirectory.open(path)) for path in options.runs]
    for item in runs:
        draw_report(item)
        print(summary(item))
    if len(runs) > 1:
        try:
            write_page(runs, options.output)
        except OSError as error:
            raise ConfigError(f"--output {options.output}: {error.strerror}; name a file that can be written") from None
        print(f"{len(runs)} runs compared in {options.output.resolve()}")
    return 0
