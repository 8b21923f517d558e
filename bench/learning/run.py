"""One training run with the product's own loop, in this process: `python -m bench.learning.run FILE.json`. The file
says which run, and which tables get its result. Invariant: a result is written only when its run is complete."""

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.learning.measures import MASTERED, learnability, plain
from bench.learning.plan import SETTINGS, Fields, Run, configuration
from bench.learning.results import append_result
from core.config import Config
from core.interruption import Interruption
from core.records import Imitated, Scored
from core.run_directory import RunDirectory
from core.startup import set_environment
from tasks.starter import resolve_model
from trainer import build
from trainer.collect import collect_metrics
from trainer.evaluation.scores import Evaluation, EvaluationPlan, evaluate_policy
from trainer.local import single_process
from trainer.loop import iterate
from trainer.metrics import IterationMetrics, PhaseClock
from trainer.records import Components, IterationResult, IterationSettings

POINTS = 20  # evaluations in a run, at equal distances in generated tokens, after the one before training
LAST_SAMPLES = 4  # the last evaluation has this many times as many samples, for pass@k
STARTER_SEED = 0

Row = dict[str, Any]
MEANS = (
    "root_success", "replay_success", "replay_share", "erroneous_share", "kl", "entropy", "value_auc_within",
    "explained_variance", "policy_grad_norm",
)  # fmt: skip
"""Metrics of the product of which a row has the mean over its iterations (docs/metrics.md)."""


class Progress:
    """The counts of a run, and the iterations since its last evaluation."""

    def __init__(self) -> None:
        self.iterations = self.generated = self.trained = 0
        self.seconds = 0.0
        self.first: dict[str, int | None] = {"root": None, "any": None}  # generated tokens until the first success
        self._recent: list[Row] = []

    def add(self, scored: Sequence[Scored], imitated: Sequence[Imitated], metrics: IterationMetrics) -> None:
        """Count an iteration. Trained tokens are all that the learner read: prompt, prefix and continuation."""
        self.iterations += 1
        self.generated = metrics.total_tokens
        judged = [*(item.judged for item in scored), *(item.scored.judged for item in imitated)]
        self.trained += sum(item.trajectory.sequence_ids.size for item in judged)
        self.seconds += metrics.seconds.total
        row = {name: getattr(metrics, name) for name in MEANS}
        for name, replayed in (("learnability", None), ("replayed_learnability", True)):
            row[name] = learnability(outcomes(scored, replayed))
        self._recent.append(row)
        correct = [item for item in scored if item.judged.verdict.correct]
        if correct and self.first["any"] is None:
            self.first["any"] = self.generated
        if self.first["root"] is None and any(not item.trajectory.start.replayed for item in correct):
            self.first["root"] = self.generated

    def row(self, evaluation: Evaluation) -> Row:
        """The row of an evaluation: counts, success, and means over the iterations since the row before."""
        counts = {name: getattr(self, name) for name in ("iterations", "generated", "trained", "seconds")}
        means: Row = {}
        for name in self._recent[0] if self._recent else ():
            known = [row[name] for row in self._recent if not math.isnan(row[name])]
            means[name] = sum(known) / len(known) if known else None
            if name == "kl":
                means["largest_kl"] = max(known, default=None)
        self._recent = []
        first = asdict(evaluation.overall.passes[1])
        levels = {level: asdict(scores.passes[1]) for level, scores in evaluation.levels.items()}
        by_level = {"levels": levels} if len(levels) > 1 else {}
        return {**counts, "greedy": evaluation.success, "pass@1": first, **by_level, **means}


def outcomes(scored: Sequence[Scored], replayed: bool | None) -> list[tuple[int, int]]:
    """(continuations, correct ones) of every start; `replayed`: only of starts that are, or are not, replayed."""
    found: dict[str, tuple[int, int]] = {}
    for item in scored:
        start = item.trajectory.start
        if replayed is None or start.replayed == replayed:
            count, correct = found.get(start.id, (0, 0))
            found[start.id] = count + 1, correct + item.judged.verdict.correct
    return list(found.values())


def step(
    parts: Components, settings: IterationSettings, number: int, before: int
) -> tuple[IterationResult, IterationMetrics]:
    """Iteration `number` and its metrics. `before`: tokens generated until then."""
    clock = PhaseClock()
    result = iterate(parts, settings, number, clock, Interruption())
    if result.failure is not None:
        raise result.failure
    seconds = clock.seconds()
    metrics = collect_metrics(parts, result, seconds, tokens_before=before, busy_before=0.0, evaluation=None)
    return result, metrics


def train(parts: Components, settings: IterationSettings, plan: EvaluationPlan, budget: int) -> Row:
    """Train until `budget` tokens are generated, or the task is mastered. Returns rows and first successes."""
    progress, mastered = Progress(), 0
    rows = [progress.row(evaluate_policy(parts.actors, parts.task, plan))]
    while progress.generated < budget and mastered < 2:
        before = progress.generated
        result, metrics = step(parts, settings, progress.iterations + 1, before)
        progress.add(result.scored, result.imitated, metrics)
        if progress.generated * POINTS // budget > before * POINTS // budget:
            rows.append(progress.row(evaluate_policy(parts.actors, parts.task, plan)))
            mastered = mastered + 1 if rows[-1]["pass@1"]["mean"] >= MASTERED else 0
            print(json.dumps(plain(rows[-1])), flush=True)
    last = replace(plan, samples=LAST_SAMPLES * plan.samples)
    evaluation = evaluate_policy(parts.actors, parts.task, last)
    passes = {f"pass@{k}": asdict(estimate) for k, estimate in evaluation.overall.passes.items()}
    return {"rows": rows, "first_success": progress.first, "final": {**progress.row(evaluation), **passes}}


def perform(run: Run, changes: Fields, tokens: int | None = None) -> Row:
    """Train one run from its starter. `changes` replace fields of its configuration, `tokens` its budget."""
    budget = tokens or SETTINGS[run.task][run.hardness].tokens
    with tempfile.TemporaryDirectory() as folder:
        config = with_starter(single_process(configuration(run, Path(folder), changes)))
        directory = RunDirectory.create(Path(folder), run.name, "learning")
        begun = time.monotonic()
        with (
            build.open_model_and_task(config) as ready,
            build.connected(config, run.name, local=True) as device,
            build.components(directory, ready, device, local=True) as parts,
        ):
            config = ready.config
            started = time.monotonic() - begun
            found = train(parts, build.iteration_settings(config), build.evaluation_plan(config), budget)
    return {"budget": budget, "start_seconds": started, "all_seconds": time.monotonic() - begun, **found}


def with_starter(config: Config) -> Config:
    """The configuration with the starter of all seeds, as users share a pretrained model."""
    path = resolve_model("starter", config.starter, config.task, STARTER_SEED)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def main(path: Path) -> None:
    """Perform the order in `path` (`run`, `changes`, `tokens`, `about`) and append its result to its table."""
    set_environment()
    order = json.loads(path.read_text(encoding="utf-8"))
    found = perform(Run(**order["run"]), order["changes"], order["tokens"])
    append_result(Path(order["results"]), plain({**order["about"], **found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
