"""A training session: all iterations with their evaluations, checkpoints and reports, and the restart of a lost
learner.

Invariant: metrics of an iteration are on disk before its checkpoint is named the latest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ActorError, DivergenceError, LearnerError, LostShardError, WeightError
from core.interruption import Interruption
from core.run_directory import RunDirectory, keep_lines, write_atomically, write_samples
from trainer import checkpoint
from trainer.checkpoint import RunProgress
from trainer.collect import collect_metrics
from trainer.evaluation.files import append_evaluation, evaluation_record, response_rows, write_responses
from trainer.evaluation.scores import Evaluation, EvaluationPlan, describe_evaluation, evaluate_policy
from trainer.evaluation.table import evaluation_table
from trainer.loop import iterate
from trainer.metrics import MetricSink, PhaseClock
from trainer.records import Components, IterationResult, IterationSettings
from trainer.starts import known_texts

logger = logging.getLogger("retrospect.session")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which iterations evaluate and save."""

    iterations: int
    checkpoint_every: int
    keep_checkpoints: int
    evaluate_every: int  # 0: only the last
    evaluation: EvaluationPlan
    learner_restarts: int = 3  # at most

    def evaluates(self, number: int) -> bool:
        """Whether iteration `number` ends with an evaluation."""
        return number == self.iterations or bool(self.evaluate_every and number % self.evaluate_every == 0)

    def saves(self, number: int) -> bool:
        """Whether iteration `number` ends with a checkpoint."""
        return number == self.iterations or number % self.checkpoint_every == 0


@dataclass(frozen=True, slots=True)
class Outputs:
    """Receivers of progress."""

    phase: Callable[[str], object]  # a phase of the iteration begins
    note: Callable[[str], None]  # one line for a person
    sinks: Sequence[MetricSink]  # an iteration has ended


@dataclass(frozen=True, slots=True)
class Session:
    """The components of a run, and where it writes."""

    parts: Components
    settings: IterationSettings
    schedule: Schedule
    directory: RunDirectory
    open_outputs: Callable[[int], AbstractContextManager[Outputs]]  # argument: last complete iteration
    mirror: Callable[[str], str] = lambda _: ""  # a new checkpoint's name -> what to add to the line about it
    told: list[str] = field(default_factory=list)  # why the first response without a verdict has none


def run_session(session: Session, resumed: Path | None, stop: Interruption) -> bool:
    """Train to the last iteration, from the beginning or from the checkpoint `resumed`, and write the final policy.

    When a learner rank is lost, or a replay shard and its files, all ranks restart. The run continues from its last
    checkpoint, or from the beginning if there is none. This happens at most `learner_restarts` times; then the error is
    raised.

    Returns False when `stop` ended it earlier. Raises ActorError or WeightError when engines or judges failed, or the
    weights of an engine differ from the learner's. In these cases the last complete iteration is saved. Raises
    DivergenceError when too many optimizer steps were skipped; the ids of their problems are in the run directory.
    """
    parts, schedule, directory = session.parts, session.schedule, session.directory
    cursor, restarts = parts.problems.state(), 0
    while True:
        try:
            progress = _begin(session, resumed, cursor, again=restarts > 0)
            keep_lines(directory.evaluations, "iteration", progress.iteration or -1)  # -1: a new run repeats 0, too
            with session.open_outputs(progress.iteration) as outputs:
                if not _train(session, outputs, progress, stop):
                    return False
            with checkpoint.replacing(directory.policy) as folder:
                parts.learner.export(folder)
            return True
        except DivergenceError as error:
            write_atomically(directory.diverged, "\n".join(error.problem_ids) + "\n")
            raise
        except (LearnerError, LostShardError) as error:
            restarts += 1
            if restarts > schedule.learner_restarts or checkpoint.full_disk(error):
                raise
            saved = checkpoint.saved(directory)
            where = "begins again" if saved is None else f"continues after iteration {saved}"
            message = f"{error}: restart {restarts} of the learner, the run {where}"
            logger.warning(message)
            print(message, flush=True)


def _train(session: Session, outputs: Outputs, progress: RunProgress, stop: Interruption) -> bool:
    """All iterations after `progress`. False: `stop` ended them, and the last complete one is saved."""
    stop.hold()
    try:
        if progress.iteration == 0:
            with stop.interruptible():
                first = _evaluate(session, 0, PhaseClock(outputs.phase))
            outputs.note(f"before training: {describe_evaluation(first)}")
            _note_sets(outputs, first)
        for number in range(progress.iteration + 1, session.schedule.iterations + 1):
            progress = _step(session, outputs, progress, number, PhaseClock(outputs.phase), stop)
            if number < session.schedule.iterations:
                stop.check()
    except KeyboardInterrupt:
        if progress.iteration:
            _save(session, outputs, progress, f"ended after iteration {progress.iteration}; ")
        return False
    return True


def _step(
    session: Session, outputs: Outputs, progress: RunProgress, number: int, clock: PhaseClock, stop: Interruption
) -> RunProgress:
    """Iteration `number` and what follows it. When engines fail in it, the iteration before it is saved."""
    busy = session.parts.actors.queues().busy
    try:
        result = iterate(session.parts, session.settings, number, clock, stop)
    except (ActorError, WeightError):  # the update has not begun
        if progress.iteration:
            _save(session, outputs, progress, f"stopped in iteration {number}; ")
        raise
    return _finish(session, outputs, progress, result, clock, busy, stop)


def _begin(session: Session, resumed: Path | None, cursor: dict[str, Any], again: bool) -> RunProgress:
    """Set the parts to where training begins. `again`: after a lost rank or shard. `cursor`: the problem sampler's
    first one."""
    parts = session.parts
    if again:
        parts.learner.restart()
        if checkpoint.saved(session.directory) is None:
            return checkpoint.start_over(cursor, parts)
        resumed = checkpoint.latest(session.directory)
    else:
        noise = parts.learner.measure_noise(parts.actors, known_texts(parts.task.train))
        logger.info("with the same weights engines and learner differ by %s", noise)
    return RunProgress(0, cursor, 0) if resumed is None else checkpoint.continue_from(resumed, parts)


def _finish(
    session: Session,
    outputs: Outputs,
    before: RunProgress,
    result: IterationResult,
    clock: PhaseClock,
    busy: float,
    stop: Interruption,
) -> RunProgress:
    """Evaluate, report and save after an iteration. `busy`: seconds that the engines worked before it.

    Raises ActorError or WeightError when the engines failed in the broadcast or the evaluation, after the iteration is
    saved.
    """
    parts, schedule, number = session.parts, session.schedule, result.number
    failure, evaluation = result.failure, None
    if failure is None and schedule.evaluates(number):
        try:
            with stop.interruptible():
                evaluation = _evaluate(session, number, clock)
        except (ActorError, WeightError) as error:
            failure = error
        except KeyboardInterrupt:
            logger.warning("iteration %d is not evaluated: interrupted", number)
    metrics = collect_metrics(
        parts,
        result,
        clock.seconds(),
        tokens_before=before.total_tokens,
        busy_before=busy,
        evaluation=evaluation,
        find_wrong=session.settings.exclude_wrong,
    )
    write_samples(session.directory, number, result.scored, parts.task.decode, parts.by_id)
    for sink in outputs.sinks:
        sink.write(metrics)
    if evaluation is not None:
        _note_sets(outputs, evaluation)
    _note_first_failure(session, outputs, result)
    pipeline = None if parts.pipeline is None else parts.pipeline.state()
    progress = RunProgress(number, parts.problems.state(), metrics.total_tokens, pipeline)
    success = None if evaluation is None else evaluation.success
    best = success is not None and checkpoint.is_best(session.directory, success)
    if schedule.saves(number) or best or failure:
        _save(session, outputs, progress, f"stopped after iteration {number}; " if failure else "", success)
    if failure:
        raise failure
    return progress


def _note_sets(outputs: Outputs, evaluation: Evaluation) -> None:
    """Show an evaluation as a table if it has evaluation sets."""
    if evaluation.sets:
        for line in evaluation_table(evaluation_record(evaluation)):
            outputs.note(line)


def _note_first_failure(session: Session, outputs: Outputs, result: IterationResult) -> None:
    """Say once in a run why a response has no verdict."""
    failed = next((item.judged.verdict for item in result.scored if item.judged.verdict.judge_failed), None)
    if failed is not None and not session.told:
        session.told.append(failed.detail)
        outputs.note(f"a response without a verdict: {failed.detail}; it has the reward {failed.reward:g}")


def _evaluate(session: Session, number: int, clock: PhaseClock) -> Evaluation:
    """The evaluation after iteration `number` (0: before training), recorded in evaluations.jsonl and evaluations/."""
    parts, directory = session.parts, session.directory
    with clock.phase("evaluate"):
        result = evaluate_policy(parts.actors, parts.task, session.schedule.evaluation)
    append_evaluation(directory.evaluations, number, result)
    rows = list(response_rows(result, parts.task, f"iteration {number}"))
    write_responses(directory.responses / f"{number:06d}.jsonl", rows)
    return result


def _save(session: Session, outputs: Outputs, progress: RunProgress, reason: str, success: float | None = None) -> None:
    """Write and report the checkpoint of `progress`, unless it is already the latest. `success`: on held-out
    problems."""
    directory = session.directory
    copied, begun = "", time.monotonic()
    if checkpoint.saved(directory) == progress.iteration:
        path = checkpoint.latest(directory)
    else:
        path = checkpoint.save(directory, session.parts, progress, session.schedule.keep_checkpoints, success)
        copied = f", written in {time.monotonic() - begun:.1f} s{session.mirror(path.name)}"
    outputs.note(f"{reason}checkpoint {path}{copied}")
