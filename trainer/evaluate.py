"""Evaluation on held-out problems, from the root only, through the same rollout pool as training.

Called inside training (`trainer/session.py`) and by `launch.py evaluate`.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.records import Finish, Judged, Problem
from core.sampling import Sampling
from core.seeds import generator
from tasks.estimators import bootstrap
from trainer.rundir import write_atomically
from trainer.starts import fresh_starts

if TYPE_CHECKING:
    from actors.pool import RolloutPool
    from tasks.task import Task


@dataclass(frozen=True, slots=True)
class LevelResult:
    """Success of one difficulty level."""

    level: str
    problems: int
    success: float  # share of correct responses


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success on the held-out problems."""

    problems: int
    samples: int  # responses per problem
    success: float  # mean over problems of the share of correct responses
    low: float  # 95 % bootstrap interval over problems
    high: float
    reward: float
    truncated: float  # share of responses that used up their token budget
    levels: tuple[LevelResult, ...]
    judged: list[Judged]


def evaluate(
    actors: "RolloutPool", task: "Task", problems: Sequence[Problem], sampling: Sampling, samples: int, seed: int
) -> Evaluation:
    """Generate `samples` responses per problem, judge them and summarise."""
    starts = fresh_starts(problems, samples, seed, iteration=0)
    return summarise(task.judge(actors.generate(starts, sampling)), problems, samples, seed)


def summarise(judged: list[Judged], problems: Sequence[Problem], samples: int, seed: int) -> Evaluation:
    """Success over all problems and by level; the interval resamples problems, not responses.

    `judged` holds the responses of problem 0, then of problem 1, ..., `samples` of each.
    """
    correct = np.array([item.verdict.correct for item in judged], dtype=float).reshape(len(problems), samples)
    share = correct.mean(axis=1)
    interval = bootstrap(share.tolist(), rng=generator(seed, "bootstrap"))
    by_level: defaultdict[str, list[float]] = defaultdict(list)
    for problem, value in zip(problems, share, strict=True):
        by_level[problem.level].append(float(value))
    return Evaluation(
        problems=len(problems),
        samples=samples,
        success=float(share.mean()),
        low=interval.low,
        high=interval.high,
        reward=float(np.mean([item.verdict.reward for item in judged])),
        truncated=float(np.mean([item.trajectory.finish is Finish.LENGTH for item in judged])),
        levels=tuple(
            LevelResult(level, len(by_level[level]), float(np.mean(by_level[level]))) for level in sorted(by_level)
        ),
        judged=judged,
    )


def describe(result: Evaluation) -> str:
    """The result in one line."""
    return (
        f"success {100 * result.success:.1f} % (95 % interval {100 * result.low:.1f} to {100 * result.high:.1f}) on "
        f"{result.problems} held-out problems x {result.samples}"
    )


def append_evaluation(path: Path, iteration: int, result: Evaluation) -> None:
    """Add a line to evaluations.jsonl: success, interval and levels after `iteration` (0: before training)."""
    levels = [asdict(level) for level in result.levels]
    numbers = {"success": result.success, "low": result.low, "high": result.high, "reward": result.reward}
    record = {
        "iteration": iteration,
        "problems": result.problems,
        "samples": result.samples,
        **numbers,
        "levels": levels,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def drop_evaluations(path: Path, last: int) -> None:
    """Keep the lines of evaluations.jsonl up to iteration `last`: what a resumed run repeats is written again; torn lines go."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            number = json.loads(line)["iteration"]
        except json.JSONDecodeError:
            continue
        if number <= last:
            kept.append(line + "\n")
    write_atomically(path, "".join(kept))
