"""Progress of a run on the console: a live table with a progress bar, or one plain line per iteration. Invariant: on a
terminal other output scrolls above the table; anywhere else (CI, `ray job submit` logs, a file) every iteration is
exactly one line without control codes, followed by its warnings if there are any."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from monitor.alarms import alarms
from trainer.metrics import PHASES, IterationMetrics, flatten

logger = logging.getLogger("retrospect.console")  # log.txt keeps what was shown, line by line

WIDTH = 120  # characters of a plain line; all numbers are in metrics.jsonl and TensorBoard
COLUMNS = 6  # newest iterations shown after the first one; fewer if the terminal has less than 100 columns
CAPTION, COLUMN = 22, 10  # most characters of a caption and of an iteration's column
ETA_WINDOW = 10  # iterations from which the remaining time is estimated
ROOMY = 30  # with at least so many terminal lines, empty lines separate the groups, and `MORE` is shown


class _Row(NamedTuple):
    caption: str  # in the table
    short: str  # in the plain line; empty: not shown there
    name: str  # of the metric
    show: Callable[[float], str]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f}"


def byte_count(value: float) -> str:
    """Bytes with a binary unit: 2560 -> "2.5 KiB"."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def _real(value: float) -> str:
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-2 else f"{value:.1e}"


def _gibibytes(value: float) -> str:
    return f"{value:.1f} GiB"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


GROUPS = (
    (
        _Row("success from root", "root", "root_success", _share),
        _Row("success, replayed", "replayed", "replay_success", _share),
        _Row("success, held out", "held out", "evaluation_success", _share),
        _Row("problems ever solved", "ever solved", "covered", _share),
        _Row("reward, held out", "", "evaluation_reward", _real),
        _Row("reward", "reward", "reward", _real),
        _Row("groups of one reward", "", "equal_groups", _share),
        _Row("replayed starts", "", "replay_share", _share),
    ),
    (
        _Row("KL (nats/token)", "kl", "kl", _real),
        _Row("entropy (nats/token)", "entropy", "entropy", _real),
        _Row("explained variance", "", "explained_variance", _real),
        _Row("gap to vLLM (nats)", "", "behaviour_gap_mean", _real),
        _Row("effective samples", "", "effective_samples", _share),
    ),
    (
        _Row("tokens per response", "length", "response_length", _count),
        _Row("truncated", "truncated", "truncated_share", _share),
        _Row("store, states", "", "store_states", _count),
        _Row("learner's memory", "", "learner_memory", _gibibytes),
        _Row("tokens/s", "tokens/s", "tokens_per_second", _count),
        _Row("whole iteration", "", "total_seconds", _seconds),
    ),
)


MORE = (
    _Row("ever solved from root", "", "covered_from_root", _share),
    _Row("problems visited", "", "visited", _share),
    _Row("visits of each", "", "visits", "{:.1f}".format),
)
"""What a tall terminal shows, too."""


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 125 -> "2:05", 3725 -> "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def plain_line(metrics: IterationMetrics, iterations: int, remaining: str) -> str:
    """The iteration in one line: what went wrong, and the first of the other numbers, as many as fit into WIDTH."""
    head = f"iteration {metrics.iteration}/{iterations}:"
    tail = f"{_failures(metrics)} | {metrics.seconds.total:.1f} s" + (f", {remaining} left" if remaining else "")
    line = ""
    for part in _numbers(metrics):
        if len(head) + len(line) + len(part) + len(tail) <= WIDTH:
            line += part
    return f"{head}{line.removeprefix(',')}{tail}"


def _numbers(metrics: IterationMetrics) -> Iterator[str]:
    """The parts of a plain line, without numbers that are NaN."""
    values = flatten(metrics)
    for row in [row for group in GROUPS for row in group if row.short and math.isfinite(values[row.name])]:
        part = f", {row.short} {row.show(values[row.name])}"
        if row.name == "evaluation_success" and abs(metrics.evaluation_reward - metrics.evaluation_success) > 1e-3:
            part += f" (reward {_real(metrics.evaluation_reward)})"
        yield part
    yield from (f", {label} {_share(value)}" for label, value in _sources(metrics).items())


def _sources(metrics: IterationMetrics) -> dict[str, float]:
    """Success from the root by data set of a mixture."""
    success = {label: source.root_success for label, source in metrics.sources.items()}
    return {label: value for label, value in success.items() if math.isfinite(value)}


def _failures(metrics: IterationMetrics) -> str:
    """What went wrong: ", 1 restarts of rollout actors, 2 skipped steps"."""
    counts = (
        (metrics.restarts, "restarts of rollout actors"),
        (metrics.skipped_steps, "skipped steps"),
        (metrics.judge_failures, "responses without a verdict"),
    )
    idle = ", policy not updated" if not_updated(metrics) else ""
    why = ": equal rewards" if idle and 1 in (metrics.equal_groups, metrics.reward_deviation == 0) else ""
    return idle + why + "".join(f", {count} {caption}" for count, caption in counts if count)


def not_updated(metrics: IterationMetrics) -> bool:
    """Whether nothing of the iteration was to teach the policy: all rewards are equal, or the critic warms up."""
    return not (metrics.policy_steps or metrics.skipped_steps)


class RunConsole:
    """Shows a run on `stream` (by default stdout): on a terminal a live table whose rows are metrics and whose columns
    are the first iteration and the newest ones; else one flushed line per iteration. `earlier`: iterations of the run
    before it was resumed; `hints`: header lines, such as the dashboard's address."""

    def __init__(
        self,
        run: str,
        iterations: int,
        *,
        earlier: Sequence[IterationMetrics] = (),
        hints: Sequence[str] = (),
        stream: TextIO | None = None,
    ) -> None:
        self._iterations, self._shown, self._stream = iterations, list(earlier), stream or sys.stdout
        self._screen = Console(file=self._stream)
        self._doing, self._begun = "starting", time.monotonic()
        self.live: Live | None = None
        if self._stream.isatty():
            self._header = [Text(f"Retrospect · {run}", style="bold")]
            self._header += [Text(hint, style="dim", overflow="fold") for hint in hints]
            # Rich moves everything else that is printed above the table; what libraries write to stderr goes to the
            # log.
            self.live = Live(
                console=self._screen, refresh_per_second=2, get_renderable=self.render, redirect_stderr=False
            )
            self.live.start()
            return
        resumed = f", resumed after iteration {self._done}" if earlier else ""
        for line in (f"run {run}: {iterations} iterations{resumed}", *hints):
            self.note(line)

    def write(self, metrics: IterationMetrics) -> None:
        """Show one iteration, and its warnings."""
        self._shown.append(metrics)
        line = plain_line(metrics, self._iterations, self._remaining())
        if self.live is None:
            self._print(line)
        else:
            logger.info(line)
            self.live.refresh()
        for alarm in alarms(self._shown):
            self._print(f"warning: {alarm.text}", logging.WARNING)

    def note(self, text: str) -> None:
        """Show a line that stays (above the table): a checkpoint, a restart, an evaluation."""
        self._print(" ".join(text.splitlines()))

    def phase(self, text: str) -> None:
        """Name the current phase ("generate") next to the progress bar."""
        self._doing = text

    def close(self) -> None:
        """Stop drawing; the last table stays on the screen."""
        self._doing = "finished" if self._done >= self._iterations else "stopped"
        if self.live is not None:
            self.live.stop()

    @property
    def _done(self) -> int:
        return self._shown[-1].iteration if self._shown else 0

    def _remaining(self) -> str:
        """ "2:05", "1:02:05"; empty before the first iteration."""
        times = [metrics.seconds.total for metrics in self._shown[-ETA_WINDOW:]]
        return duration((self._iterations - self._done) * sum(times) / len(times)) if times else ""

    def _print(self, line: str, level: int = logging.INFO) -> None:
        logger.log(level, line)
        if self.live is None:
            print(line, file=self._stream, flush=True)
        else:
            self._screen.print(Text(line, style="dim"))

    def render(self) -> RenderableType:
        """The current header, progress bar and table: 21 lines, so that they fit a small terminal."""
        remaining = self._remaining()
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(f"iteration {self._done}/{self._iterations}"),
            ProgressBar(total=self._iterations, completed=self._done, width=30),
            Text(f"{duration(time.monotonic() - self._begun)} gone"),
            Text(f"{remaining} left" if remaining else ""),
            Text(self._doing, style="cyan"),
        )
        if not self._shown:
            return Group(*self._header, bar)
        columns = max(1, min(COLUMNS, (self._screen.width - CAPTION) // COLUMN - 1))
        shown = [*self._shown[:-columns][:1], *self._shown[-columns:]]
        table = metrics_table(shown, roomy=self._screen.height >= ROOMY)
        return Group(*self._header, bar, table, phases_line(shown[-1]))


def metrics_table(shown: Sequence[IterationMetrics], *, roomy: bool) -> Table:
    """Rows: metrics in groups, separated and with `MORE` if `roomy`; columns: the iterations. A dash stands for NaN."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("iteration", no_wrap=True)
    for metrics in shown:
        style = "bold" if metrics is shown[-1] else ""
        table.add_column(str(metrics.iteration), justify="right", no_wrap=True, style=style)
    values = [flatten(metrics) for metrics in shown]
    for group in (*GROUPS, MORE) if roomy else GROUPS:
        if roomy and group is not GROUPS[0]:
            table.add_row("")
        for row in group:
            numbers = [column[row.name] for column in values]
            table.add_row(row.caption, *(row.show(number) if math.isfinite(number) else "-" for number in numbers))
    return table


def phases_line(metrics: IterationMetrics) -> Text:
    """Seconds of the newest iteration by phase: "seconds: generate 3.5, reward 0.2, ..."."""
    spent = [(name, float(getattr(metrics.seconds, name))) for name in (*PHASES, "other")]
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in spent if value >= 0.05)
    of_sources = "".join(f", {label} {_share(value)}" for label, value in _sources(metrics).items())
    return Text(f"seconds: {seconds}{of_sources}{_failures(metrics)}", overflow="fold")
