"""`launch.py train`: starts a new run or resumes an earlier one.

Invariant: no actor starts before configuration, model and data have been checked.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commands.options import configuration
from commands.preflight import preflight
from core import PROGRAM
from core.config import Config, task_title
from core.errors import CheckpointError, ConfigError, first_line
from core.interruption import Interruption
from core.load import FIELDS, OptionParser, dump_config, load_config, override, setting
from core.plan import plan_warnings
from core.run_directory import RunDirectory, open_log, write_atomically, write_versions
from monitor.console import RunConsole
from monitor.report import draw_report, summary
from monitor.run_files import read_run
from monitor.starting import Starting, libraries_in_log
from monitor.store_view import write_problems
from monitor.trackers import open_trackers
from replay.store.snapshot import read_manifest
from tasks.sampling import read_cursor
from trainer import build, checkpoint
from trainer.evaluation.files import lacks_evaluation
from trainer.local import single_process
from trainer.metrics import IterationMetrics, JsonlSink, MetricSink, read_metrics
from trainer.mirror import download, upload
from trainer.model.automatic import recorded
from trainer.model.gguf import model_folder
from trainer.model.needs import critic
from trainer.session import Outputs, Schedule, Session, run_session

LASTING_SECTIONS = {"model", "task"}
LASTING_FIELDS = {
    "run.seed",
    "learner.zero_stage",
    "learner.value_model",
    "learner.value_path",
    "learner.lora_rank",
    "learner.lora_alpha",
    "replay.ranking",
}
"""Fields that a resumed run cannot change: its weights, random draws and files depend on them."""
Callback = Callable[[IterationMetrics], object]
"""Is told the metrics of every iteration. The run ends in order, as after Ctrl-C, when it returns something true."""


def train_recipe(options: Namespace) -> int:
    """`launch.py train`: start a new run, or with --resume continue an earlier one."""
    if not options.resume:
        config = configuration(options)
        train(config, options.config[-1].stem if options.config else task_title(config.task), options.local)
        return 0
    if options.config:
        raise ConfigError("--resume takes the run's own configuration; leave out --config, or change single fields")
    resume(options.resume, options.fields, options.local)
    return 0


def train(config: Config, recipe: str, local: bool = False, callback: Callback | None = None) -> RunDirectory:
    """Start a new run. `local`: all in this process, without Ray."""
    config = config.model_copy(update={"model": config.model.dated()})
    run = RunDirectory.create(config.run.root, config.run.name, recipe)
    with checkpoint.one_line_if_full(run), run.lock():
        run.clear()
        write_atomically(run.config, dump_config(config))
        _run(config, run, None, local, callback)
    return run


def resume(place: str, options: Sequence[str], local: bool = False, callback: Callback | None = None) -> RunDirectory:
    """Continue a run from its last checkpoint, with single fields changed by `options`. `place`: its directory, or its
    URI. `local`: all in this process, without Ray. Raises ConfigError for a field that a run cannot change,
    CheckpointError and StoreError for a checkpoint that this code cannot read."""
    if "://" in place:  # its configuration, which the other options change, is there
        root = [field for field in OptionParser().read(options).fields if field.startswith("--run.root=")]
        place = str(download(place, override(Config(), root).run.root))
    run = RunDirectory.open(Path(place))
    with checkpoint.one_line_if_full(run), run.lock():
        before = load_config(run.config)
        config = override(before, options)
        check_changes(before, config)
        resumed = checkpoint.latest(run)
        checkpoint.check_digests(resumed)
        progress = checkpoint.progress_of(resumed)
        if progress.iteration > config.run.iterations:
            raise ConfigError(
                f"--resume: {run.path} has done {progress.iteration} iterations, more than run.iterations = "
                f"{config.run.iterations}; raise it"
            )
        if _is_finished(run, resumed, progress.iteration, config.run.iterations):
            print(summary(read_run(run)))
            print(f"{run.path} has finished its {progress.iteration} iterations; raise run.iterations to train on")
            return run
        if config.replay.ratio and (store := resumed / "sources" / "replay").is_dir():
            read_manifest(store)  # refuses a store of another format now, not after the engines have started
        count = checkpoint.in_flight(progress)
        if local and count:
            raise ConfigError(
                f"--local: {resumed} has {count} starts of asynchronous mode in flight; resume without --local"
            )
        _run(config, run, resumed, local, callback)
    return run


def _is_finished(run: RunDirectory, saved: Path, iteration: int, iterations: int) -> bool:
    """Whether nothing is left to do after the checkpoint `saved`."""
    lacks = lacks_evaluation(run.evaluations, iteration)
    return iteration == iterations and not lacks and checkpoint.exported(run, saved)


def _run(config: Config, run: RunDirectory, resumed: Path | None, local: bool, callback: Callback | None) -> None:
    """Train and report. A signal or `callback` ends the run in order: it saves and reports."""
    for line in plan_warnings(config):
        print(line, flush=True)
    stop, done, before = Interruption(), False, load_config(run.config)
    watchers = [] if callback is None else [_CallbackSink(callback, stop)]
    with stop.handled(), open_log(run):
        with suppress(KeyboardInterrupt), _open_session(config, run, resumed, local, watchers) as session:
            done = run_session(session, resumed, stop)
        if not done and not run.has_results():
            print(f"interrupted before the first iteration of {run.path} ended: start it again", file=sys.stderr)
            return
        print(summary(read_run(run)))
        if config.run.mirror:
            # what was written after the last checkpoint: report, curves, policy
            print(upload(run, config.run.mirror).removeprefix("; "))
    if not done:
        how = "interrupted" if stop.asked else "ended by its callback"
        lost = before != config and load_config(run.config) == before  # interrupted while it started
        fields = ", and the same changed fields" if lost else ""
        print(f"{how}; continue with: {PROGRAM} train --resume {run.path}{fields}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _CallbackSink:
    """Passes the metrics to a user's function, and ends the run when it returns something true."""

    callback: Callback
    stop: Interruption

    def write(self, metrics: IterationMetrics) -> None:
        """Tell the user's function of one iteration."""
        self.stop.ended |= bool(self.callback(metrics))

    def close(self) -> None:
        """Nothing is open."""


def check_changes(before: Config, after: Config) -> None:
    """Raises ConfigError that lists every changed field which a resumed run cannot change."""
    different = []
    for name in FIELDS:
        old, new = setting(before, name), setting(after, name)
        if old != new and (name in LASTING_FIELDS or name.partition(".")[0] in LASTING_SECTIONS):
            different.append(f"{name} is {old!r} in this run and cannot become {new!r}")
    old, new = critic(before), critic(after)
    if old != new and before.learner.value_model == after.learner.value_model:
        different.append(
            f"the critic is {old!r} in this run and cannot become {new!r} (algorithm.estimator, replay.ratio)"
        )
    old_room, room = before.rollout.max_response_tokens, after.rollout.max_response_tokens
    if after.replay.ratio and old_room and room and room < old_room:
        different.append(
            f"rollout.max_response_tokens is {old_room} in this run and cannot become {room}: stored states may be "
            "longer"
        )
    if different:
        raise ConfigError(f"--resume: {'; '.join(different)}; start a new run for that")


@contextmanager
def _open_session(
    config: Config, run: RunDirectory, resumed: Path | None, local: bool, watchers: Sequence[MetricSink]
) -> Iterator[Session]:
    if local and config.rollout.max_staleness:
        print(f"--local: synchronous; rollout.max_staleness = {config.rollout.max_staleness} has no effect", flush=True)
    recipe, config = config, single_process(config) if local else config
    preflight(config, local=local)
    model_path = build.find_model(config)
    with ExitStack() as stack:
        waiting = ["task", *([] if local else ["cluster"]), "engines", "learner"]
        starting = stack.enter_context(closing(Starting(run, waiting)))
        from learner.models.pretrained import check_trainable  # imported here, because it takes seconds

        value_path = model_folder(config.learner.value_path, "learner.value_path")
        check_trainable(model_path, bool(config.learner.lora_rank), value_path)
        model = stack.enter_context(build.open_task(config, model_path))
        chosen = model.config
        if resumed is not None:
            read_cursor(resumed / "sources" / "fresh", model.task.fingerprint)  # refuses other problems
        write_versions(run)
        write_problems(run, model.task)
        starting.ready(waiting[0])
        stack.enter_context(libraries_in_log(run.log))
        device = stack.enter_context(build.connected(chosen, run.name, local))
        if not local:
            starting.ready("cluster")
        with build.opened(run, model, device, local=local, ready_part=starting.ready) as started:
            started.learner.check_sees(run.config)  # before hours of work that no checkpoint could keep
            schedule = Schedule(
                iterations=chosen.run.iterations,
                checkpoint_every=chosen.run.checkpoint_every,
                keep_checkpoints=chosen.run.keep_checkpoints,
                evaluate_every=chosen.evaluation.every,
                evaluation=build.evaluation_plan(chosen),
            )
            outputs = partial(_open_outputs, chosen, recorded(recipe, chosen), run, local, watchers)
            mirror = partial(upload, run, chosen.run.mirror) if chosen.run.mirror else lambda _: ""
            yield Session(started, schedule, run, outputs, mirror)


@contextmanager
def _open_outputs(
    config: Config, kept: Config, run: RunDirectory, local: bool, watchers: Sequence[MetricSink], last: int
) -> Iterator[Outputs]:
    """Console and metric files of a run that continues after iteration `last`. `kept`: what a later resume reads, with
    all that was chosen; it is not written before, so that a resume that fails leaves the fields as they were."""
    write_atomically(run.config, dump_config(kept))
    hints = [f"tensorboard --logdir {run.tensorboard}"] if "tensorboard" in config.monitor.sinks else []
    phases: list[Callable[[str], None]] = []
    with ExitStack() as stack:
        sinks: list[MetricSink] = [JsonlSink(run.metrics, last=last), *open_trackers(config, run, last)]
        if not local:
            from monitor.ray_metrics import RayGaugeSink
            from trainer.cluster import places

            gauges = RayGaugeSink(run.name)
            sinks.append(gauges)
            phases.append(gauges.phase)
            hints = [*places(), *hints]
        console = RunConsole(run.name, config.run.iterations, earlier=read_metrics(run.metrics), hints=hints)
        sinks += [console, *watchers]
        for sink in sinks:
            stack.callback(sink.close)
        stack.callback(_draw, run)  # first, also after an error or an interruption, so that trackers get the curves
        phases.append(console.phase)
        yield Outputs(lambda name: [begin(name) for begin in phases], console.note, sinks)


def _draw(run: RunDirectory) -> None:
    """Write curves and page. A failure is only reported: it must not hide what ended the run."""
    try:
        draw_report(read_run(run))
    except CheckpointError:  # no iteration is finished
        pass
    except Exception as error:
        print(f"report: not written ({first_line(error)}); `{PROGRAM} report {run.path}` tries again", flush=True)
