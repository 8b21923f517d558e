"""What the subcommands of `launch.py` do, in order: check everything that costs nothing, then model, data, Ray, parts.

Invariant: no actor starts before configuration, resources, model and data have been found good.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from core.config import Config, Device
from core.errors import ConfigError, DivergenceError, LearnerError, LostShardError
from core.load import dump_config, field_names, load_config, override
from core.plan import BatchPlan, Bundle, batch_plan, placement
from core.records import Problem
from core.run_directory import RunDirectory, open_log, write_atomically, write_versions
from core.startup import uncollected
from monitor.console import open_console
from monitor.report import curves, success_before, summary
from monitor.sinks import JsonlSink, TensorBoardSink, read_metrics
from trainer import build, checkpoint
from trainer.checkpoint import Progress
from trainer.evaluation import append_evaluation, describe, drop_evaluations
from trainer.loop import Parts
from trainer.metrics import MetricSink
from trainer.preflight import describe_data, load_task
from trainer.session import Outputs, Schedule, held_out
from trainer.session import train as run_training

if TYPE_CHECKING:
    from tasks.task import Task


logger = logging.getLogger("retrospect.commands")

Needs = Callable[[Config, str], tuple[Bundle, ...]]
"""The processes to have room for, of configuration and device."""
LASTING = (
    "model.",
    "task.",
    "starter.",
    "run.seed",
    "learner.zero_stage",
    "learner.value_model",
    "learner.value_path",
    "learner.lora_",
    "replay.ranking",
    "replay.target",
    "replay.decay",
)
"""Fields that the weights, random draws, files and kept promises of a run rest on: a resumed run cannot change them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Model and task of a run, found good."""

    model: str  # Hugging Face directory or name
    task: "Task"


@contextmanager
def prepare(config: Config) -> Iterator[Prepared]:
    """Find or build the model, check it, and load the task. Raises ModelError, DataError, ConfigError."""
    from actors.options import check_options
    from tasks.starter import resolve_model

    check_options(config.rollout, config.cluster.device)
    model = resolve_model(config.model.path, config.starter, config.task, config.run.seed)
    with uncollected():
        task, _ = load_task(config, model)
    print(describe_data(task))
    try:
        check_canonical(config, task.train)
        yield Prepared(model, task)
    finally:
        task.close()


def check_canonical(config: Config, problems: Sequence[Problem]) -> None:
    """Raises ConfigError when canonical solutions are to be replayed but there is none."""
    if config.replay.canonical and all(problem.solution_ids is None for problem in problems):
        raise ConfigError(
            "replay.canonical is true, but no training problem has a canonical solution within rollout.max_response_tokens; set "
            "task.columns.solution, raise the bound, or set replay.canonical false"
        )


def train(config: Config, recipe: str, local: bool = False) -> int:
    """A new run; `local`: all in this process, without Ray."""
    plan = batch_plan(config)
    run = RunDirectory.create(config.run.root, config.run.name, recipe)
    with run.hold():
        run.clear()
        write_atomically(run.config, dump_config(config))
        return session(config, plan, run, resumed=None, local=local)


def resume(path: Path, options: Sequence[str], local: bool = False) -> int:
    """Go on with a run from its last checkpoint, with single fields changed by `options`.

    `local`: all in this process, without Ray. Raises ConfigError for a field that a run cannot change.
    """
    run = RunDirectory.open(path)
    with run.hold():
        before = load_config(run.config)
        config = override(before, options)
        check_changes(before, config)
        plan, resumed = batch_plan(config), checkpoint.latest(run)
        if local and (count := checkpoint.in_flight(resumed)):
            raise ConfigError(
                f"--local: {resumed} has {count} starts of asynchronous mode in flight; resume without --local"
            )
        if config != before:
            write_atomically(run.config, dump_config(config))
        return session(config, plan, run, resumed, local)


def check_changes(before: Config, after: Config) -> None:
    """Raises ConfigError with every field that differs though the files of a run rest on it."""
    different = []
    for name in field_names():
        old, new = attrgetter(name)(before), attrgetter(name)(after)
        if old != new and name.startswith(LASTING) and not isinstance(old, BaseModel):
            different.append(f"{name} is {old!r} in this run and cannot become {new!r}")
    if different:
        raise ConfigError(f"--resume: {'; '.join(different)}; start a new run for that")


def session(
    config: Config,
    plan: BatchPlan,
    run: RunDirectory,
    resumed: Path | None,
    local: bool = False,
) -> int:
    """Connect, start the parts, train, report. The parts stop before the report is written."""
    from actors.options import check_training_options

    open_log(run)
    check_training_options(config)
    if local and config.rollout.max_staleness:
        print(
            f"--local: synchronous, without regard to rollout.max_staleness = {config.rollout.max_staleness}",
            flush=True,
        )
    config = settled(config, local)
    with prepare(config) as ready, connected(config, run.name, local) as device:
        write_versions(run)
        print(f"starting engines and learner on {device} ...", flush=True)
        with build.parts(config, plan, run, ready.task, ready.model, device, local=local) as parts:
            run_session(config, plan, run, parts, resumed, local)
    metrics = read_metrics(run.metrics)
    curves(metrics, run.curves, title=run.name, before=success_before(run))
    print(summary(run, metrics, iterations=config.run.iterations))
    return 0


def settled(config: Config, local: bool) -> Config:
    """The configuration as it can be run here: with `local` by one process, which is made ready for it."""
    if not local:
        return config
    from trainer.local import settle

    return settle(config)


def connected(config: Config, name: str, local: bool, needs: Needs = placement) -> AbstractContextManager[Device]:
    """A connected Ray with what the run `name` needs, or with `local` nothing of the kind; gives the device."""
    if local:
        from trainer.local import here

        return here(config)
    from trainer.cluster import connect

    return connect(config, name, needs)


def watchers(run: RunDirectory, local: bool) -> tuple[list[MetricSink], list[str]]:
    """Ray's gauges and what the console says of the dashboard; neither without Ray."""
    if local:
        return [], []
    from monitor.ray_metrics import RayGaugeSink
    from trainer.cluster import dashboard_url

    dashboard = dashboard_url()
    return [RayGaugeSink(run.name)], [f"dashboard {dashboard}"] if dashboard else []


def run_session(
    config: Config, plan: BatchPlan, run: RunDirectory, parts: Parts, resumed: Path | None, local: bool
) -> None:
    """Train to the end and write the policy.

    When a learner rank is lost, all are started anew and the run goes on from its last checkpoint, as `--resume` would, or
    before the first one from its beginning; at most `learner.max_restarts` times.
    """
    cursor = parts.problems.state()
    begin: Callable[[], Progress] = lambda: Progress(0, cursor, 0)  # noqa: E731
    if resumed is not None:
        begin = partial(checkpoint.go_on, resumed, parts)
    restarts = 0
    while True:
        try:
            attempt(config, plan, run, parts, begin, local)
            with checkpoint.replacing(run.policy) as folder:
                parts.learner.export(folder)
            return
        except (LearnerError, LostShardError) as error:
            if restarts == config.learner.max_restarts:
                raise
            restarts += 1
            saved = checkpoint.saved(run)
            where = "begins again" if saved is None else f"goes on after iteration {saved}"
            said = f"{error}: restart {restarts} of the learner, the run {where}"
            logger.warning(said)
            print(said, flush=True)
            begin = partial(afresh, run, parts, cursor)


def afresh(run: RunDirectory, parts: Parts, cursor: dict[str, Any]) -> Progress:
    """Fresh ranks, and all parts at the last checkpoint, or before the first one where the run began (`cursor`)."""
    parts.actors.make_room()  # an engine that joined may have taken the place of the lost rank
    parts.learner.restart()
    if checkpoint.saved(run) is None:
        return checkpoint.start_over(cursor, parts)
    return checkpoint.go_on(checkpoint.latest(run), parts)


def attempt(
    config: Config,
    plan: BatchPlan,
    run: RunDirectory,
    parts: Parts,
    begin: Callable[[], Progress],
    local: bool,
) -> None:
    """Bring the parts to where `begin` says, then train with every sink open."""
    settings = build.settings(config, plan)
    schedule = Schedule(
        iterations=config.run.iterations,
        checkpoint_every=config.run.checkpoint_every,
        keep_checkpoints=config.run.keep_checkpoints,
        evaluate_every=config.evaluation.every,
        evaluation=build.evaluation_plan(config),
    )
    progress = begin()
    drop_evaluations(run.evaluations, progress.iteration or -1)  # a run that begins repeats that before training, too
    gauges, hints = watchers(run, local)
    sinks: list[MetricSink] = [
        JsonlSink(run.metrics, last=progress.iteration),
        TensorBoardSink(run.tensorboard, last=progress.iteration, config=dump_config(config)),
        *gauges,
    ]
    hints.append(f"tensorboard --logdir {run.tensorboard}")
    earlier = read_metrics(run.metrics)
    with spoilt_saved(run), open_console(run.name, config.run.iterations, earlier=earlier, hints=hints) as console:
        try:
            if progress.iteration == 0:
                start = held_out(parts, settings, schedule)
                append_evaluation(run.evaluations, 0, start)
                console.note(f"before training: {describe(start)}")
            run_training(parts, settings, schedule, Outputs(run, console, sinks), progress)
        finally:
            for sink in sinks:
                sink.close()


@contextmanager
def spoilt_saved(run: RunDirectory) -> Iterator[None]:
    """When the block ends with too many skipped steps in a row: the offending problems, one id a line, beside the log."""
    try:
        yield
    except DivergenceError as error:
        write_atomically(run.spoilt, "\n".join(error.problem_ids) + "\n")
        raise


def check(config: Config, offline: bool) -> int:
    """Print the resolved configuration and what follows from it; check model, data and devices unless offline."""
    from commands.check import print_check

    print_check(config, offline)
    return 0
