"""What runs with rollouts share: their parts, training until a budget is used up, checkpoints, and evaluation.
Invariant: a run that goes on from its checkpoint has the numbers that it would have had."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.learning.measures import learnability, plain
from bench.learning.run import outcomes, step
from bench.real.plan import TUNING_SEED, Part, Run
from core.config import Config, ResolvedConfig
from core.errors import DivergenceError
from core.run_directory import RunDirectory, write_atomically
from trainer import build, checkpoint
from trainer.checkpoint import RunProgress
from trainer.evaluation.scores import EvaluationPlan, evaluate_policy
from trainer.metrics import IterationMetrics
from trainer.records import Components, IterationResult
from trainer.starts import known_texts

SAVED_EVERY = 600.0  # seconds between checkpoints
METRICS = (
    "root_success", "replay_success", "replay_share", "imitated", "policy_steps", "entropy", "kl", "reference_kl",
    "erroneous_states", "erroneous_share", "erroneous_imitated", "lucky_share", "truncated_share", "generated_tokens",
    "reward", "environment_steps", "repeated_steps", "behaviour_gap_mean",
)  # fmt: skip
"""Metrics of the product that a result has of every iteration (docs/metrics.md)."""
Row = dict[str, Any]


@dataclass(slots=True)
class State:
    """What a run has measured so far."""

    generated: int = 0
    used: int = 0  # of the budget
    diverged: bool = False
    evaluations: list[Row] = field(default_factory=list)
    iterations: list[Row] = field(default_factory=list)

    def add(self, result: IterationResult, metrics: IterationMetrics, unit: str, epochs: int) -> None:
        """Note an iteration. Trained tokens are all that the learner read in so many epochs: prompt, prefix and
        continuation. `unit`: the metric that uses up the budget."""
        scored = [*result.scored, *(item.scored for item in result.imitated)]
        row: Row = {name: getattr(metrics, name) for name in METRICS}
        row["trained_tokens"] = epochs * sum(item.trajectory.sequence_ids.size for item in scored)
        row["replayed_learnability"] = learnability(outcomes(result.scored, True))
        self.iterations.append(row | {f"{name}_seconds": value for name, value in asdict(metrics.seconds).items()})
        self.generated = metrics.total_tokens
        self.used += row[unit]

    def line(self) -> str:
        """The latest iteration in words."""
        row, count = self.iterations[-1], len(self.iterations)
        return (
            f"{datetime.now():%H:%M:%S} iteration {count}: {self.generated} tokens, root success "
            f"{100 * row['root_success']:.1f} %, {row['total_seconds']:.0f} s"
        )

    def sum_of(self, column: str) -> float:
        """Of a column over all iterations so far."""
        return float(sum(row[column] for row in self.iterations))

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


def train(
    parts: Components,
    config: ResolvedConfig,
    directory: RunDirectory,
    part: Part,
    budget: int,
    before: Sequence[Row] = (),
) -> Row:
    """Train until the budget is used up, with evaluations at equal distances before, and one after. `before`: the first
    evaluation, if another arm made it of the same model."""
    settings, plan = build.iteration_settings(config), build.evaluation_plan(config)
    state, saved, held_out = begin(parts, directory), time.monotonic(), config.run.seed != TUNING_SEED
    state.evaluations = state.evaluations or list(before)
    while state.used < budget:
        if held_out and state.used >= budget / part.points * len(state.evaluations):
            state.evaluations.append(evaluate(parts, plan, state))
        try:
            found = step(parts, settings, len(state.iterations) + 1, state.generated)
            state.add(*found, part.unit, config.learner.epochs)
            print(state.line(), flush=True)
        except DivergenceError as error:
            print(error, flush=True)
            state.diverged = True
            break
        if time.monotonic() - saved > SAVED_EVERY:
            save(parts, directory, state)
            saved = time.monotonic()
    if held_out:
        state.evaluations.append(evaluate(parts, replace(plan, samples=part.last_samples), state))
    return state.result(budget)


def begin(parts: Components, directory: RunDirectory) -> State:
    """Set the parts to where the run goes on, and return what it has measured until there."""
    parts.learner.measure_noise(parts.actors, known_texts(parts.task.train))
    if checkpoint.saved(directory) is None:
        return State()
    progress = checkpoint.continue_from(checkpoint.latest(directory), parts)
    print(f"goes on after iteration {progress.iteration}", flush=True)
    return State(**json.loads(_state_file(directory, progress.iteration).read_text(encoding="utf-8")))


def save(parts: Components, directory: RunDirectory, state: State) -> None:
    """Write a checkpoint. What was measured is on disk before the checkpoint is named the latest."""
    number = len(state.iterations)
    write_atomically(_state_file(directory, number), json.dumps(asdict(state)))
    checkpoint.save(directory, parts, RunProgress(number, parts.problems.state(), state.generated), keep=1)


def _state_file(directory: RunDirectory, number: int) -> Path:
    return directory.path / f"state-{number:06d}.json"


def evaluate(parts: Components, plan: EvaluationPlan, state: State) -> Row:
    """Held-out success. `lucky`: of the correct sampled responses those that state a false equation, those that the
    check can judge, and all."""
    begun = time.monotonic()
    found = evaluate_policy(parts.actors, parts.task, plan)
    correct = [item.trajectory for item in found.sampled if item.verdict.correct]
    told = [parts.task.prefix_is_wrong(one.start.problem_id, one.response_ids) for one in correct]
    row: Row = {
        "iteration": len(state.iterations),
        "generated": state.generated,
        "environment_steps": state.sum_of("environment_steps"),
        "trained_seconds": state.sum_of("total_seconds"),
        "greedy": found.success,
        **{f"pass@{k}": estimate.mean for k, estimate in found.overall.passes.items()},
        "levels": {level: scores.passes[1].mean for level, scores in found.levels.items()},
        "lucky": [told.count(True), len(told) - told.count(None), len(told)],
        "truncated": found.truncated,
        "evaluated_tokens": sum(item.trajectory.tokens.size for item in (*found.greedy, *found.sampled)),
        "seconds": time.monotonic() - begun,
    }
    print(json.dumps(plain(row)), flush=True)
    return row


@contextmanager
def opened(run: Run, config: Config) -> Iterator[tuple[Components, ResolvedConfig, RunDirectory]]:
    """The parts of a run, its complete configuration and its folder."""
    place = config.run.root / run.name
    known = (place / "checkpoints" / "latest").exists()
    directory = RunDirectory(place) if known else RunDirectory.create(config.run.root, run.name, "real")
    with (
        directory.lock(),
        build.open_model_and_task(config) as ready,
        build.connected(config, run.name, local=True) as device,
        build.components(directory, ready, device, local=True) as parts,
    ):
        yield parts, ready.config, directory
