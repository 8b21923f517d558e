"""A supervised training run. Invariant: rows of a step depend on its number and the seed, so a resumed run repeats."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config import Config, RewardModelConfig, SupervisedConfig
from core.errors import CheckpointError, ConfigError, DivergenceError
from core.load import dump_config, load_config
from core.plan import supervised_placement
from core.records import FloatArray
from core.run_directory import RunDirectory, keep_lines, open_log, write_atomically, write_versions
from core.seeds import generator
from trainer import checkpoint

if TYPE_CHECKING:
    from learner.supervised_group import SupervisedGroup

Numbers = dict[str, float]
Batches = Sequence[Sequence[Any]]  # [rank][micro-batch]
Outputs = Sequence[Sequence[FloatArray]]  # [rank][micro-batch] of the model, see `learner.supervised_group`
LINES = 20  # number of progress lines of a run


@dataclass(frozen=True, slots=True)
class SupervisedJob:
    """A model, the rows that it is trained on, and what is measured on the held-out ones."""

    model: str  # Hugging Face directory or name
    config: Config  # without `auto` in what supervised training reads
    settings: SupervisedConfig
    train: Sequence[Any]
    held_out: Sequence[Any]
    batches: Callable[[Sequence[Any]], Batches]  # of rows
    measure: Callable[[Batches, Outputs], Numbers]  # by name
    describe: Callable[[Numbers], str]  # empty when nothing was measured
    save: Callable[[Batches, Outputs, Path], None] | None = None  # writes further files into the model's folder


MakeJob = Callable[[Config], SupervisedJob]


def begin_supervised(config: Config, make_job: MakeJob, recipe: str) -> int:
    """Start a new run. Returns the exit status."""
    run = RunDirectory.create(config.run.root, config.run.name, recipe)
    with run.lock():
        job = make_job(config)  # raises for bad input before anything is written
        run.clear()
        write_atomically(run.config, dump_config(job.config))
        return _supervise(job, run, None)


def resume_supervised(path: Path, options: Sequence[str], make_job: MakeJob) -> int:
    """Continue from the last checkpoint. Raises ConfigError for any option: rows depend on the configuration."""
    if options:
        raise ConfigError(f"--resume uses the run's own configuration; leave out {options[0]}")
    run = RunDirectory.open(path)
    with run.lock():
        config, resumed = load_config(run.config), checkpoint.latest(run)
        checkpoint.check_digests(resumed)
        if "step" not in json.loads((resumed / "progress.json").read_text()):
            raise CheckpointError(f"{path} is a run of `launch.py train`; resume it with that command")
        return _supervise(make_job(config), run, resumed)


def _supervise(job: SupervisedJob, run: RunDirectory, resumed: Path | None) -> int:
    from learner.supervised_group import NextToken, Preference, SupervisedGroup
    from trainer.cluster import connect

    config = job.config
    objective = Preference if isinstance(job.settings, RewardModelConfig) else NextToken
    cpus, gpus = config.cluster.learner_cpus, config.cluster.learner_gpus
    with open_log(run), connect(config, run.name, supervised_placement) as device:
        write_versions(run)
        kind = config.model.dtype
        group = SupervisedGroup(objective, job.model, config.learner, dtype=kind, device=device, cpus=cpus, gpus=gpus)
        with closing(group):
            take_steps(group, job, config, run, resumed)
            with checkpoint.replacing(run.policy) as folder:
                export_model(group, job, folder)
    print(f"model   {run.policy}\nnumbers {run.metrics}")
    return 0


def export_model(group: "SupervisedGroup", job: SupervisedJob, folder: Path) -> None:
    """Write the model in Hugging Face format, and the job's further files."""
    group.export(folder)
    if job.save:
        batches = job.batches(job.held_out)
        job.save(batches, group.measure(batches), folder)


def held_out_numbers(group: "SupervisedGroup", job: SupervisedJob) -> Numbers:
    """Measure on the held-out rows: name -> value."""
    batches = job.batches(job.held_out)
    return job.measure(batches, group.measure(batches))


def take_steps(
    group: "SupervisedGroup", job: SupervisedJob, config: Config, run: RunDirectory, resumed: Path | None
) -> None:
    """All steps after the checkpoint `resumed`. DivergenceError after `MOST_SKIPPED` skipped in a row."""
    from learner.group import MOST_SKIPPED
    from learner.state import learning_rate

    settings, rows = job.settings, len(job.train)
    total, first, skipped, begun = settings.epochs * steps_per_epoch(rows, settings.batch_size), 0, 0, time.monotonic()
    if resumed is not None:
        group.restore(resumed)
        first = int(json.loads((resumed / "progress.json").read_text())["step"])
    keep_lines(run.metrics, "step", first or -1)  # -1: a new run repeats 0, too
    if not first:
        _note(run, {"step": 0} | held_out_numbers(group, job), job, total)
    for step in range(first, total):
        number, last = step + 1, step + 1 == total
        rate = learning_rate(settings.lr, step, settings.warmup_steps, total, settings.schedule)
        chosen = [job.train[row] for row in rows_of_step(config.run.seed, step, rows, settings.batch_size)]
        done = group.step(job.batches(chosen), rate)
        skipped = 0 if done.applied else skipped + 1
        if skipped >= MOST_SKIPPED:
            raise DivergenceError(f"step {number}: {skipped} steps in a row had a NaN or Inf; lower the learning rate")
        numbers: Numbers = {"step": number, "loss": done.loss, "rate": rate, "grad_norm": done.grad_norm}
        if last or (settings.evaluate_every and number % settings.evaluate_every == 0):
            numbers |= held_out_numbers(group, job)
        _note(run, numbers | {"seconds": time.monotonic() - begun}, job, total)
        if last or number % settings.checkpoint_every == 0:
            _save(group, run, number, config.run.keep_checkpoints)


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Optimizer steps of one pass; the last one may have fewer rows."""
    return -(-rows // batch_size)


def rows_of_step(seed: int, step: int, rows: int, batch_size: int) -> list[int]:
    """Row numbers of a step: a new order every epoch, each row once per epoch.

    >>> sorted(rows_of_step(0, 0, 5, 3) + rows_of_step(0, 1, 5, 3))
    [0, 1, 2, 3, 4]
    """
    epoch, at = divmod(step, steps_per_epoch(rows, batch_size))
    permutation = generator(seed, "supervised", epoch).permutation(rows)
    return [int(row) for row in permutation[at * batch_size : (at + 1) * batch_size]]


def _note(run: RunDirectory, numbers: Numbers, job: SupervisedJob, total: int) -> None:
    """Write the numbers of a step. Print them if held-out rows were measured or a progress line is due."""
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write(json.dumps(numbers) + "\n")
    step = int(numbers["step"])
    measured = job.describe(numbers)
    if measured or step % max(1, total // LINES) == 0:
        loss = f", loss {numbers['loss']:.3f}" if "loss" in numbers else ""
        print(f"step {step}/{total}{loss}{', held out: ' + measured if measured else ''}", flush=True)


def _save(group: "SupervisedGroup", run: RunDirectory, step: int, keep: int) -> None:
    final = run.checkpoints / f"{step:06d}"
    with checkpoint.replacing(final) as temporary:
        group.save(temporary)
        write_atomically(temporary / "progress.json", json.dumps({"step": step}))
        checkpoint.write_digests(temporary)
    write_atomically(run.checkpoints / "latest", final.name)
    for old in checkpoint.superfluous(run, step, keep):
        shutil.rmtree(old)
