"""A supervised training run: steps over rows, measured on held-out rows, checkpointed and resumed.

Used by `commands/sft.py` and `commands/reward_model.py`, which say what a row is and what is measured. The run directory is that of
`core/run_directory.py` (config, metrics.jsonl, checkpoints/, and the model in policy/). Invariant: step s reads rows that follow from
the seed and s alone, so a resumed run repeats the uninterrupted one.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core.config import Config, Device, SupervisedConfig
from core.errors import ConfigError, DivergenceError
from core.load import dump_config, load_config
from core.plan import supervised_placement
from core.run_directory import RunDirectory, open_log, write_atomically, write_versions
from core.seeds import generator
from trainer import checkpoint

if TYPE_CHECKING:
    from learner.supervised import NextToken, Preference, SupervisedGroup

Numbers = dict[str, float]
LINES = 20
"""Progress lines of a run."""


class Job(Protocol):
    """Rows and what is measured on the held-out ones."""

    @property
    def rows(self) -> int:
        """Number of training rows."""
        ...

    def objective(self) -> "type[NextToken] | type[Preference]":
        """What is learned."""
        ...

    def batches(self, rows: Sequence[int]) -> Sequence[Sequence[Any]]:
        """[rank][micro-batch] of one optimizer step over these rows."""
        ...

    def measure(self, group: "SupervisedGroup") -> Numbers:
        """Numbers on the held-out rows, by name."""
        ...

    def describe(self, numbers: Numbers) -> str:
        """The numbers for a person."""
        ...

    def finish(self, group: "SupervisedGroup", directory: Path) -> None:
        """Write what belongs beside the saved model."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model found good and the job on it."""

    model: str
    job: Job


Prepare = Callable[[Config], Prepared]


def new_run(config: Config, settings: SupervisedConfig, prepare: Prepare, recipe: str) -> int:
    """Train from the beginning."""
    run = RunDirectory.create(config.run.root, config.run.name, recipe)
    with run.lock():
        ready = prepare(config)  # bad input is found before anything is written
        run.clear()
        write_atomically(run.config, dump_config(config))
        return _session(config, settings, ready, run, None)


def resume(path: Path, options: Sequence[str], choose: Callable[[Config], SupervisedConfig], prepare: Prepare) -> int:
    """Go on from the last checkpoint. Raises ConfigError when fields are to be changed: the rows of a step rest on them."""
    if options:
        raise ConfigError(f"--resume takes the run's own configuration; leave out {options[0]}")
    run = RunDirectory.open(path)
    with run.lock():
        config = load_config(run.config)
        return _session(config, choose(config), prepare(config), run, checkpoint.latest(run))


def _session(
    config: Config, settings: SupervisedConfig, ready: Prepared, run: RunDirectory, resumed: Path | None
) -> int:
    from trainer.cluster import connect

    open_log(run)
    with connect(config, run.name, supervised_placement) as device:
        write_versions(run)
        with _group(config, ready, device) as group:
            train(group, ready.job, settings, config, run, resumed)
            with checkpoint.replacing(run.policy) as folder:
                group.export(folder)
                ready.job.finish(group, folder)
    print(f"model   {run.policy}\nnumbers {run.metrics}")
    return 0


@contextmanager
def _group(config: Config, ready: Prepared, device: Device) -> Iterator["SupervisedGroup"]:
    from learner.supervised import SupervisedGroup

    group = SupervisedGroup(
        ready.job.objective(),
        ready.model,
        config.learner,
        dtype=config.model.dtype,
        device=device,
        cpus=config.cluster.learner_cpus,
        gpus=config.cluster.learner_gpus,
    )
    try:
        yield group
    finally:
        group.close()


def train(
    group: "SupervisedGroup",
    job: Job,
    settings: SupervisedConfig,
    config: Config,
    run: RunDirectory,
    resumed: Path | None,
) -> None:
    """All steps after the resumed checkpoint, or all. Raises DivergenceError after learner.max_skipped_steps in a row."""
    from learner.schedule import learning_rate

    total = settings.epochs * steps_per_epoch(job.rows, settings.batch_size)
    first = restore(group, resumed) if resumed is not None else 0
    keep_lines(run.metrics, first)
    if not first:
        note(run, {"step": 0} | job.measure(group), job, total)
    skipped, begun = 0, time.monotonic()
    for step in range(first, total):
        rate = learning_rate(settings.lr, step, settings.warmup_steps, total, settings.schedule)
        done = group.step(job.batches(rows_of_step(config.run.seed, step, job.rows, settings.batch_size)), rate)
        skipped = 0 if done.applied else skipped + 1
        if skipped >= config.learner.max_skipped_steps:
            raise DivergenceError(
                f"step {step + 1}: {skipped} steps in a row had a NaN or Inf; lower the learning rate"
            )
        number, last = step + 1, step + 1 == total
        numbers: Numbers = {"step": number, "loss": done.loss, "rate": rate, "grad_norm": done.grad_norm}
        if last or (settings.evaluate_every and number % settings.evaluate_every == 0):
            numbers |= job.measure(group)
        numbers["seconds"] = time.monotonic() - begun
        note(run, numbers, job, total)
        if last or number % settings.checkpoint_every == 0:
            save(group, run, number, config.run.keep_checkpoints)


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


def note(run: RunDirectory, numbers: Numbers, job: Job, total: int) -> None:
    """Write the numbers of a step, and print them where held-out rows were measured or it is time for a line."""
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write(json.dumps(numbers) + "\n")
    step = int(numbers["step"])
    told = job.describe(numbers)
    if told or step % max(1, total // LINES) == 0:
        loss = f", loss {numbers['loss']:.3f}" if "loss" in numbers else ""
        print(f"step {step}/{total}{loss}{', held out: ' + told if told else ''}", flush=True)


def keep_lines(path: Path, last: int) -> None:
    """Drop the lines of steps after `last` (they are repeated) and a torn one."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            number = json.loads(line)["step"]
        except json.JSONDecodeError:
            continue
        if last and number <= last:
            kept.append(line + "\n")
    write_atomically(path, "".join(kept))


def save(group: "SupervisedGroup", run: RunDirectory, step: int, keep: int) -> None:
    """Write a checkpoint under a temporary name, rename it, name it the latest, and delete all but the newest `keep`."""
    final = run.checkpoints / f"{step:06d}"
    temporary = run.checkpoints / f".{final.name}.tmp"
    for leftover in (temporary, final):
        shutil.rmtree(leftover, ignore_errors=True)
    group.save(temporary)
    write_atomically(temporary / "progress.json", json.dumps({"step": step}))
    checkpoint.flush(temporary)
    temporary.rename(final)
    write_atomically(run.checkpoints / "latest", final.name)
    for old in checkpoint.superfluous(run, step, keep):
        shutil.rmtree(old)


def restore(group: "SupervisedGroup", path: Path) -> int:
    """Load a checkpoint; returns its step."""
    group.restore(path)
    return int(json.loads((path / "progress.json").read_text())["step"])
