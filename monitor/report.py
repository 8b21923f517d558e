"""Reports on a run, running or not: a short summary, a picture of the curves, and the page of `monitor/page.py`."""

import math
from io import StringIO
from statistics import fmean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core import PROGRAM
from monitor.charts import save_picture
from monitor.console import byte_count, duration, not_updated
from monitor.page import curves, phases, write_page
from monitor.run_files import RunFiles, answers, series
from monitor.store_table import printable
from trainer.evaluation.table import evaluation_table
from trainer.metrics import IterationMetrics

HELD_OUT = "success, held-out problems"
ANSWERS = 3  # held-out problems whose answers before and after the training stand in the summary
ROLES = ("driver", "judge", "engine", "engine gpu", "learner", "learner gpu", "store")  # of processes, by whose memory
WIDTH, MOST_LINES, LONGEST_LINE = 100, 8, 160  # of the summary, and of an answer in it


def draw_report(item: RunFiles) -> None:
    """Write curves.png and report.html."""
    draw_curves(item)
    write_page([item], item.run.report)


def draw_curves(item: RunFiles) -> None:
    """Write curves.png: all charts of the page's first two sections."""
    save_picture(item.run.curves, item.run.name, [*curves({item.run.name: [item]}), phases(item)])


def changes(item: RunFiles) -> dict[str, tuple[float, float]]:
    """Held-out, root and replayed success, problems visited and ever solved, and reward at both ends of a run; of
    training, means over a tenth of it."""
    window = max(1, len(item.metrics) // 10)
    ends = {}
    for caption, name, width in (
        (HELD_OUT, "evaluation_success", 1),
        ("success, training, from root", "root_success", window),
        ("success, training, replayed", "replay_success", window),
        ("training problems visited", "visited", 1),
        ("visits of each", "visits", 1),
        ("training problems ever solved", "covered", 1),
        ("ever solved from the root", "covered_from_root", 1),
        ("reward", "reward", window),
    ):
        values = [*series(item, name).values()]
        if values and not (caption == HELD_OUT and len(values) == 1):  # evaluated once: nobody knows of a change
            ends[caption] = fmean(values[:width]), fmean(values[-width:])
    return ends


def _speed(item: RunFiles) -> float:
    """Generated tokens per second of the iterations in the files, without evaluation."""
    rates = [(m.tokens_per_second, m.seconds.total - m.seconds.evaluate) for m in item.metrics]
    seconds = sum(spent for _, spent in rates)
    return sum(rate * spent for rate, spent in rates) / seconds if seconds else math.nan


def _idle_line(item: RunFiles) -> list[str]:
    """Iterations in which the policy was not updated, besides those of the critic's warm-up."""
    trained = [one for one in item.metrics if one.iteration > item.config.learner.critic_warmup]
    idle = sum(map(not_updated, trained))
    text = f"  the policy was not updated in {idle} of {len(trained)} iterations: all rewards were equal"
    return [text] if idle else []


def _memory_line(last: IterationMetrics) -> list[str]:
    roles = {role: getattr(last, f"{role.replace(' ', '_')}_memory") for role in ROLES}
    shown = [f"{role} {size:.1f}" for role, size in roles.items() if math.isfinite(size)]
    return [f"  most memory in GiB: {', '.join(shown)}"] if shown else []


def _replay_line(item: RunFiles) -> list[str]:
    share, last = fmean([m.replay_share for m in item.metrics]), item.metrics[-1]
    line = (
        f"  {100 * share:.0f} % of starts replayed; store: {last.store_states:,} states, {byte_count(last.store_bytes)}"
    )
    return [line] if item.config.replay.ratio > 0 else []


def summary(item: RunFiles) -> str:
    """The summary of a run: what changed, what it cost, where the results are, and the next commands."""
    run, metrics, iterations = item.run, item.metrics, item.config.run.iterations
    last = metrics[-1]
    unfinished = "" if item.finished else f" of {iterations} (unfinished)"
    head = f"Run {run.name}: {last.iteration} iterations{unfinished}"
    lines = [head, ""]
    for caption, (first, final) in changes(item).items():
        lines.append(f"  {caption:<30} {first:6.3f} -> {final:6.3f}  ({final - first:+.3f})")
        if caption == HELD_OUT:
            lines[-1] += _intervals(item)
    gap = max((m.logprob_gap for m in metrics if not math.isnan(m.logprob_gap)), default=math.nan)
    lines += [
        "",
        *_sets_table(item),
        *_answers_table(item),
        f"  {duration(sum(m.seconds.total for m in metrics))} of training, {last.total_tokens:,} tokens generated "
        f"({_speed(item):,.0f} tokens/s without evaluation)",
        *_idle_line(item),
        *_memory_line(last),
        *_replay_line(item),
        f"  engines and learner differ by at most {gap:.1e} nats per token (mean over the probe after a broadcast)",
        "",
        f"  results   {run.path}",
        f"  report    {run.report}",
        f"  curves    {run.curves}",
        f"  numbers   {run.metrics}",
        *([f"  policy    {item.policy}"] if item.policy else []),
        f"  watch     tensorboard --logdir {run.tensorboard}",
        f"  evaluate  {PROGRAM} evaluate {run.path}",
    ]
    if unfinished:
        lines.append(f"  resume    {PROGRAM} train --resume {run.path}")
    return "\n".join(lines)


def _intervals(item: RunFiles) -> str:
    """The 95 % intervals of held-out success before and after the training; empty before there are two evaluations."""
    if len(item.evaluations) < 2:
        return ""
    ends = [f"{line['low']:.3f} to {line['high']:.3f}" for line in (item.evaluations[0], item.evaluations[-1])]
    return f"  95 % intervals {ends[0]} and {ends[1]}, {item.evaluations[-1]['problems']} problems"


def _sets_table(item: RunFiles) -> list[str]:
    """The newest evaluation, where there are evaluation sets."""
    shown = [line for line in item.evaluations[-1:] if line.get("sets")]
    return [*(f"  {line}" for line in evaluation_table(shown[0])), ""] if shown else []


def _answers_table(item: RunFiles) -> list[str]:
    shown = answers(item, ANSWERS)
    if not shown:
        return []
    table = Table(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    table.add_column("the first held-out questions", ratio=3, overflow="fold")
    for line in (item.evaluations[0], item.evaluations[-1]):
        when = f"after iteration {line['iteration']}" if line["iteration"] else "before training"
        table.add_column(when, ratio=4, overflow="fold")
    for answer in shown:
        before, after = _answer(answer.before, answer.before_correct), _answer(answer.after, answer.after_correct)
        table.add_row(_plain(answer.question), before, after)
    text = StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    return [*(f"  {line}".rstrip() for line in text.getvalue().splitlines()), ""]


def _answer(text: str, correct: bool) -> Text:
    return _plain(f"{text}\n({'right' if correct else 'wrong'})")


def _plain(text: str) -> Text:
    """At most MOST_LINES lines of LONGEST_LINE characters, as a terminal may get them. The last line always stays."""
    *lines, last = (
        line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
        for line in map(printable, text.strip().split("\n"))
    )
    return Text("\n".join([*lines[: MOST_LINES - 1], *["..."] * (len(lines) >= MOST_LINES), last]))
