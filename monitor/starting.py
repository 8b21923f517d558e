"""The start of a run on the console: what is ready, and the remaining time, which is that of the newest earlier start
below the same root (startup.json in its run), or a typical one."""

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from core.run_directory import RunDirectory, write_atomically
from monitor.console import duration

HEARTBEAT = 30.0  # seconds between two lines where there is no terminal
TYPICAL = 25.0  # seconds of a start of the demo on two cores, until an own start is known
logger = logging.getLogger("retrospect.start")


class Starting:
    """Shows which of the `parts` are ready until all are, or until `close`. Several threads may call `ready`."""

    def __init__(self, run: RunDirectory, parts: Sequence[str], stream: TextIO | None = None) -> None:
        self._file, self._waiting, self._begun = run.startup, list(parts), time.monotonic()
        self._expected = last_start(run)
        self._done, self._lock = threading.Event(), threading.Lock()
        out = stream or sys.stdout
        self._live: Live | None = None
        if out.isatty():
            self._live = Live(
                console=Console(file=out),
                get_renderable=self.render,
                refresh_per_second=2,
                transient=True,
                redirect_stderr=False,  # see `libraries_in_log`
            )
            self._live.start()
        else:
            self._print = lambda line: print(line, file=out, flush=True)
            self._print(f"starting: {self._state()}")
            threading.Thread(target=self._beat, daemon=True).start()

    def ready(self, part: str) -> None:
        """A part is ready."""
        with self._lock:
            self._waiting.remove(part)
            logger.info("%s ready after %.1f s", part, self._elapsed)
            if self._live is None:
                self._print(f"{part} ready after {duration(self._elapsed)}{self._state(', waiting for ')}")
            if not self._waiting:
                write_atomically(self._file, json.dumps({"seconds": round(self._elapsed, 1)}) + "\n")
                self.close()

    def close(self) -> None:
        """Stop showing."""
        self._done.set()
        if self._live is not None:
            self._live.stop()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _state(self, before: str = "") -> str:
        """What is not ready, and about how long it takes; empty if all is ready."""
        left = self._expected - self._elapsed
        about = f" (about {duration(left)} left)" if left > 0 else ""
        return f"{before}{' and '.join(self._waiting)}{about}" if self._waiting else ""

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT):
            with self._lock:
                if self._waiting:
                    self._print(f"starting for {duration(self._elapsed)}: waiting for {self._state()}")

    def render(self) -> Table:
        """The bar, which pulses when the start takes longer than expected."""
        line = Table.grid(padding=(0, 1))
        late = self._elapsed > self._expected
        bar = ProgressBar(total=self._expected, completed=self._elapsed, width=30, pulse=late)
        line.add_row("starting", bar, f"{duration(self._elapsed)} gone", self._state())
        return line


def last_start(run: RunDirectory) -> float:
    """Seconds that the newest other start below the run's root took; `TYPICAL` if there is none."""
    earlier = sorted(run.path.parent.glob("*/startup.json"), key=lambda path: path.stat().st_mtime)
    with suppress(IndexError, OSError, ValueError, TypeError, KeyError):
        return float(json.loads(earlier[-1].read_text(encoding="utf-8"))["seconds"])
    return TYPICAL


@contextmanager
def libraries_in_log(log: Path) -> Iterator[None]:
    """Inside the block, what libraries write to sys.stderr and DeepSpeed's lines go to the log. Standard output stays,
    so that a debugger works. What we tell a person on stderr goes to `sys.__stderr__`."""
    deepspeed = logging.getLogger("DeepSpeed")
    with log.open("a", encoding="utf-8", buffering=1) as file, redirect_stderr(file):
        handler = logging.StreamHandler(file)

        def _to_log(record: logging.LogRecord) -> bool:
            handler.handle(record)
            return False

        deepspeed.addFilter(_to_log)
        try:
            yield
        finally:
            deepspeed.removeFilter(_to_log)
