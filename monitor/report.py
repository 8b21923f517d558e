"""Reports on a finished, stopped or running run: a short summary, a picture of the curves, and the page of
`monitor/page.py`.

It reads the run's files, never its actors.
"""

import math
from statistics import fmean

from monitor.charts import save_picture
from monitor.console import byte_count, duration
from monitor.page import curves, phases, write_page
from monitor.run_files import RunFiles, series


def draw_report(item: RunFiles) -> None:
    """Write curves.png and report.html."""
    draw_curves(item)
    write_page([item], item.run.report)


def draw_curves(item: RunFiles) -> None:
    """Write curves.png: all charts of the page's first two sections."""
    save_picture(item.run.curves, item.run.name, [*curves({item.run.name: [item]}), phases(item)])


def changes(item: RunFiles) -> dict[str, tuple[float, float]]:
    """Held-out, root and replayed success and reward, each at the start and at the end of the run.

    Training numbers are means over a tenth of the run.
    """
    window = max(1, len(item.metrics) // 10)
    found = {}
    for caption, name, width in (
        ("success, held-out problems", "evaluation_success", 1),
        ("success, training, from root", "root_success", window),
        ("success, training, replayed", "replay_success", window),
        ("reward", "reward", window),
    ):
        if values := [*series(item, name).values()]:
            found[caption] = fmean(values[:width]), fmean(values[-width:])
    return found


def summary(item: RunFiles) -> str:
    """The summary of a run: what changed, what it cost, where the results are, and the next commands."""
    run, metrics, iterations = item.run, item.metrics, item.config.run.iterations
    last, unfinished = metrics[-1], metrics[-1].iteration < iterations
    head = f"Run {run.name}: {last.iteration} iterations" + (f" of {iterations} (unfinished)" if unfinished else "")
    lines = [head, ""]
    for caption, (first, final) in changes(item).items():
        lines.append(f"  {caption:<30} {first:6.3f} -> {final:6.3f}  ({final - first:+.3f})")
    gap = max((m.logprob_gap for m in metrics if not math.isnan(m.logprob_gap)), default=math.nan)
    lines += [
        "",
        f"  {duration(sum(m.seconds.total for m in metrics))} of training, {last.total_tokens:,} tokens generated "
        f"({fmean([m.tokens_per_second for m in metrics]):,.0f} tokens/s)",
        f"  {100 * fmean([m.replay_share for m in metrics]):.0f} % of starts replayed; store: {last.store_states:,} "
        "states, "
        f"{byte_count(last.store_bytes)}",
        f"  engines and learner differ by at most {gap:.1e} nats per token (mean over the probe after a broadcast)",
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
