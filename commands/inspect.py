"""`launch.py inspect`: shows a run's replay store in a browser, live, on loopback only, from the run's files."""

import threading
from argparse import Namespace
from contextlib import closing

from core.run_directory import RunDirectory
from monitor.inspector import Inspector


def inspect_run(options: Namespace) -> int:
    """Serve the page until Ctrl-C. Raises StoreError when the run has no store, ConfigError when the port is taken."""
    run = RunDirectory.open(options.run)
    with closing(Inspector(run, options.port)) as inspector:
        print(f"replay store of {run.name}: {inspector.url} (Ctrl-C ends it)", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()
    return 0
