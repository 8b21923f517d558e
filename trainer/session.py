"""A training session: the loop from the first or a resumed iteration to the last, with what surrounds each iteration.

Called by `launch.py`. Per iteration: the loop's `iterate`, evaluation and checkpoint when due, metrics to every sink.
Invariant: metrics of an iteration are on disk before its checkpoint is named the latest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from core.errors import ActorError, LearnerError, WeightError
from core.run_directory import RunDirectory, write_samples
from core.seeds import derive
from trainer import asynchronous, checkpoint
from trainer.checkpoint import Progress
from trainer.evaluation import Evaluation, EvaluationPlan, append_evaluation, evaluate
from trainer.loop import Iteration, Parts, Settings, iterate
from trainer.measure import Flow, measure
from trainer.metrics import IterationMetrics, MetricSink, Phase, PhaseClock
from trainer.responses import response_rows, write_rows
from trainer.starts import erroneous_share

RESCUABLE: tuple[Phase, ...] = ("replay", "generate", "reward")
"""The phases in which the learner is as the last complete iteration left it, so that it can be saved when an engine or a judge
fails for good (in asynchronous mode the engines' failure is noticed whenever the pipeline is used). What happens in a broadcast
is in `Iteration.failure`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which iterations do what."""

    iterations: int
    checkpoint_every: int
    keep_checkpoints: int
    evaluate_every: int  # 0: only the last
    evaluation: EvaluationPlan

    def evaluates(self, number: int) -> bool:
        """Whether iteration `number` ends with an evaluation."""
        return number == self.iterations or bool(self.evaluate_every and number % self.evaluate_every == 0)

    def saves(self, number: int) -> bool:
        """Whether iteration `number` ends with a checkpoint."""
        return number == self.iterations or number % self.checkpoint_every == 0


class Console(Protocol):
    """What a person sees of a run, as `monitor.console` shows it."""

    def phase(self, text: str) -> None:
        """A phase of the iteration begins."""

    def note(self, text: str) -> None:
        """Say one line."""

    def write(self, metrics: IterationMetrics) -> None:
        """An iteration has ended."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Whoever is told."""

    run: RunDirectory
    console: Console
    sinks: Sequence[MetricSink]


def train(parts: Parts, settings: Settings, schedule: Schedule, outputs: Outputs, progress: Progress) -> None:
    """Iterations progress.iteration + 1 .. schedule.iterations.

    When the engines or judges fail for good (ActorError), wherever that is noticed, or an engine has other weights than the learner
    (WeightError), a checkpoint of the last complete iteration is written before it is raised. After a failure of the learner
    itself (LearnerError) there is nothing left to save.
    """
    step = iterate if parts.pipeline is None else partial(asynchronous.iterate, parts.pipeline)
    busy = parts.actors.queues().busy
    for number in range(progress.iteration + 1, schedule.iterations + 1):
        clock = PhaseClock(outputs.console.phase)
        try:
            iteration = step(parts, settings, number, clock)
        except LearnerError:
            raise
        except (ActorError, WeightError):
            if clock.current in RESCUABLE and progress.iteration:
                save(parts, schedule, outputs, progress, f"stopped in iteration {number}; ")
            raise
        failure = iteration.failure
        evaluation = None
        if failure is None and schedule.evaluates(number):
            try:
                evaluation = evaluated(parts, settings, schedule, outputs.run, number, clock)
            except (ActorError, WeightError) as error:  # the engines are lost or unfit, the iteration is not
                failure = error
        flow, busy = flow_of(parts, busy)
        progress = report(parts, outputs, progress, iteration, clock, flow, evaluation)
        top = evaluation is not None and checkpoint.is_best(outputs.run, evaluation.success)
        if schedule.saves(number) or top or failure:
            success = None if evaluation is None else evaluation.success
            save(parts, schedule, outputs, progress, f"stopped after iteration {number}; " if failure else "", success)
        if failure:
            raise failure


def save(
    parts: Parts, schedule: Schedule, outputs: Outputs, progress: Progress, why: str, success: float | None = None
) -> None:
    """Write the checkpoint of `progress`, unless it is the latest already, and say so. `success`: on held-out problems."""
    if checkpoint.saved(outputs.run) == progress.iteration:
        path = checkpoint.latest(outputs.run)
    else:
        path = checkpoint.save(outputs.run, parts, progress, schedule.keep_checkpoints, success)
    outputs.console.note(f"{why}checkpoint {path}")


def evaluated(
    parts: Parts, settings: Settings, schedule: Schedule, run: RunDirectory, number: int, clock: PhaseClock
) -> Evaluation:
    """The evaluation after iteration `number`, recorded in evaluations.jsonl and evaluations/."""
    with clock.phase("evaluate"):
        result = held_out(parts, settings, schedule)
    append_evaluation(run.evaluations, number, result)
    write_rows(run.responses / f"{number:06d}.jsonl", list(response_rows(result, parts.task, f"iteration {number}")))
    return result


def flow_of(parts: Parts, busy: float) -> tuple[Flow, float]:
    """How generation stands, and for the next call how long the engines have worked; `busy`: how long before this iteration."""
    actors, queues = parts.actors, parts.actors.queues()
    finished = 0 if parts.pipeline is None else parts.pipeline.finished
    flow = Flow(
        restarts=actors.restarts,
        quarantined=actors.quarantined,
        actors=queues.actors,
        busy=queues.busy - busy,
        waiting=queues.waiting,
        running=queues.running,
        finished=finished,
    )
    return flow, queues.busy


def report(
    parts: Parts,
    outputs: Outputs,
    progress: Progress,
    iteration: Iteration,
    clock: PhaseClock,
    flow: Flow,
    evaluation: Evaluation | None,
) -> Progress:
    """Tell every sink of the iteration, and say where the run stands now."""
    metrics = measure(
        iteration,
        clock.seconds(),
        parts.replay.stats(),
        erroneous=erroneous_share(iteration.starts, parts.by_id, parts.task.prefix_correct, parts.task.decode),
        flow=flow,
        tokens_before=progress.total_tokens,
        evaluation=evaluation,
    )
    for sink in outputs.sinks:
        sink.write(metrics)
    outputs.console.write(metrics)
    write_samples(outputs.run, iteration.number, [item.judged for item in iteration.scored], parts.task.decode)
    pipeline = None if parts.pipeline is None else parts.pipeline.state()
    return Progress(iteration.number, parts.problems.state(), metrics.total_tokens, pipeline)


def held_out(parts: Parts, settings: Settings, schedule: Schedule) -> Evaluation:
    """Success on held-out problems with the engines' present weights."""
    seed = derive(settings.seed, "evaluation")
    return evaluate(parts.actors, parts.task, parts.task.evaluation, schedule.evaluation, seed)
