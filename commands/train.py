"""`launch.py train`: starts a new run or resumes an earlier one.

Called by `launch.py`. Invariant: no actor starts before configuration, model and data have been checked.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from commands.check import local_resources, this_machine
from core.command_line import FIELDS
from core.config import Config
from core.errors import CheckpointError, ConfigError, first_line
from core.interruption import Interruption
from core.load import dump_config, load_config, override, setting
from core.plan import batch_plan, check_machine, choose_device, kl_warnings, starts_here
from core.run_directory import RunDirectory, open_log, write_atomically, write_versions
from monitor.console import open_console
from monitor.problem_texts import write_problems
from monitor.report import draw_report, print_summary
from monitor.sinks import JsonlSink, read_metrics
from monitor.starting import Starting, libraries_in_log
from monitor.trackers import check_trackers, open_trackers
from trainer import build, checkpoint
from trainer.local import single_process
from trainer.metrics import MetricSink
from trainer.session import Outputs, Schedule, Session, run_session

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
"""Fields that a resumed run cannot change: its weights, random draws and files depend on them."""


def train(config: Config, recipe: str, local: bool = False) -> int:
    """Start a new run. `local`: all in this process, without Ray. Returns the exit status."""
    batch_plan(config)
    run = RunDirectory.create(config.run.root, config.run.name, recipe)
    with run.lock():
        run.clear()
        write_atomically(run.config, dump_config(config))
        for line in kl_warnings(config):
            print(line, flush=True)
        return _run(config, run, None, local)


def resume(path: Path, options: Sequence[str], local: bool = False) -> int:
    """Continue a run from its last checkpoint, with single fields changed by `options`.

    `local`: all in this process, without Ray. Raises ConfigError for a field that a run cannot change.
    """
    run = RunDirectory.open(path)
    with run.lock():
        before = load_config(run.config)
        config = override(before, options)
        check_changes(before, config)
        batch_plan(config)
        resumed = checkpoint.latest(run)
        count = checkpoint.in_flight(checkpoint.progress_of(resumed))
        if local and count:
            raise ConfigError(
                f"--local: {resumed} has {count} starts of asynchronous mode in flight; resume without --local"
            )
        if config != before:
            write_atomically(run.config, dump_config(config))
        return _run(config, run, resumed, local)


def _run(config: Config, run: RunDirectory, resumed: Path | None, local: bool) -> int:
    """Train and report. A signal ends the run in order: it saves, reports and returns 0."""
    stop, done = Interruption(), False
    with stop.handled():
        with suppress(KeyboardInterrupt), _open_session(config, run, local) as session:
            done = run_session(session, resumed, stop)
        if not done and not run.has_results():
            print(f"interrupted before the first iteration of {run.path} ended: start it again", file=sys.stderr)
            return 0
        print_summary(run)
    if not done:
        print(f"interrupted; continue with: python launch.py train --resume {run.path}", file=sys.stderr)
    return 0


def check_changes(before: Config, after: Config) -> None:
    """Raises ConfigError that lists every changed field which a resumed run cannot change."""
    different = []
    for name in FIELDS:
        old, new = setting(before, name), setting(after, name)
        if old != new and name.startswith(LASTING):
            different.append(f"{name} is {old!r} in this run and cannot become {new!r}")
    if different:
        raise ConfigError(f"--resume: {'; '.join(different)}; start a new run for that")


@contextmanager
def _open_session(config: Config, run: RunDirectory, local: bool) -> Iterator[Session]:
    """Check model and data, connect, and start all components. They stop at the end of the block."""
    from actors.options import check_training_options

    open_log(run)
    check_trackers(config)
    check_training_options(config)
    if local and config.rollout.max_staleness:
        print(f"--local: synchronous; rollout.max_staleness = {config.rollout.max_staleness} has no effect", flush=True)
    config = single_process(config) if local else config
    if local or starts_here(config.cluster, os.environ.get("RAY_ADDRESS", "")):
        check_machine(config, this_machine(), choose_device(config.cluster, lambda: local_resources().gpus > 0))
    print("reading model and data, starting judges ...", flush=True)
    with ExitStack() as stack:
        model = stack.enter_context(build.open_model_and_task(config))
        write_versions(run)
        write_problems(run, model.task)
        stack.enter_context(libraries_in_log(run.log))
        starting = stack.enter_context(closing(Starting(run, [*([] if local else ["cluster"]), "engines", "learner"])))
        device = stack.enter_context(build.connected(config, run.name, local))
        if not local:
            starting.ready("cluster")
        parts = build.components(config, run, model, device, local=local, ready_part=starting.ready)
        with parts as started:
            schedule = Schedule(
                iterations=config.run.iterations,
                checkpoint_every=config.run.checkpoint_every,
                keep_checkpoints=config.run.keep_checkpoints,
                evaluate_every=config.evaluation.every,
                evaluation=build.evaluation_plan(config),
                learner_restarts=config.learner.max_restarts,
            )
            outputs = partial(_open_outputs, config, run, local)
            yield Session(started, build.iteration_settings(config), schedule, run, outputs)


@contextmanager
def _open_outputs(config: Config, run: RunDirectory, local: bool, last: int) -> Iterator[Outputs]:
    """Console and metric files of a run that continues after iteration `last`."""
    hints = [f"tensorboard --logdir {run.tensorboard}"] if "tensorboard" in config.monitor.sinks else []
    with ExitStack() as stack:
        sinks: list[MetricSink] = [JsonlSink(run.metrics, last=last), *open_trackers(config, run, last)]
        if not local:
            from monitor.ray_metrics import RayGaugeSink
            from trainer.cluster import dashboard_url

            sinks.append(RayGaugeSink(run.name))
            hints = [*(f"dashboard {url}" for url in [dashboard_url()] if url), *hints]
        console = open_console(run.name, config.run.iterations, earlier=read_metrics(run.metrics), hints=hints)
        sinks.append(console)
        for sink in sinks:
            stack.callback(sink.close)
        stack.callback(_draw, run)  # first, also after an error or an interruption, so that trackers get the curves
        yield Outputs(console.phase, console.note, sinks)


def _draw(run: RunDirectory) -> None:
    """Write curves and page. A failure is only reported: it must not hide what ended the run."""
    try:
        draw_report(run)
    except CheckpointError:  # no iteration is finished
        pass
    except Exception as error:
        print(f"report: not written ({first_line(error)}); `launch.py report {run.path}` tries again", flush=True)
