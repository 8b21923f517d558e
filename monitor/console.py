"""What a person sees while a run goes: a live table with a progress bar, or one plain line per iteration.

Opened by the loop with `open_console`. Invariant: on a terminal nothing else is drawn over the table (other output scrolls
above it); anywhere else (CI, `ray job submit` logs, a file) every iteration is exactly one line without control codes.
"""

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainer.metrics import PHASES, IterationMetrics, flatten

logger = logging.getLogger("retrospect.console")  # log.txt keeps what was shown, line by line

COLUMNS = 6
"""Newest iterations shown, fewer where the terminal has less than 100 columns; the first one comes before them."""
CAPTION, COLUMN = 22, 10  # characters of the captions and of one iteration, at most
ETA_WINDOW = 10  # iterations that the remaining time is estimated from


@dataclass(frozen=True, slots=True)
class _Row:
    caption: str
    name: str  # of the metric
    show: Callable[[float], str]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value / 1e3:.1f} k" if value >= 1e4 else f"{value:.0f}"


def byte_count(value: float) -> str:
    """Bytes with a binary unit: 2560 -> "2.5 KiB"."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def _real(value: float) -> str:
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-2 else f"{value:.1e}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


ROWS: tuple[tuple[_Row, ...], ...] = (
    (
        _Row("success from root", "root_success", _share),
        _Row("success, replayed", "replay_success", _share),
        _Row("success, held out", "evaluation_success", _share),
        _Row("reward", "reward", _real),
        _Row("replayed starts", "replay_share", _share),
    ),
    (
        _Row("KL (nats/token)", "kl", _real),
        _Row("entropy (nats/token)", "entropy", _real),
        _Row("explained variance", "explained_variance", _real),
        _Row("log-prob gap (nats)", "logprob_gap", _real),
    ),
    (
        _Row("tokens/s", "tokens_per_second", _count),
        _Row("truncated", "truncated_share", _share),
        _Row("store, states", "store_states", _count),
        _Row("store, size", "store_bytes", byte_count),
        _Row("whole iteration", "total_seconds", _seconds),
    ),
)
ROOMY = 30  # terminal lines from which the groups are set apart by empty lines


class RunConsole(Protocol):
    """A `MetricSink` for a person, with notes between the iterations."""

    def write(self, metrics: IterationMetrics) -> None:
        """Show one iteration."""

    def note(self, text: str) -> None:
        """Show a line that stays: a checkpoint, a restart, an evaluation."""

    def phase(self, text: str) -> None:
        """Say what is going on now ("generate"); nothing on a plain console."""

    def close(self) -> None:
        """Leave the last table standing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_console(
    run: str,
    iterations: int,
    *,
    earlier: Sequence[IterationMetrics] = (),
    hints: Sequence[str] = (),
    stream: TextIO | None = None,
) -> RunConsole:
    """The console for `stream` (stdout by default): live on a terminal, else plain.

    `earlier` are the iterations that a resumed run has behind it (`sinks.read_metrics`); `hints` are header lines, such as
    the dashboard's address and the TensorBoard command.
    """
    out = stream or sys.stdout
    if out.isatty():
        return LiveConsole(run, iterations, earlier=earlier, hints=hints, console=Console(file=stream))
    return PlainConsole(run, iterations, earlier=earlier, hints=hints, stream=out)


class _Progress:
    """Iterations behind and ahead, with the times that the remaining time is estimated from."""

    def __init__(self, iterations: int, earlier: Sequence[IterationMetrics]) -> None:
        self.iterations = iterations
        self.done = earlier[-1].iteration if earlier else 0
        self._times: deque[float] = deque((m.seconds.total for m in earlier[-ETA_WINDOW:]), maxlen=ETA_WINDOW)

    def advance(self, metrics: IterationMetrics) -> None:
        """One more iteration is done."""
        self.done = metrics.iteration
        self._times.append(metrics.seconds.total)

    def remaining(self) -> str:
        """ "2:05", "1:02:05"; empty before the first iteration."""
        if not self._times:
            return ""
        left = (self.iterations - self.done) * sum(self._times) / len(self._times)
        return duration(left)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 125 -> "2:05", 3725 -> "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class PlainConsole:
    """One line per iteration, flushed, for logs."""

    def __init__(
        self, run: str, iterations: int, *, earlier: Sequence[IterationMetrics], hints: Sequence[str], stream: TextIO
    ) -> None:
        self._progress = _Progress(iterations, earlier)
        self._stream = stream
        resumed = f", resumed after iteration {self._progress.done}" if earlier else ""
        for line in (f"run {run}: {iterations} iterations{resumed}", *hints):
            self.note(line)

    def write(self, metrics: IterationMetrics) -> None:
        """Print the iteration's line."""
        self._progress.advance(metrics)
        self.note(plain_line(metrics, self._progress.iterations, self._progress.remaining()))

    def note(self, text: str) -> None:
        """Print the text as one line."""
        line = " ".join(text.split())
        logger.info(line)
        print(line, file=self._stream, flush=True)

    def phase(self, text: str) -> None:
        """Say nothing: a log wants results."""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def plain_line(metrics: IterationMetrics, iterations: int, remaining: str) -> str:
    """The iteration in one line, about 200 characters; numbers that are absent are left out."""
    seconds = metrics.seconds
    parts = [
        ("root", metrics.root_success, _share),
        ("replayed", metrics.replay_success, _share),
        ("held out", metrics.evaluation_success, _share),
        ("reward", metrics.reward, _real),
        ("replay share", metrics.replay_share, _share),
        ("kl", metrics.kl, _real),
        ("entropy", metrics.entropy, _real),
        ("explained variance", metrics.explained_variance, _real),
        ("tokens/s", metrics.tokens_per_second, _count),
        ("store", metrics.store_states, _count),
    ]
    shown = ", ".join(f"{caption} {show(value)}" for caption, value, show in parts if math.isfinite(value))
    phases = [(phase, float(getattr(seconds, phase))) for phase in PHASES]
    slowest = ", ".join(f"{phase} {spent:.1f}" for phase, spent in phases if spent >= 0.05)
    left = f", {remaining} left" if remaining else ""
    head = f"iteration {metrics.iteration}/{iterations}: {shown}{_trouble(metrics)}"
    return f"{head} | {seconds.total:.1f} s ({slowest}){left}"


def _trouble(metrics: IterationMetrics) -> str:
    """What should be 0, when it is not: ", 1 restarts of rollout actors, 2 skipped steps"."""
    counts = (
        (metrics.restarts, "restarts of rollout actors"),
        (metrics.skipped_steps, "skipped steps"),
        (metrics.judge_failures, "responses without a verdict"),
    )
    return "".join(f", {count} {caption}" for count, caption in counts if count)


class LiveConsole:
    """A table that is redrawn in place: rows are metrics, columns the first iteration and the newest ones."""

    def __init__(
        self,
        run: str,
        iterations: int,
        *,
        earlier: Sequence[IterationMetrics],
        hints: Sequence[str],
        console: Console,
    ) -> None:
        self._run, self._hints, self._console = run, tuple(hints), console
        self._progress = _Progress(iterations, earlier)
        self._first = earlier[0] if earlier else None
        self._recent: deque[IterationMetrics] = deque(earlier[-COLUMNS:], maxlen=COLUMNS)
        self._doing = "starting"
        self._begun = time.monotonic()
        # Rich sends whatever is printed meanwhile (Ray's worker output too) above the table.
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self.render)
        self._live.start()

    def write(self, metrics: IterationMetrics) -> None:
        """Add the iteration as the newest column."""
        self._first = self._first or metrics
        self._recent.append(metrics)
        self._progress.advance(metrics)
        logger.info(plain_line(metrics, self._progress.iterations, self._progress.remaining()))
        self._live.refresh()

    def note(self, text: str) -> None:
        """Print the line above the table."""
        line = " ".join(text.split())
        logger.info(line)
        self._console.print(Text(line, style="dim"))

    def phase(self, text: str) -> None:
        """Name the phase beside the progress bar."""
        self._doing = text

    def close(self) -> None:
        """Stop redrawing; the last table stays on the screen."""
        self._doing = "finished" if self._progress.done >= self._progress.iterations else "stopped"
        self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def render(self) -> RenderableType:
        """Header, progress bar and table as they are now; 21 lines, so that a small terminal cuts nothing off."""
        header = Text(f"Retrospect · {self._run}", style="bold")
        parts: list[RenderableType] = [header, *(Text(hint, style="dim", overflow="fold") for hint in self._hints)]
        room = max(1, min(COLUMNS, (self._console.width - CAPTION) // COLUMN - 1))
        shown = [*self._recent][-room:]
        if self._first is not None and shown[0].iteration != self._first.iteration:
            shown = [self._first, *shown]
        parts.append(self._bar())
        if shown:
            parts += [metrics_table(shown, roomy=self._console.height >= ROOMY), phases_line(shown[-1])]
        return Group(*parts)

    def _bar(self) -> RenderableType:
        progress = self._progress
        line = Table.grid(padding=(0, 1))
        remaining = progress.remaining()
        line.add_row(
            Text(f"iteration {progress.done}/{progress.iterations}"),
            ProgressBar(total=progress.iterations, completed=progress.done, width=30),
            Text(f"{duration(time.monotonic() - self._begun)} gone"),
            Text(f"{remaining} left" if remaining else ""),
            Text(self._doing, style="cyan"),
        )
        return line


def metrics_table(shown: Sequence[IterationMetrics], *, roomy: bool) -> Table:
    """Rows: metrics in groups (apart if `roomy`); columns: the given iterations. A dash where there is no number.

    COLUMNS + 1 iterations fit into 100 characters.
    """
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("iteration", no_wrap=True)
    for position, metrics in enumerate(shown):
        newest = position == len(shown) - 1
        table.add_column(str(metrics.iteration), justify="right", no_wrap=True, style="bold" if newest else "")
    values = [flatten(metrics) for metrics in shown]
    for position, group in enumerate(ROWS):
        if position and roomy:
            table.add_row("")
        for row in group:
            numbers = [column[row.name] for column in values]
            table.add_row(row.caption, *(row.show(number) if math.isfinite(number) else "-" for number in numbers))
    return table


def phases_line(metrics: IterationMetrics) -> Text:
    """Seconds of the newest iteration by phase: "seconds: generate 3.5, reward 0.2, ..."."""
    spent = [(phase, float(getattr(metrics.seconds, phase))) for phase in (*PHASES, "other")]
    shown = ", ".join(f"{phase} {value:.1f}" for phase, value in spent if value >= 0.05)
    return Text(f"seconds: {shown}{_trouble(metrics)}", overflow="fold")
