"""Reports on a finished, stopped or running run: a short summary, a picture of the curves, and the page of `monitor/page.py`.

Called by `commands/train.py` at the end and by `launch.py report`. It reads the run's files, never its actors.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from core.errors import CheckpointError
from core.load import load_config
from core.run_directory import RunDirectory, read_jsonl
from monitor.console import byte_count, duration
from monitor.page import write_page
from trainer.metrics import PHASES, IterationMetrics, flatten, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#d55e00", "#009e73", "#b2182b", "#777777"  # told apart by the colour-blind
PHASE_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#999999", "#444444")


def print_summary(run: RunDirectory) -> None:
    """Print the summary of a run. Raises CheckpointError when no iteration is finished yet."""
    print(summary(run, finished(run), load_config(run.config).run.iterations))


def draw_report(run: RunDirectory) -> None:
    """Write curves.png and report.html. Raises CheckpointError when no iteration is finished yet."""
    draw_curves(run)
    write_page([run], run.report)


def finished(run: RunDirectory) -> list[IterationMetrics]:
    """The finished iterations of a run. Raises CheckpointError when there is none yet."""
    metrics = read_metrics(run.metrics)
    if not metrics:
        raise CheckpointError(
            f"{run.path} has no finished iteration yet (no metrics in {run.metrics.name}); train it first"
        )
    return metrics


def success_before(run: RunDirectory) -> float:
    """Success on the held-out problems before training (iteration 0 of evaluations.jsonl); NaN if it was not measured."""
    return next((float(line["success"]) for line in read_jsonl(run.evaluations) if line["iteration"] == 0), math.nan)


def changes(metrics: Sequence[IterationMetrics], before: float = math.nan) -> dict[str, tuple[float, float]]:
    """Held-out, root and replayed success and reward, each at the start and at the end of the run.

    Training numbers are means over a tenth of the run. `before`: success on the held-out problems before training.
    """
    window = max(1, len(metrics) // 10)
    found = {}
    for caption, name, width in (
        ("success, held-out problems", "evaluation_success", 1),
        ("success, training, from root", "root_success", window),
        ("success, training, replayed", "replay_success", window),
        ("reward", "reward", window),
    ):
        _, series = _series(metrics, name)
        if name == "evaluation_success" and math.isfinite(before):
            series.insert(0, before)
        if series:
            found[caption] = fmean(series[:width]), fmean(series[-width:])
    return found


def summary(run: RunDirectory, metrics: Sequence[IterationMetrics], iterations: int) -> str:
    """The summary of a run of `iterations` planned ones: what changed, what it cost, where the results are, and the next commands."""
    last, unfinished = metrics[-1], metrics[-1].iteration < iterations
    head = f"Run {run.name}: {last.iteration} iterations" + (f" of {iterations} (unfinished)" if unfinished else "")
    lines = [head, ""]
    for caption, (first, final) in changes(metrics, success_before(run)).items():
        lines.append(f"  {caption:<30} {first:6.3f} -> {final:6.3f}  ({final - first:+.3f})")
    gap = max((m.logprob_gap for m in metrics if not math.isnan(m.logprob_gap)), default=math.nan)
    lines += [
        "",
        f"  {duration(sum(m.seconds.total for m in metrics))} of training, {last.total_tokens:,} tokens generated "
        f"({fmean([m.tokens_per_second for m in metrics]):,.0f} tokens/s)",
        f"  {100 * fmean([m.replay_share for m in metrics]):.0f} % of starts replayed; store: {last.store_states:,} states, "
        f"{byte_count(last.store_bytes)}",
        f"  largest log-prob gap to vLLM after a broadcast: {gap:.1e} nats",
        "",
        f"  results   {run.path}",
        f"  report    {run.report}",
        f"  curves    {run.curves}",
        f"  numbers   {run.metrics}",
        f"  policy    {run.policy}",
        f"  watch     tensorboard --logdir {run.tensorboard}",
        f"  evaluate  python launch.py evaluate {run.path}",
    ]
    if unfinished:
        lines.append(f"  resume    python launch.py train --resume {run.path}")
    return "\n".join(lines)


def draw_curves(run: RunDirectory) -> None:
    """Write curves.png: six panels. Raises CheckpointError when no iteration is finished yet."""
    import matplotlib as mpl  # imported late: it takes a second
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    metrics, before = finished(run), success_before(run)
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}
    with mpl.rc_context(style | {"font.size": 10}):
        figure = Figure(figsize=(15, 8.5), dpi=110, layout="constrained")  # no pyplot: no global state, no display
        _draw_panels(list(figure.subplots(2, 3).flat), metrics, before)
        for axes in figure.axes:
            axes.set_xlabel("iteration")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlim((0 if math.isfinite(before) else metrics[0].iteration) - 0.5, metrics[-1].iteration + 0.5)
        figure.suptitle(run.name, fontsize=13, fontweight="bold")
        temporary = run.curves.with_name(f".{run.curves.name}.tmp")
        figure.savefig(temporary, format="png")
    temporary.replace(run.curves)


def _series(metrics: Sequence[IterationMetrics], name: str) -> tuple[list[int], list[float]]:
    """Iterations and values without NaN, so that a curve bridges its gaps."""
    pairs = [(m.iteration, value) for m in metrics if math.isfinite(value := flatten(m)[name])]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _draw_panels(panels: "list[Axes]", metrics: Sequence[IterationMetrics], before: float) -> None:
    success, reward, policy, critic, phases, store = panels
    success.set(title="Success", ylabel="share of responses that are correct", ylim=(-0.02, 1.02))
    _draw(success, metrics, "root_success", "training, from root", BLUE)
    _draw(success, metrics, "replay_success", "training, replayed states", ORANGE)
    _draw(success, metrics, "evaluation_success", "held out, from root", GREEN, "o")
    if math.isfinite(before):
        x, y = _series(metrics, "evaluation_success")
        success.plot([0, *x[:1]], [before, *y[:1]], color=GREEN, marker="o", markersize=6, linewidth=1.8)
    success.legend(loc="best", frameon=True, framealpha=0.85)

    reward.set(title="Reward and starts", ylabel="reward; shares in [0, 1]")
    _draw(reward, metrics, "reward", "mean reward", BLUE)
    _draw(reward, metrics, "replay_share", "replayed starts", ORANGE)
    _draw(reward, metrics, "erroneous_share", "of these already wrong", RED)
    _draw(reward, metrics, "truncated_share", "truncated responses", GREY)
    bottom, top = reward.get_ylim()
    reward.set_ylim(bottom, bottom + 1.35 * (top - bottom))  # room for the legend
    reward.legend(loc="upper center", ncols=2, fontsize=8.5, frameon=False)

    policy.set_title("Policy: entropy and PPO KL")
    _draw_alone(policy, metrics, "entropy", "entropy (nats per token)", BLUE)
    right = policy.twinx()
    _draw_alone(right, metrics, "kl", "PPO KL of the update (nats per token)", ORANGE)
    right.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))

    lowest = min([-0.05, *_series(metrics, "explained_variance")[1]])
    critic.set(title="Critic", ylabel="explained variance of the return", ylim=(max(-1.0, lowest), 1.02))
    _draw(critic, metrics, "explained_variance", "explained variance", BLUE)
    critic.axhline(0, color=GREY, linewidth=0.8)

    _draw_phases(phases, metrics)

    store.set_title("Replay store and speed")
    _draw_alone(store, metrics, "store_states", "states in the store", BLUE)
    _draw_alone(store.twinx(), metrics, "tokens_per_second", "generated tokens per second", ORANGE)


def _draw(
    axes: "Axes", metrics: Sequence[IterationMetrics], name: str, label: str, colour: str, marker: str = ""
) -> None:
    x, y = _series(metrics, name)
    if x:
        marker = marker or ("o" if len(x) == 1 else "")  # a single point has no line
        axes.plot(x, y, color=colour, label=label, marker=marker, markersize=6, linewidth=1.8)


def _draw_alone(axes: "Axes", metrics: Sequence[IterationMetrics], name: str, label: str, colour: str) -> None:
    """Draw the only line of an axis. The axis begins at 0, or below if there are negative values, as an estimated KL may be."""
    _draw(axes, metrics, name, label, colour)
    axes.set_ylabel(label, color=colour)
    axes.grid(visible=colour == BLUE)  # of the left axis
    low, high = axes.dataLim.intervaly
    if high > low or high > 0:
        axes.set_ylim(min(0.0, 1.1 * float(low)), 1.1 * float(high))


def _draw_phases(axes: "Axes", metrics: Sequence[IterationMetrics]) -> None:
    base = [0.0] * len(metrics)
    for name, colour in zip((*PHASES, "other"), PHASE_COLOURS, strict=True):
        heights = [float(getattr(m.seconds, name)) for m in metrics]
        axes.bar([m.iteration for m in metrics], heights, bottom=base, color=colour, width=1.0, label=name)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axes.set_title("Time by phase")
    axes.set_ylabel("seconds per iteration")
    axes.set_ylim(0, max(base) * 1.3)
    axes.legend(loc="upper center", ncols=4, fontsize=8.5, frameon=False, handlelength=1.2, columnspacing=1.2)
