"""The files that a report reads of a run, running or not: configuration, iterations, evaluations."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from core.config import Config
from core.errors import CheckpointError
from core.load import load_config
from core.run_directory import RunDirectory, last_record, read_jsonl
from trainer.checkpoint import is_saved, saved
from trainer.evaluation.files import read_evaluations
from trainer.metrics import IterationMetrics, read_metrics


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run with at least one finished iteration."""

    run: RunDirectory
    config: Config
    metrics: list[IterationMetrics]
    evaluations: list[dict[str, Any]]  # lines of evaluations.jsonl, from iteration 0 on

    @property
    def finished(self) -> bool:
        """Whether all iterations are done, and the last one is evaluated and saved."""
        last = self.metrics[-1].iteration
        evaluated = any(line["iteration"] == last for line in self.evaluations)
        return last >= self.config.run.iterations and evaluated and is_saved(self.run, last)

    @property
    def policy(self) -> Path | None:
        """The newest policy: the final one, else that of the last checkpoint, if there is one."""
        iteration = saved(self.run)
        checkpoint = None if iteration is None else self.run.checkpoints / f"{iteration:06d}" / "policy"
        return self.run.policy if self.finished and self.run.policy.is_dir() else checkpoint


class Answers(NamedTuple):
    """A held-out question with the greedy responses before and after the training, and whether they are correct."""

    question: str
    before: str
    before_correct: bool
    after: str
    after_correct: bool


def answers(item: RunFiles, count: int) -> list[Answers]:
    """The first `count` held-out problems that the first and the newest evaluation have; none before there are two."""
    paths = [item.run.responses / f"{line['iteration']:06d}.jsonl" for line in item.evaluations]
    if len(paths) < 2:
        return []
    first, last = (
        {row["problem"]: row for row in read_jsonl(path, _check_response) if row["kind"] == "greedy"}
        for path in paths[:: len(paths) - 1]
    )
    return [
        Answers(row["prompt"], row["response"], row["correct"], last[name]["response"], last[name]["correct"])
        for name, row in first.items()
        if name in last
    ][:count]


def _check_response(row: dict[str, Any]) -> None:
    """Raises KeyError or TypeError for a row that cannot be shown."""
    "".join(row[name] for name in ("problem", "kind", "prompt", "response"))
    int(row["correct"])


def read_run(run: RunDirectory) -> RunFiles:
    """Read a run. Raises CheckpointError when no iteration is finished yet, and for one of `sft` or `reward-model`."""
    if "step" in last_record(run.metrics):
        raise CheckpointError(
            f"{run.path} is a run of supervised training; its model is in {run.policy.name}, its numbers in "
            f"{run.metrics.name}"
        )
    metrics = read_metrics(run.metrics)
    if not metrics:
        raise CheckpointError(
            f"{run.path} has no finished iteration yet (no metrics in {run.metrics.name}); train it first"
        )
    return RunFiles(run, load_config(run.config), metrics, read_evaluations(run.evaluations))


def series(item: RunFiles, name: str) -> dict[int, float]:
    """Iteration -> value of a metric, without NaN. Held-out success begins with iteration 0, before the training."""
    values = {m.iteration: value for m in item.metrics if math.isfinite(value := getattr(m, name))}
    if name != "evaluation_success":
        return values
    return {line["iteration"]: line["success"] for line in item.evaluations} | values
