"""Training until a budget is used up, as experiments need it: with the product's own loop, checkpoints, and held-out
success at equal distances. Invariant: a run that goes on from its checkpoint has the numbers that it would have had."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.runs import plain
from core.config import Config, ResolvedConfig
from core.errors import DivergenceError
from core.interruption import Interruption
from core.records import Rollout
from core.run_directory import RunDirectory, write_atomically
from trainer import build, checkpoint
from trainer.checkpoint import RunProgress
from trainer.collect import collect_metrics
from trainer.evaluation.scores import EvaluationPlan, evaluate_problems
from trainer.loop import iterate
from trainer.metrics import IterationMetrics, PhaseClock
from trainer.run import Report, Run
from trainer.session import known_texts

SAVED_EVERY = 600.0  # seconds between checkpoints
METRICS = (
    "generated_tokens", "root_success", "replay_success", "replay_share", "imitated",
    "visits", "covered_from_root", "covered", "discoveries", "replay_halved",
    "policy_steps", "reward", "entropy", "kl", "reference_kl", "truncated_share", "behaviour_gap_mean",
)  # fmt: skip
"""Metrics of the product that a result has of every iteration (docs/metrics.md)."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long a run trains, and when it is evaluated."""

    budget: int  # generated tokens
    points: int  # evaluations at equal distances before the last one; 0: none but the last
    last_samples: int  # of each held-out problem in the last evaluation; 0: no evaluation at all


@dataclass(slots=True)
class State:
    """What a run has measured so far."""

    generated: int = 0
    diverged: bool = False
    evaluations: list[Row] = field(default_factory=list)
    iterations: list[Row] = field(default_factory=list)

    def add(self, report: Report, metrics: IterationMetrics, epochs: int) -> None:
        """Note an iteration. Trained tokens are all that the learner read in so many epochs: prompt, prefix and
        continuation."""
        learnt = [*report.trained, *report.imitated]
        row: Row = {name: getattr(metrics, name) for name in METRICS}
        row["trained_tokens"] = epochs * sum(rollout.sequence_ids.size for rollout in learnt)
        row["replayed_learnability"] = learnability(outcomes(report.trained, True))
        row["seconds"] = metrics.seconds.total
        self.iterations.append(row)
        self.generated = metrics.total_tokens

    def line(self) -> str:
        """The latest iteration in words."""
        row, count = self.iterations[-1], len(self.iterations)
        return (
            f"{datetime.now():%H:%M:%S} iteration {count}: {self.generated} tokens, root success "
            f"{100 * row['root_success']:.1f} %, {row['seconds']:.0f} s"
        )

    def result(self, budget: int) -> Row:
        """What goes into the table: the iterations as one list for each number."""
        columns = {name: [row[name] for row in self.iterations] for name in self.iterations[0]}
        return {
            "budget": budget,
            "generated": self.generated,
            "diverged": self.diverged,
            "evaluations": self.evaluations,
            "iterations": columns,
        }


def outcomes(rollouts: Sequence[Rollout], replayed: bool) -> list[tuple[int, int]]:
    """(continuations, correct ones) of every start that is replayed, or is not."""
    found: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.start.from_root != replayed:
            found[rollout.start.id].append(rollout.verdict.correct)
    return [(len(each), sum(each)) for each in found.values()]


def learnability(found: Sequence[tuple[int, int]]) -> float:
    """Mean of 4 p (1 - p) over starts, from (continuations, correct ones) of each; NaN if none has two continuations. 1
    is a start that succeeds half of the time; 0 teaches nothing. With n continuations p (1 - p) is estimated without
    bias by n / (n - 1) x c / n x (1 - c / n).

    >>> learnability([(4, 2), (4, 0)])  # 4 x 4/3 x 1/4 = 4/3 for the first: an estimate may exceed 1
    0.6666666666666666
    """
    each = [4 * c * (n - c) / (n * (n - 1)) for n, c in found if n > 1]
    return sum(each) / len(each) if each else math.nan


def step(run: Run, number: int, before: int) -> tuple[Report, IterationMetrics]:
    """Iteration `number` and its metrics. `before`: tokens generated until then."""
    clock = PhaseClock()
    report = iterate(run, run.at(number), clock, Interruption())
    if report.failure is not None:
        raise report.failure
    seconds = clock.seconds()
    metrics = collect_metrics(run, report, seconds, tokens_before=before, busy_before=0.0, evaluation=None)
    return report, metrics


def train(
    run: Run, config: ResolvedConfig, directory: RunDirectory, schedule: Schedule, before: Sequence[Row] = ()
) -> Row:
    """Train until the budget is used up. `before`: the first evaluation, if another arm made it of the same model."""
    plan = build.evaluation_plan(config)
    state, saved = begin(run, directory), time.monotonic()
    state.evaluations = state.evaluations or list(before)
    while state.generated < schedule.budget:
        if state.generated * schedule.points >= schedule.budget * len(state.evaluations) and schedule.points:
            state.evaluations.append(evaluate(run, plan, state))
        try:
            found = step(run, len(state.iterations) + 1, state.generated)
            state.add(*found, config.learner.epochs)
            print(state.line(), flush=True)
        except DivergenceError as error:
            print(error, flush=True)
            state.diverged = True
            break
        if time.monotonic() - saved > SAVED_EVERY:
            save(run, directory, state)
            saved = time.monotonic()
    if schedule.last_samples:
        state.evaluations.append(evaluate(run, replace(plan, samples=schedule.last_samples), state))
    return state.result(schedule.budget)


def begin(run: Run, directory: RunDirectory) -> State:
    """Set the parts to where the run goes on, and return what it has measured until there."""
    run.learner.measure_noise(run.pool, known_texts(run.task.train))
    if checkpoint.saved(directory) is None:
        return State()
    progress = checkpoint.continue_from(checkpoint.latest(directory), run)
    print(f"goes on after iteration {progress.iteration}", flush=True)
    return State(**json.loads(_state_file(directory, progress.iteration).read_text(encoding="utf-8")))


def save(run: Run, directory: RunDirectory, state: State) -> None:
    """Write a checkpoint. What was measured is on disk before the checkpoint is named the latest."""
    number = len(state.iterations)
    write_atomically(_state_file(directory, number), json.dumps(asdict(state)))
    checkpoint.save(directory, run, RunProgress(number, state.generated), keep=1)


def _state_file(directory: RunDirectory, number: int) -> Path:
    return directory.path / f"state-{number:06d}.json"


def evaluate(run: Run, plan: EvaluationPlan, state: State) -> Row:
    """Held-out success, and that of greedy responses on further evaluation sets."""
    found = evaluate_problems(run.pool, run.task, run.task.evaluation, plan)
    greedy = replace(plan, samples=0)
    sets = {label: evaluate_problems(run.pool, run.task, one.problems, greedy) for label, one in run.task.sets.items()}
    row: Row = {
        "iteration": len(state.iterations),
        "generated": state.generated,
        "trained_seconds": sum(row["seconds"] for row in state.iterations),
        "greedy": found.success,
        **{f"pass@{k}": estimate.mean for k, estimate in found.overall.passes.items()},
        "levels": {level: scores.passes[1].mean for level, scores in found.levels.items()},
        "truncated": found.truncated,
        "sets": {label: {"greedy": one.success} for label, one in sets.items()},
    }
    print(json.dumps(plain(row)), flush=True)
    return row


@contextmanager
def opened(name: str, config: Config) -> Iterator[tuple[Run, ResolvedConfig, RunDirectory]]:
    """A run, its complete configuration and its folder, which may be that of a run that was killed."""
    place = config.run.root / name
    known = (place / "checkpoints" / "latest").exists()
    directory = RunDirectory(place) if known else RunDirectory.create(config.run.root, name, "bench")
    with (
        directory.lock(),
        build.open_model_and_task(config) as ready,
        build.connected(config, name, local=True) as device,
        build.opened(directory, ready, device, local=True) as run,
    ):
        yield run, ready.config, directory
