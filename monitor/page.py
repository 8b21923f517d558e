"""`report.html`: one or several runs as one self-contained page, for a browser without a network and for paper. Runs
that differ only in their seed are one group: their curves are means, with 95 % t-intervals."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from core.errors import CheckpointError, StoreError
from core.load import FIELDS, dump_config, setting
from core.run_directory import read_jsonl, read_versions, write_atomically
from monitor.charts import Chart, Points, Range, as_svg, histogram, line_chart, stacked_bars
from monitor.console import duration
from monitor.run_files import RunFiles, answers, series
from monitor.store_table import by_provenance
from monitor.store_view import open_store
from monitor.student import t_quantile
from trainer.evaluation.table import evaluation_rows
from trainer.metrics import PHASES

OWN = ("run.", "monitor.", "evaluation.every", "model.template_date")  # fields in which the runs of a group may differ
CHARTS: Sequence[tuple[str, str, Sequence[str], Range]] = (
    ("Success", "share", ("root_success", "replay_success", "evaluation_success"), (0, 1)),
    ("Training problems", "share", ("visited", "covered_from_root", "covered"), (0, 1)),
    ("Reward", "", ("reward", "evaluation_reward", "reward_deviation"), (None, None)),
    ("Starts and truncation", "share", ("replay_share", "equal_groups", "truncated_share", "erroneous_share"), (0, 1)),
    ("Length of a response", "tokens", ("response_length", "longest_response"), (0, None)),
    ("Entropy", "nats/token", ("entropy",), (0, None)),
    ("KL of the update", "nats/token", ("kl", "reference_kl"), (None, None)),
    ("Critic", "", ("explained_variance", "value_auc_within", "value_brier"), (None, None)),
    ("Gradient norms", "", ("policy_grad_norm", "value_grad_norm"), (0, None)),
    ("Log-prob gap of the engines", "nats", ("behaviour_gap_mean", "logprob_gap"), (0, None)),
    ("Speed", "tokens/s", ("tokens_per_second",), (0, None)),
    ("States in the store", "states", ("store_states", "store_replayable"), (0, None)),
    ("Most memory", "GiB", ("driver_memory", "engine_memory", "learner_memory", "learner_gpu_memory"), (0, None)),
)
"""Title, unit, metrics and range of y."""
NAMED = 3  # most fields that name a group; groups that differ in more are called by their first run
SAMPLED = 3  # iterations whose samples are shown: the first, the middle and the last
ANSWERED = 10  # held-out questions that are shown with their answers before and after the training

Groups = Mapping[str, list[RunFiles]]


def write_page(files: Sequence[RunFiles], path: Path) -> None:
    """Write the page of these runs."""
    named = groups(files)
    difficulty = [_difficulty(label, members) for label, members in named.items()]
    names = [item.run.name for item in files]
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["svg"] = as_svg
    page = templates.get_template("page.html").render(
        title=" · ".join(names),
        when=f"{datetime.now():%Y-%m-%d %H:%M}",
        summary=[_summary(item) for item in files],
        curves=curves(named),
        phases=[phases(item) for item in files],
        difficulty=[chart for chart in difficulty if chart.labels],
        evaluated=[row for item in files for row in _evaluated(item)],
        stores=[store for item in files if (store := _store(item))],
        answers=[row for item in files for row in _answers(item)],
        samples=[_samples(item) for item in files],
        names=names,
        different=_different(files),
        configurations=[(item.run.name, dump_config(item.config)) for item in files],
        events=[_events(item) for item in files],
    )
    write_atomically(path, page)


def groups(files: Sequence[RunFiles]) -> dict[str, list[RunFiles]]:
    """Runs of different seeds that differ only in OWN fields, by the fields in which the groups differ (by name if
    there is one group). A second run of a seed is of another group: it says nothing about the spread over seeds."""
    compared = [name for name in FIELDS if not name.startswith(OWN)]
    members_by_key: dict[tuple[str, ...], list[RunFiles]] = {}
    for item in files:
        key = tuple(str(setting(item.config, name)) for name in compared)
        while item.config.run.seed in {member.config.run.seed for member in members_by_key.get(key, ())}:
            key = (*key, "again")
        members_by_key.setdefault(key, []).append(item)
    names = [item.run.name for item in files]
    unique = len(set(names)) == len(names)
    differ = [at for at in range(len(compared)) if len({key[at] for key in members_by_key}) > 1]

    def _label(key: tuple[str, ...], members: list[RunFiles]) -> str:
        few = differ if len(differ) <= NAMED and len(key) == len(compared) else []
        fields = ", ".join(f"{compared[at].rpartition('.')[2]} {key[at]}" for at in few)
        fields = fields or (members[0].run.name if unique else str(members[0].run.path))
        return f"{fields} ({len(members)} seeds)" if len(members) > 1 else fields

    return {_label(key, members): members for key, members in members_by_key.items()}


def over_seeds(runs: Iterable[Mapping[int, float]]) -> Points:
    """Mean over the runs at every iteration, with its t-interval where there are several."""
    columns: dict[int, list[float]] = {}
    for run in runs:
        for x, value in run.items():
            columns.setdefault(x, []).append(value)
    points = []
    for x in sorted(columns):
        values = columns[x]
        mean, half = statistics.fmean(values), math.nan
        if (degrees := len(values) - 1) > 0:
            half = t_quantile(degrees) * statistics.stdev(values) / math.sqrt(len(values))
        points.append((x, mean, mean - half, mean + half))
    return points


def curves(named: Groups) -> list[Chart]:
    """Of one group all metrics of a chart together; of several a chart per metric with a line per group."""
    charts = []
    for title, unit, names, span in CHARTS:
        lines = {
            name: {label: over_seeds(series(item, name) for item in members) for label, members in named.items()}
            for name in names
        }
        if len(named) == 1:
            charts.append(
                line_chart(title, unit, {name: points for name, of in lines.items() for points in of.values()}, span)
            )
        else:
            charts += [line_chart(name, unit, of, span) for name, of in lines.items()]
    return [chart for chart in charts if chart.labels]


def phases(item: RunFiles) -> Chart:
    """The seconds of every iteration by phase."""
    names = (*PHASES, "other")
    columns = {m.iteration: [float(getattr(m.seconds, name)) for name in names] for m in item.metrics}
    return stacked_bars(f"Phases of an iteration: {item.run.name}", "s", names, columns)


def _difficulty(label: str, members: Sequence[RunFiles]) -> Chart:
    """Success of a group over the iterations: of all held-out problems, by level, and of the evaluation sets."""
    runs: list[dict[str, dict[int, float]]] = []  # of each run by set and iteration
    for item in members:
        runs.append({})
        for line in item.evaluations:
            for row in evaluation_rows(line):
                runs[-1].setdefault(row["set"], {})[line["iteration"]] = row["success"]
    sets = dict.fromkeys(name for run in runs for name in run)
    lines = {name: over_seeds(run.get(name, {}) for run in runs) for name in sets}
    return line_chart(f"Success on what is evaluated: {label}", "share", lines, (0, 1))


def _evaluated(item: RunFiles) -> list[tuple[object, ...]]:
    """The newest evaluation of a run, if there is one, with avg@k and pass@k where responses were sampled."""
    shown = "{success:.1%} ({low:.1%} to {high:.1%})".format
    sampled = "avg@{samples} {average:.1%} ({average_low:.1%} to {average_high:.1%}), pass@{samples} {any:.1%}".format
    return [
        (
            item.run.name,
            line["iteration"],
            row["set"],
            row["problems"],
            shown(**row),
            sampled(**row) if row.get("samples") else "",
        )
        for line in item.evaluations[-1:]
        for row in evaluation_rows(line)
    ]


def _store(item: RunFiles) -> dict[str, Any]:
    """The store of a run: states by provenance, chains, depths and ages, or why it cannot be read; empty if it holds
    none."""
    if not item.config.replay.ratio:
        return {}
    try:
        view = open_store(item.run)
    except (StoreError, CheckpointError) as error:
        return {"run": item.run.name, "error": str(error)}
    table, rows = view.table, []
    if not table.num_rows:
        return {}
    for kind, counts in by_provenance(table).items():
        tried = counts["tried"]
        rate = f"{counts['solved'] / tried:.1%} of {tried:,}" if tried else "not tried"
        rows.append((kind.replace("_", " "), f"{counts['states']:,}", f"{counts['drawable']:,}", rate))
    charts = [
        histogram("Depth of the states", "tokens", table["depth"].to_pylist()),
        histogram("Age of their values", "weight versions", table["age"].to_pylist()),
    ]
    chains = sum(len(shard.trajectories) for shard in view.shards)
    totals = {"states": f"{table.num_rows:,}", "chains": f"{chains:,}"}
    return {"run": item.run.name, "rows": rows, "charts": charts, **totals}


def _samples(item: RunFiles) -> dict[str, Any]:
    """The samples of a few iterations, and the range of the critic's values in them."""
    paths = sorted(path for path in item.run.samples.glob("*.jsonl") if path.stem.isdigit())
    chosen = sorted({paths[round(at * (len(paths) - 1) / (SAMPLED - 1))] for at in range(SAMPLED)}) if paths else []
    rows = [(int(path.stem), sample) for path in chosen for sample in read_jsonl(path, _check_sample)]
    values = [value for _, sample in rows for value in sample["values"] if value is not None]
    return {"run": item.run.name, "rows": rows, "scale": (min(values), max(values)) if values else ()}


def _check_sample(row: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError for a row that cannot be shown."""
    names = ("problem", "prompt", "prefix", "continuation", "finish", "detail")
    "".join((*(row[name] for name in names), *row["tokens"]))
    values = [value for _, value in zip(row["tokens"], row["values"], strict=True) if value is not None]
    sum((row["reward"], *values))


def _answers(item: RunFiles) -> list[tuple[str, ...]]:
    name, marks = item.run.name, ("✗ ", "✓ ")
    return [
        (
            name,
            answer.question,
            marks[answer.before_correct] + answer.before,
            marks[answer.after_correct] + answer.after,
        )
        for answer in answers(item, ANSWERED)
    ]


def _summary(item: RunFiles) -> tuple[str, ...]:
    last, scores = item.metrics[-1], item.evaluations
    done = "finished" if item.finished else "unfinished"
    held_out = f"{scores[0]['success']:.1%} → {scores[-1]['success']:.1%}" if scores else "-"
    seconds = sum(m.seconds.total for m in item.metrics)
    progress = f"{last.iteration} of {item.config.run.iterations}, {done}"
    return item.run.name, progress, held_out, f"{last.total_tokens:,}", duration(seconds)


def _different(files: Sequence[RunFiles]) -> list[tuple[str, ...]]:
    rows = []
    for name in FIELDS:
        values = [str(setting(item.config, name)) for item in files]
        if len(set(values)) > 1 and not name.startswith(("run.name", "run.root")):
            rows.append((name, *values))
    return rows


def _events(item: RunFiles) -> dict[str, Any]:
    """Starts with their versions, failures that were handled, and the warnings of the log."""
    run = item.run
    starts = [dict(entry) for entry in read_versions(run)]
    rows = [(entry.pop("started"), ", ".join(f"{k} {v}" for k, v in entry.items())) for entry in starts]
    counts = {
        "restarts of rollout actors": _since_the_start(m.restarts for m in item.metrics),
        "quarantined starts": _since_the_start(m.quarantined for m in item.metrics),
        "dropped episodes": _since_the_start(m.dropped_episodes for m in item.metrics),
        "skipped optimizer steps": sum(m.skipped_steps for m in item.metrics),
        "responses without a verdict": sum(m.judge_failures for m in item.metrics),
    }
    log = run.log.read_text(encoding="utf-8", errors="replace").splitlines() if run.log.exists() else []
    lines = [line for line in log if " WARNING " in line or " ERROR " in line][-100:]
    counted = ", ".join(f"{count} {what}" for what, count in counts.items())
    return {"run": run.name, "starts": rows, "counts": counted, "lines": lines}


def _since_the_start(counts: Iterable[int]) -> int:
    """The last number of a counter that a resume sets back to 0, with what it had counted before."""
    numbers = [0, *counts]
    return sum(after - before if after >= before else after for before, after in pairwise(numbers))
