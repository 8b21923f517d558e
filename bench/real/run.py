"""One run in this process: `python -m bench.real.run FILE.json`. The file says which run, and which table gets its
result. Invariant: a result is written only when its run is complete; a run that was killed goes on from its
checkpoint, with the numbers that it would have had."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from bench.learning.measures import learnability, plain
from bench.learning.run import outcomes, step
from bench.real.plan import TUNING_SEED, Run, configuration
from bench.real.splits import warm_start, write_splits
from bench.runs import append_line
from core.config import Config
from core.errors import DivergenceError
from core.machine import this_machine
from core.run_directory import RunDirectory, write_atomically
from core.startup import set_environment
from trainer import build, checkpoint
from trainer.checkpoint import RunProgress
from trainer.evaluation.scores import EvaluationPlan, evaluate_policy
from trainer.local import single_process
from trainer.metrics import IterationMetrics
from trainer.records import Components, IterationResult
from trainer.starts import known_texts

SAVED_EVERY = 600.0  # seconds between checkpoints
METRICS = (
    "root_success", "replay_success", "replay_share", "imitated", "policy_steps", "entropy", "kl", "reference_kl",
    "erroneous_states", "erroneous_share", "erroneous_imitated", "lucky_share", "truncated_share", "generated_tokens",
)  # fmt: skip
"""Metrics of the product that a result has of every iteration (docs/metrics.md)."""
Row = dict[str, Any]


@dataclass(slots=True)
class State:
    """What a run has measured so far."""

    generated: int = 0
    diverged: bool = False
    evaluations: list[Row] = field(default_factory=list)
    iterations: list[Row] = field(default_factory=list)

    def add(self, result: IterationResult, metrics: IterationMetrics) -> None:
        """Note an iteration. Trained tokens are all that the learner read: prompt, prefix and continuation."""
        scored = [*result.scored, *(item.scored for item in result.imitated)]
        row: Row = {name: getattr(metrics, name) for name in METRICS}
        row["trained_tokens"] = sum(item.trajectory.sequence_ids.size for item in scored)
        row["replayed_learnability"] = learnability(outcomes(result.scored, True))
        self.iterations.append(row | {f"{name}_seconds": value for name, value in asdict(metrics.seconds).items()})
        self.generated = metrics.total_tokens

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


def train(parts: Components, config: Config, directory: RunDirectory, budget: int, last_samples: int) -> Row:
    """Train until `budget` tokens are generated, with an evaluation before, half-way and after."""
    settings, plan = build.iteration_settings(config), build.evaluation_plan(config)
    state, saved, held_out = begin(parts, directory), time.monotonic(), config.run.seed != TUNING_SEED
    while state.generated < budget:
        if held_out and state.generated >= budget / 2 * len(state.evaluations):
            state.evaluations.append(evaluate(parts, plan, state))
        try:
            state.add(*step(parts, settings, len(state.iterations) + 1, state.generated))
        except DivergenceError as error:
            print(error, flush=True)
            state.diverged = True
            break
        if time.monotonic() - saved > SAVED_EVERY:
            save(parts, directory, state)
            saved = time.monotonic()
    if held_out:
        state.evaluations.append(evaluate(parts, replace(plan, samples=last_samples), state))
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
        "greedy": found.success,
        **{f"pass@{k}": estimate.mean for k, estimate in found.overall.passes.items()},
        "lucky": [told.count(True), len(told) - told.count(None), len(told)],
        "truncated": found.truncated,
        "evaluated_tokens": sum(item.trajectory.tokens.size for item in (*found.greedy, *found.sampled)),
        "seconds": time.monotonic() - begun,
    }
    print(json.dumps(plain(row)), flush=True)
    return row


def machine_label() -> str:
    """Processor, cores, and whether it computes in bfloat16."""
    machine = this_machine()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{name}, {machine.cores} cores{', bf16' if machine.bfloat16 else ''}"


def perform(run: Run, config: Config, order: Mapping[str, Any]) -> Row:
    """The measures of one run."""
    place = config.run.root / run.name
    known = (place / "checkpoints" / "latest").exists()
    directory = RunDirectory(place) if known else RunDirectory.create(config.run.root, run.name, "real")
    with (
        directory.lock(),
        build.open_model_and_task(config) as ready,
        build.connected(config, run.name, local=True) as device,
        build.components(directory, ready, device, local=True) as parts,
    ):
        if run.part == "assay":
            from bench.real.assay import measure

            return measure(parts, ready.config, directory, order["scale"])
        return train(parts, ready.config, directory, order["budget"], order["last_samples"])


def main(path: Path) -> None:
    """Perform the order in `path` and append its result to its table."""
    set_environment()
    order = json.loads(path.read_text(encoding="utf-8"))
    run, work, begun = Run(**order["run"]), Path(order["work"]), time.monotonic()
    load = os.getloadavg()[0]
    write_splits(run, work, order["scale"])
    model = warm_start(run, work)
    started = time.monotonic()
    config = single_process(configuration(run, work, model, order["changes"]))
    if run.arm == "mbpp":  # programs are judged in processes of their own also here
        config = config.model_copy(update={"task": config.task.model_copy(update={"judge_workers": 2})})
    found = perform(run, config, order)
    about = {
        **order["about"],
        "machine": machine_label(),
        "load": [load, os.getloadavg()[0]],
        "model": _digest(Path(model) / "model.safetensors") if model else "",
        "rate": config.learner.policy_lr,
        "warm_seconds": started - begun,
        "all_seconds": time.monotonic() - started,
    }
    append_line(Path(order["table"]), plain({"run": order["run"], **about, **found}))
    shutil.rmtree(work / run.name)  # checkpoints of 2 GB


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        state = xxhash.xxh3_64()
        while piece := opened.read(1 << 24):
            state.update(piece)
    return state.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
