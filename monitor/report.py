"""What a finished (or stopped, or running) run looks like: a short summary and a picture of the curves.

Called by the loop at the end and by `launch.py report`; reads the run's files, never its actors. Invariant: works on any prefix of a
run, one iteration included, and on a resumed one.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import CheckpointError
from core.run_directory import RunDirectory
from monitor.console import byte_count, duration
from monitor.sinks import read_metrics
from trainer.metrics import PHASES, IterationMetrics, flatten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#d55e00", "#009e73", "#b2182b", "#777777"  # told apart by the colour-blind
PHASE_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#999999", "#444444")


def largest_gap(metrics: Sequence[IterationMetrics]) -> float:
    """Of the broadcasts that the engines lived to answer [nats]; NaN if there was none."""
    return max((m.logprob_gap for m in metrics if not math.isnan(m.logprob_gap)), default=math.nan)


@dataclass(frozen=True, slots=True)
class Change:
    """A number at the start and at the end of a run."""

    caption: str
    before: float
    after: float


def load(run: RunDirectory) -> list[IterationMetrics]:
    """The run's iterations. Raises CheckpointError when there are none yet."""
    found = read_metrics(run.metrics) if run.metrics.exists() else []
    if not found:
        raise CheckpointError(
            f"{run.path} has no finished iteration yet (no metrics in {run.metrics.name}); train it first"
        )
    return found


def success_before(run: RunDirectory) -> float:
    """Success on the held-out problems before training (iteration 0 of evaluations.jsonl); NaN if it was not measured."""
    lines = run.evaluations.read_text(encoding="utf-8").splitlines() if run.evaluations.exists() else []
    for line in lines:
        with suppress(json.JSONDecodeError):  # a torn line: the process was killed in the write
            record = json.loads(line)
            if record["iteration"] == 0:
                return float(record["success"])
    return math.nan


def changes(metrics: Sequence[IterationMetrics], before: float = math.nan) -> list[Change]:
    """Held-out, root and replayed success: first against last, noisy ones as means over a tenth of the run (at least 1).

    `before`: success on the held-out problems before training.
    """
    window = max(1, len(metrics) // 10)

    def ends(caption: str, name: str, width: int) -> Change | None:
        series = [value for m in metrics if math.isfinite(value := flatten(m)[name])]
        if name == "evaluation_success" and math.isfinite(before):
            series.insert(0, before)
        if not series:
            return None
        return Change(caption, _mean(series[:width]), _mean(series[-width:]))

    rows = (
        ends("success, held-out problems", "evaluation_success", 1),
        ends("success, training, from root", "root_success", window),
        ends("success, training, replayed", "replay_success", window),
        ends("reward", "reward", window),
    )
    return [row for row in rows if row is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summary(run: RunDirectory, metrics: Sequence[IterationMetrics], *, iterations: int | None = None) -> str:
    """The text at the end of a run: what changed, what it cost, where the results are, what to type next.

    `iterations` is the number asked for; a run that has fewer is said to be unfinished.
    """
    last = metrics[-1]
    seconds = sum(m.seconds.total for m in metrics)
    unfinished = iterations is not None and last.iteration < iterations
    head = f"Run {run.name}: {last.iteration} iterations" + (f" of {iterations} (unfinished)" if unfinished else "")
    lines = [head, ""]
    for change in changes(metrics, success_before(run)):
        lines.append(f"  {change.caption:<30} {change.before:6.3f} -> {change.after:6.3f}  ({_signed(change)})")
    replayed = _mean([m.replay_share for m in metrics])
    lines += [
        "",
        f"  {duration(seconds)} of training, {last.total_tokens:,} tokens generated "
        f"({_mean([m.tokens_per_second for m in metrics]):,.0f} tokens/s)",
        f"  {100 * replayed:.0f} % of starts replayed; store: {last.store_states:,} states, {byte_count(last.store_bytes)}",
        f"  largest log-prob gap to vLLM after a broadcast: {largest_gap(metrics):.1e} nats",
        "",
        f"  results   {run.path}",
        f"  curves    {run.curves}",
        f"  numbers   {run.metrics}",
        f"  policy    {run.policy}",
        f"  watch     tensorboard --logdir {run.tensorboard}",
        f"  evaluate  python launch.py evaluate {run.path}",
    ]
    if unfinished:
        lines.append(f"  resume    python launch.py train --resume {run.path}")
    return "\n".join(lines)


def _signed(change: Change) -> str:
    return f"{change.after - change.before:+.3f}"


def curves(metrics: Sequence[IterationMetrics], path: Path, *, title: str = "", before: float = math.nan) -> Path:
    """Draw the run's curves into a PNG of six panels and return its path.

    `before`: success on the held-out problems before training (`success_before`), drawn at iteration 0.
    """
    import matplotlib as mpl  # a second to import: only when a picture is drawn
    from matplotlib.figure import Figure

    panels: tuple[Callable[[Axes, Sequence[IterationMetrics]], None], ...] = (
        _draw_success,
        _draw_reward,
        _draw_policy,
        _draw_critic,
        _draw_phases,
        _draw_store,
    )
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
    }
    with mpl.rc_context(style):
        first = 0 if math.isfinite(before) else metrics[0].iteration
        figure = Figure(figsize=(15, 8.5), dpi=110, layout="constrained")  # no pyplot: no global state, no display
        for axes, draw in zip(figure.subplots(2, 3).flat, panels, strict=True):
            draw(axes, metrics)
            if draw is _draw_success and math.isfinite(before):
                x, y = _series(metrics, "evaluation_success")
                axes.plot([0, *x[:1]], [before, *y[:1]], color=GREEN, marker="o", markersize=6, linewidth=1.8)
            axes.set_xlabel("iteration")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_xlim(first - 0.5, metrics[-1].iteration + 0.5)
        if title:
            figure.suptitle(title, fontsize=13, fontweight="bold")
        temporary = path.with_name(f".{path.name}.tmp")
        figure.savefig(temporary, format="png")
    temporary.replace(path)
    return path


def _series(metrics: Sequence[IterationMetrics], name: str) -> tuple[list[int], list[float]]:
    """Iterations and values where there is a number: gaps are bridged, not broken."""
    pairs = [(m.iteration, value) for m in metrics if math.isfinite(value := flatten(m)[name])]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _line(
    axes: "Axes",
    metrics: Sequence[IterationMetrics],
    name: str,
    label: str,
    colour: str,
    marker: str = "",
    alpha: float = 1.0,
) -> None:
    x, y = _series(metrics, name)
    if x:
        single = "o" if len(x) == 1 else ""  # a lone point has no line
        axes.plot(x, y, color=colour, label=label, marker=marker or single, markersize=6, linewidth=1.8, alpha=alpha)


def _from_zero(axes: "Axes") -> None:
    """Let the axis begin at 0 (below it if numbers are: estimated KL may be) and leave room above the lines."""
    low, high = axes.dataLim.intervaly
    if high > low or high > 0:
        axes.set_ylim(min(0.0, 1.1 * float(low)), 1.1 * float(high))


def _draw_success(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    _line(axes, metrics, "root_success", "training, from root", BLUE)
    _line(axes, metrics, "replay_success", "training, replayed states", ORANGE)
    _line(axes, metrics, "evaluation_success", "held out, from root", GREEN, "o")
    axes.set_title("Success")
    axes.set_ylabel("share of responses that are correct")
    axes.set_ylim(-0.02, 1.02)
    axes.legend(loc="best", frameon=True, framealpha=0.85)


def _draw_reward(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    _line(axes, metrics, "reward", "mean reward", BLUE)
    _line(axes, metrics, "replay_share", "replayed starts", ORANGE)
    _line(axes, metrics, "erroneous_share", "of these already wrong", RED)
    _line(axes, metrics, "truncated_share", "truncated responses", GREY)
    axes.set_title("Reward and starts")
    axes.set_ylabel("reward; shares in [0, 1]")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, bottom + 1.35 * (top - bottom))  # room for the legend
    axes.legend(loc="upper center", ncols=2, fontsize=8.5, frameon=False)


def _draw_policy(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    _line(axes, metrics, "entropy", "entropy", BLUE)
    axes.set_title("Policy: entropy and PPO KL")
    axes.set_ylabel("entropy (nats per token)", color=BLUE)
    _from_zero(axes)
    right = axes.twinx()
    _line(right, metrics, "kl", "PPO KL", ORANGE, alpha=0.7)
    right.set_ylabel("PPO KL of the update (nats per token)", color=ORANGE)
    _from_zero(right)
    right.grid(visible=False)
    right.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def _draw_critic(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    _line(axes, metrics, "explained_variance", "explained variance", BLUE)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_title("Critic")
    axes.set_ylabel("explained variance of the return")
    _, values = _series(metrics, "explained_variance")
    axes.set_ylim(max(-1.0, min([-0.05, *values])), 1.02)  # far below zero only says "useless"


def _draw_phases(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    names = (*PHASES, "other")
    base = [0.0] * len(metrics)
    for name, colour in zip(names, PHASE_COLOURS, strict=True):
        heights = [float(getattr(m.seconds, name)) for m in metrics]
        axes.bar([m.iteration for m in metrics], heights, bottom=base, color=colour, width=1.0, label=name)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axes.set_title("Time by phase")
    axes.set_ylabel("seconds per iteration")
    handles, labels = axes.get_legend_handles_labels()
    axes.set_ylim(0, max(base) * 1.3)
    axes.legend(
        handles, labels, loc="upper center", ncols=4, fontsize=8.5, frameon=False, handlelength=1.2, columnspacing=1.2
    )


def _draw_store(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    _line(axes, metrics, "store_states", "states", BLUE)
    axes.set_title("Replay store and speed")
    axes.set_ylabel("states in the store", color=BLUE)
    _from_zero(axes)
    right = axes.twinx()
    _line(right, metrics, "tokens_per_second", "tokens/s", ORANGE)
    right.set_ylabel("generated tokens per second", color=ORANGE)
    _from_zero(right)
    right.grid(visible=False)
