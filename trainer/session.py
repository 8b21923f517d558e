"""A training session: all iterations with their evaluations, checkpoints and reports, and the restart of a lost
learner.

Invariant: metrics of an iteration are on disk before its checkpoint is named the latest.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.errors import ActorError, DataError, DivergenceError, LearnerError, LostShardError, WeightError
from core.interruption import Interruption
from core.records import EMPTY, IntArray, Problem
from core.run_directory import RunDirectory, keep_lines, write_atomically, write_samples
from trainer import checkpoint
from trainer.checkpoint import RunProgress
from trainer.collect import collect_metrics
from trainer.evaluation.files import (
    append_evaluation,
    evaluation_record,
    lacks_evaluation,
    response_rows,
    write_responses,
)
from trainer.evaluation.scores import Evaluation, EvaluationPlan, describe_evaluation, evaluate_policy
from trainer.evaluation.table import evaluation_table
from trainer.loop import iterate
from trainer.metrics import MetricSink, PhaseClock
from trainer.run import Report, Run

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

    def evaluates(self, iteration: int) -> bool:
        """Whether an iteration ends with an evaluation."""
        return iteration == self.iterations or bool(self.evaluate_every and iteration % self.evaluate_every == 0)

    def saves(self, iteration: int) -> bool:
        """Whether an iteration ends with a checkpoint."""
        return iteration == self.iterations or iteration % self.checkpoint_every == 0


@dataclass(frozen=True, slots=True)
class Outputs:
    """Receivers of progress."""

    phase: Callable[[str], object]  # a phase of the iteration begins
    note: Callable[[str], None]  # one line for a person
    sinks: Sequence[MetricSink]  # an iteration has ended


@dataclass(frozen=True, slots=True)
class Session:
    """The parts of a run, and where it writes."""

    run: Run
    schedule: Schedule
    directory: RunDirectory
    open_outputs: Callable[[int], AbstractContextManager[Outputs]]  # argument: last complete iteration
    mirror: Callable[[str], str] = lambda _: ""  # a new checkpoint's name -> what to add to the line about it


def run_session(session: Session, resumed: Path | None, stop: Interruption) -> bool:
    """Train to the last iteration, from the beginning or from the checkpoint `resumed`, and write the final policy.

    When a learner rank is lost, or a replay shard and its files, all ranks restart. The run continues from its last
    checkpoint, or from the beginning if there is none. This happens at most `learner_restarts` times; then the error is
    raised.

    Returns False when `stop` ended it earlier. Raises ActorError or WeightError when engines or judges failed, or the
    weights of an engine differ from the learner's. In these cases the last complete iteration is saved. Raises
    DivergenceError when too many optimizer steps were skipped; the ids of their problems are in the run directory.
    """
    run, directory, restarts = session.run, session.directory, 0
    while True:
        try:
            progress = _restarted(session) if restarts else _begun(run, resumed)
            keep_lines(directory.evaluations, "iteration", progress.iteration or -1)  # -1: a new run repeats 0, too
            if progress.iteration < session.schedule.iterations:  # a finished run goes on: its policy is not the last
                shutil.rmtree(directory.policy, ignore_errors=True)
            with session.open_outputs(progress.iteration) as outputs:
                if not Training(session, outputs, stop, progress).finish():
                    return False
            with checkpoint.replacing(directory.policy) as folder:
                run.learner.export(folder)
            return True
        except DivergenceError as error:
            write_atomically(directory.diverged, "\n".join(error.problem_ids) + "\n")
            raise
        except (LearnerError, LostShardError) as error:
            restarts += 1
            if restarts > session.schedule.learner_restarts or checkpoint.full_disk(error):
                raise
            saved = checkpoint.saved(directory)
            where = "begins again" if saved is None else f"continues after iteration {saved}"
            message = f"{error}: restart {restarts} of the learner, the run {where}"
            logger.warning(message)
            print(message, flush=True)


def _begun(run: Run, resumed: Path | None) -> RunProgress:
    """Set the parts to where training begins."""
    noise = run.learner.measure_noise(run.pool, known_texts(run.task.train))
    logger.info("with the same weights engines and learner differ by %s", noise)
    return RunProgress(0, 0) if resumed is None else checkpoint.continue_from(resumed, run)


def _restarted(session: Session) -> RunProgress:
    """Set the parts to the last checkpoint, after a lost rank or shard; to the beginning if there is none."""
    session.run.learner.restart()
    if checkpoint.saved(session.directory) is None:
        return checkpoint.start_over(session.run)
    return checkpoint.continue_from(checkpoint.latest(session.directory), session.run)


def known_texts(problems: Sequence[Problem]) -> Iterator[IntArray]:
    """Prompts [T >= 2], each with its canonical solution if there is one."""
    for problem in problems:
        solution = EMPTY if problem.solution_ids is None else problem.solution_ids
        text = np.concatenate([problem.prompt_ids, solution])
        if text.size > 1:
            yield text


@dataclass(slots=True)
class Training:
    """The iterations from one start, or restart, of the learner."""

    session: Session
    outputs: Outputs
    stop: Interruption
    progress: RunProgress  # after the last complete iteration
    failed_judge: str = ""  # why the first response without a verdict has none; it is said once
    evaluated: bool = True  # False: the evaluation of the last complete iteration was interrupted

    def finish(self) -> bool:
        """All iterations that are left, with their evaluations. False: `stop` ended them, and the last complete one is
        saved."""
        self.stop.hold()
        last = self.session.schedule.iterations
        try:
            self._catch_up()
            for iteration in range(self.progress.iteration + 1, last + 1):
                self._iteration(iteration, PhaseClock(self.outputs.phase))
                if iteration < last:
                    self.stop.check()
        except KeyboardInterrupt:
            if self.progress.iteration:
                self._save(f"ended after iteration {self.progress.iteration}; ")
            return False
        return self.evaluated

    def _catch_up(self) -> None:
        """The evaluation before the training, or that of the last complete iteration if it was interrupted."""
        iteration, directory = self.progress.iteration, self.session.directory
        if iteration and not (
            self.session.schedule.evaluates(iteration) and lacks_evaluation(directory.evaluations, iteration)
        ):
            return
        evaluation = self._evaluate(iteration, PhaseClock(self.outputs.phase))
        when = f"after iteration {iteration}" if iteration else "before training"
        self.outputs.note(f"{when}: {describe_evaluation(evaluation)}")
        self._note_sets(evaluation)
        if iteration:  # the start sources have seen the evaluation, so the next resume must begin with that
            self._save("", evaluation.success, again=True)

    def _iteration(self, iteration: int, clock: PhaseClock) -> None:
        """One iteration, its evaluation, its report and its checkpoint. Raises ActorError or WeightError when engines
        failed, DataError when starts of a user's source do not fit: before the update, after the iteration before it
        is saved; else after this one is."""
        run, schedule = self.session.run, self.session.schedule
        busy = run.pool.queues().busy
        try:
            report = iterate(run, run.at(iteration), clock, self.stop)
        except (ActorError, WeightError, DataError):  # the update has not begun
            if self.progress.iteration:
                self._save(f"stopped in iteration {iteration}; ")
            raise
        evaluation, failure = self._evaluated(report, clock)
        metrics = collect_metrics(
            run,
            report,
            clock.seconds(),
            tokens_before=self.progress.total_tokens,
            busy_before=busy,
            evaluation=evaluation,
        )
        write_samples(self.session.directory, iteration, report.trained, run.task.decode, run.problems)
        for sink in self.outputs.sinks:
            sink.write(metrics)
        if evaluation is not None:
            self._note_sets(evaluation)
        self._note_first_failure(report)
        self.progress = RunProgress(iteration, metrics.total_tokens, run.engines.save())
        success = None if evaluation is None else evaluation.success
        best = success is not None and checkpoint.is_best(self.session.directory, success)
        if schedule.saves(iteration) or best or failure:
            self._save(f"stopped after iteration {iteration}; " if failure else "", success)
        if failure:
            raise failure

    def _evaluated(
        self, report: Report, clock: PhaseClock
    ) -> tuple[Evaluation | None, ActorError | WeightError | None]:
        """The evaluation after an iteration if one is due, and what failed in it or in the broadcast before it."""
        if report.failure is not None or not self.session.schedule.evaluates(report.iteration):
            return None, report.failure
        try:
            return self._evaluate(report.iteration, clock), None
        except (ActorError, WeightError) as error:
            return None, error
        except KeyboardInterrupt:
            logger.warning("iteration %d is not evaluated: interrupted; a resume does it", report.iteration)
            self.evaluated = False
            return None, None

    def _evaluate(self, iteration: int, clock: PhaseClock) -> Evaluation:
        """The evaluation after an iteration (0: before training), recorded in evaluations.jsonl and evaluations/. A
        signal drops it before it is recorded, or waits."""
        run, directory = self.session.run, self.session.directory
        with self.stop.interruptible():
            result = clock.timed("evaluate", evaluate_policy, run.pool, run.task, self.session.schedule.evaluation)
        append_evaluation(directory.evaluations, iteration, result)
        rows = list(response_rows(result, run.task, f"iteration {iteration}"))
        write_responses(directory.responses / f"{iteration:06d}.jsonl", rows)
        run.sources.evaluated([*result.greedy, *result.sampled])
        return result

    def _note_sets(self, evaluation: Evaluation) -> None:
        """Show an evaluation as a table if it has evaluation sets."""
        if evaluation.sets:
            for line in evaluation_table(evaluation_record(evaluation)):
                self.outputs.note(line)

    def _note_first_failure(self, report: Report) -> None:
        """Say once why a response has no verdict."""
        failed = next((one.verdict for one in report.trained if one.verdict.judge_failed), None)
        if failed is not None and not self.failed_judge:
            self.failed_judge = failed.detail
            self.outputs.note(f"a response without a verdict: {failed.detail}; it has the reward {failed.reward:g}")

    def _save(self, reason: str, success: float | None = None, *, again: bool = False) -> None:
        """Write and report the checkpoint of the last complete iteration, unless it is already the latest and not to be
        written `again`. `success`: on held-out problems."""
        directory, progress = self.session.directory, self.progress
        copied, begun = "", time.monotonic()
        if checkpoint.saved(directory) == progress.iteration and not again:
            path = checkpoint.latest(directory)
        else:
            keep = self.session.schedule.keep_checkpoints
            path = checkpoint.save(directory, self.session.run, progress, keep, success)
            copied = f", written in {time.monotonic() - begun:.1f} s{self.session.mirror(path.name)}"
        self.outputs.note(f"{reason}checkpoint {path}{copied}")
