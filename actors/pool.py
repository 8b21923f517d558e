"""The driver's view of generation: starts in, trajectories out, whatever becomes of single engines.

Called by the trainer's loop and, as a `WeightReceiver`, by the learner's broadcast; in asynchronous mode by the thread of
`actors/stream.py`. Invariants: every start yields each of its samples exactly once, or is quarantined as a whole; an engine
only ever generates with the current weights, acknowledged; no wait is without a deadline.

    ledger (waiting | out | done)  --jobs-->   turn of rollout-0, rollout-1, ...   stepping for TURN_SECONDS
                 ^                                          |
                 +------ finished samples, flat arrays -----+

An engine holds at most its share of what is open, a quarter more samples than it can decode at once, and
`rollout.tokens_in_flight` tokens; the rest waits in the ledger for whoever is free first. A turn ends early when an engine has
room and the ledger has work. Between two turns an engine does its duties: new weights, probes.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from actors.actor import Process, Ready, Turn
from actors.ledger import UNBOUNDED, Call, Ledger, Queues, check_room
from actors.slot import Duty, EngineRecipe, Slot, describe
from core.config import Device, RolloutConfig
from core.errors import ActorError, RetrospectError, WeightError
from core.records import FloatArray, IntArray, Start, Trajectory
from core.sampling import Sampling
from core.weights import Acknowledgement, WeightHandle

TURN_SECONDS = 0.5
"""Longest stretch of engine steps between two looks at the driver: how long new weights or work may have to wait."""
AHEAD = 1.25
"""Samples in an engine, as a multiple of those it decodes at once: the next ones are there when others finish."""
REFILL = 8
"""A turn with work waiting ends when one of so many samples has finished."""
SLOW = 0.25
"""Share of the deadline after which an actor that has not answered is named."""

logger = logging.getLogger("retrospect.actors")


class RolloutPool:
    """`config.actors` engines, and up to `config.max_actors` as the cluster has room. Returns when the first can serve.

    `quarantine` is told every start that an engine cannot generate, with the reason. As many as `max_restarts` in a window may be
    quarantined: more mean that the engines, not the starts, are at fault. Raises ModelError when the model cannot be
    loaded and ActorError when an engine does not come up.
    """

    def __init__(
        self,
        model_path: str,
        config: RolloutConfig,
        *,
        dtype: str,
        device: Device,
        seed: int,
        cpus: float,
        quarantine: Callable[[Start, str], None] = lambda _, __: None,
    ) -> None:
        self.restarts = 0
        self.quarantined = 0
        self._config = config
        self._tell = quarantine
        self._recent: list[float] = []  # when engines were restarted, as far as it counts
        self._blamed: list[float] = []  # when a start was found to be what made engines raise
        self._poisoned: set[bytes] = set()  # contexts that made engines raise
        self._handle: WeightHandle | None = None
        self._current: tuple[int, str] | None = None  # version and digest of the weights; None while they are swapped
        self._stopping = False
        self._busy = 0.0
        self._sharing = 1  # engines that the open samples are divided among
        self._places = max(config.actors, config.max_actors)
        self._ledger = Ledger()
        self._recipe = EngineRecipe(model_path, config, dtype, device, seed, cpus)
        self._slots = [Slot(index, self._recipe) for index in range(config.actors)]
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def idle(self) -> bool:
        """Whether there is nothing to pump for."""
        return self._ledger.open == 0 and not any(slot.call or slot.duties for slot in self._slots)

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Trajectory]:
        """All samples of all starts, ordered by start and sample; before all that has been submitted.

        Those of quarantined starts are missing. Raises ConfigError when a start does not fit, ActorError after more restarts than
        `max_restarts`.
        """
        call = self._enter(starts, sampling, urgent=True)
        while call.left:
            self.pump()
        return [trajectory for start in starts for trajectory in self._ledger.collect(start.id)]

    def submit(self, starts: Sequence[Start], sampling: Sampling) -> None:
        """Queue starts; `pump` generates them and `collect` gives them out. Raises ConfigError when one does not fit."""
        self._enter(starts, sampling, urgent=False)

    def collect(self) -> list[tuple[str, list[Trajectory]]]:
        """What is complete: (start id, its trajectories by sample; none if it was quarantined), in the order of completion."""
        return [(start_id, self._ledger.collect(start_id)) for start_id in self._ledger.complete]

    def abandon(self) -> None:
        """Forget everything that was submitted, in the engines too."""
        self._ledger.clear()
        self._ask_all(lambda actor: actor.abort.remote())

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """Swap the weights of every engine; one acknowledgement each, in the order of the engines. Generation goes on meanwhile.

        `handle` is kept: an engine that comes later begins with it. Raises WeightError for unfit weights.
        """
        self._handle, self._current = handle, None
        for slot in self._slots:
            slot.acknowledged = None
        members = [slot.process for slot in self._slots if slot.serving and not slot.leaving]
        load = lambda actor: actor.load_weights.remote(handle, members)  # noqa: E731  a successor is another process, no member
        answers: list[Acknowledgement] = self._ask_all(load, loads=True)
        for answer in answers:
            if answer.detour:
                logger.warning("%s took the weights from the object store: %s", answer.engine, answer.detour)
        self._current = (answers[0].version, answers[0].digest)
        for slot in self._slots:
            if slot.name not in {
                answer.engine for answer in answers
            }:  # it came up meanwhile: the learner does not see it
                self._verify(slot)
        return answers

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[engine][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
        given = ray.put(list(sequences))
        return self._ask_all(lambda actor: actor.sequence_logprobs.remote(given))

    def add(self) -> str:
        """Make place for one more engine and return its name; it gets work once it is up and has the current weights."""
        taken = {slot.index for slot in self._slots}
        slot = Slot(next(n for n in range(len(taken) + 1) if n not in taken), self._recipe, guest=True)
        self._slots.append(slot)
        self._places = max(self._places, len(self._slots))
        self._launch(slot)
        return slot.name

    def remove(self, name: str) -> None:
        """Let an engine finish what it has and end it. Raises ActorError if it is the last, or there is none of this name."""
        staying = [slot for slot in self._slots if not slot.leaving]
        leaving = [slot for slot in staying if slot.name == name]
        if not leaving or len(staying) == 1:
            raise ActorError(f"{name}: cannot leave, it is the last rollout actor or not there")
        leaving[0].leaving = True
        self._places -= 1
        self._let_go()

    def queues(self) -> Queues:
        """How things stand."""
        running = sum(self._ledger.held(slot.name).samples for slot in self._slots)
        serving = sum(slot.serving for slot in self._slots)
        return Queues(self._ledger.waiting, running, self._busy, serving)

    def pids(self) -> list[int]:
        """Process ids of the engines that are up or on their way, for measurements."""
        processes = [slot.process for slot in self._slots]  # read once: a stream's thread may be replacing one
        return [process.pid for process in processes if process is not None]

    def pump(self) -> None:
        """One round: work for the idle engines, then what the busy ones answer; waits no longer than a turn.

        Raises what `_lose` raises.
        """
        if self._stopping:
            raise ActorError("the rollout pool is closing")
        for _ in range(len(self._slots), self._places):
            self.add()  # guests, once the run is under way: the parts that must be there have their places by now
        self._sharing = max(1, sum(slot.serving and not slot.leaving for slot in self._slots))
        for slot in self._slots:
            if slot.call is None:
                self._offer(slot)
        for slot, answer in self._answers([slot for slot in self._slots if slot.call is not None]):
            if isinstance(answer, BaseException):
                self._lose(slot, answer)
            else:
                slot.accept(answer)
        self._let_go()

    def stop(self) -> None:
        """Let the thread that pumps end with an ActorError; called from another."""
        self._stopping = True

    def close(self) -> None:
        """End all engine processes."""
        for slot in self._slots:
            slot.kill()

    def _start(self) -> None:
        """Bring all engines up at the same time; most of it is importing and loading."""
        for slot in self._slots:
            self._launch(slot)
        while busy := [slot for slot in self._slots if slot.call is not None]:
            for slot, answer in self._answers(busy):
                if isinstance(answer, RetrospectError):
                    raise answer
                if isinstance(answer, BaseException):
                    raise ActorError(f"{slot.name} did not start: {self._what(slot, answer)}") from None
                slot.accept(answer)

    def _enter(self, starts: Sequence[Start], sampling: Sampling, urgent: bool) -> Call:
        config = self._config
        check_room(starts, sampling, config.max_prompt_tokens, config.max_response_tokens)
        call = self._ledger.add(starts, sampling, urgent)
        for start in starts if self._poisoned else ():
            if start.context_ids.tobytes() in self._poisoned:
                self._ledger.drop(start.id)
                self._quarantine(start, "engines have raised on its context before")
        return call

    def _launch(self, slot: Slot) -> None:
        """Process, then engine, then the current weights; only then work."""

        def load(process: Process) -> None:
            slot.load(process, serve)

        def serve(_: Ready) -> None:
            slot.serving = True
            if self._handle is not None and not any(duty.loads for duty in slot.duties):
                handle = self._handle
                slot.duties.appendleft(Duty(lambda actor: actor.load_weights.remote(handle), check, loads=True))

        def check(_: Acknowledgement) -> None:
            self._verify(slot)

        slot.acknowledged = None
        slot.launch(load)

    def _verify(self, slot: Slot) -> None:
        """An engine that came later must have what the learner has found right in the others."""
        if None not in (self._current, slot.acknowledged) and self._current != slot.acknowledged:
            self._lose(slot, ActorError(f"it acknowledged weights {slot.acknowledged}, the others {self._current}"))

    def _let_go(self) -> None:
        """End those that leave and have nothing left."""
        for slot in list(self._slots):
            if slot.leaving and not self._ledger.held(slot.name).samples and (slot.call is None or not slot.serving):
                slot.kill()
                self._slots.remove(slot)
                logger.info("%s has left", slot.name)

    def _ask_all(self, call: Callable[[Any], Any], loads: bool = False) -> list[Any]:
        """The same call on every engine that serves, at least one. What an engine that is lost would have said is left out."""
        answers: dict[int, Any] = {}
        while not answers:
            asked = []
            for slot in self._slots:
                if slot.serving and not slot.leaving:
                    accept = lambda answer, index=slot.index: answers.update({index: answer})  # noqa: E731
                    asked.append((slot, Duty(call, accept, loads)))
                    slot.duties.append(asked[-1][1])
            self.pump()
            while any(duty in slot.duties for slot, duty in asked):
                self.pump()
        return [answers[index] for index in sorted(answers)]

    def _offer(self, slot: Slot) -> None:
        """Give an idle engine its next duty, or else a turn, if there is anything to generate."""
        if not slot.serving:
            return
        if slot.duties:
            duty = slot.duties[0]

            def done(answer: Any) -> None:
                slot.duties.popleft()
                if duty.loads:
                    slot.acknowledged = (answer.version, answer.digest)
                duty.accept(answer)

            slot.begin(duty.call, self._config.deadline, done)
            return
        held = self._ledger.held(slot.name)
        work = None if slot.leaving else self._ledger.take(slot.name, self._room() - held.samples, self._tokens())
        if held.samples:
            jobs, sampling = (work.jobs, work.sampling) if work else ([], None)
            refill = self._refill(held.samples) if self._ledger.waiting and not slot.leaving else 0
            slot.begin(
                lambda actor: actor.turn.remote(jobs, sampling, TURN_SECONDS, refill),
                self._config.deadline,
                lambda turn: self._accept(slot, turn),
                generating=True,
            )

    def _room(self) -> int:
        """Samples that an engine may hold: its share of what is open, within what it decodes at once and a bit more."""
        return min(math.ceil(self._ledger.open / self._sharing), math.ceil(self._config.max_running * AHEAD))

    def _tokens(self) -> int:
        """Tokens that an engine may hold."""
        bound = self._config.tokens_in_flight
        return UNBOUNDED if bound is None else bound

    def _refill(self, held: int) -> int:
        """Samples in flight at which a turn ends early, because others wait."""
        return min(self._config.max_running, held - math.ceil(held / REFILL))

    def _accept(self, slot: Slot, turn: Turn) -> None:
        """Enter what a turn brought."""
        self._busy += time.monotonic() - slot.begun
        self._ledger.accept(turn.batch)
        held = self._ledger.held(slot.name).samples
        if turn.unfinished < held:
            self._lose(slot, ActorError(f"its engine has {turn.unfinished} samples of {held} in flight"))

    def _answers(self, busy: Sequence[Slot]) -> Iterator[tuple[Slot, Any]]:
        """Wait for the next answer of the busy slots: (slot, result or exception). A slot past its deadline is hung."""
        if not busy:
            return
        patience = max(0.0, min(TURN_SECONDS, *(slot.left() for slot in busy)))
        calls = [slot.call for slot in busy]
        ray.wait(calls, num_returns=1, timeout=patience)
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)  # all that are there, not just the first
        arrived = set(done)
        for slot in busy:
            if slot.call in arrived:
                yield slot, slot.answer()
            elif slot.left() <= 0:
                yield slot, TimeoutError(f"it hangs: no answer within {slot.patience:g} s")
            elif slot.serving and not slot.slow and slot.left() < (1 - SLOW) * slot.patience:
                slot.slow = True
                logger.warning(
                    "%s is slow: no answer within %g s%s", slot.name, SLOW * slot.patience, _also(slot.log())
                )

    def _lose(self, slot: Slot, error: BaseException) -> None:
        """An engine has failed: take its work back, find the request that is to blame, and replace it.

        Raises ActorError when too many requests are to blame, and what `_replace` raises.
        """
        raised = slot.generating and isinstance(error, ray.exceptions.RayTaskError)
        guilty = self._ledger.give_back(slot.name, raised)
        gone = slot.guest and slot.node_lost()  # nodes come and go: that is no fault of the engine
        if guilty is not None:
            self._blamed = self._counted(self._blamed)
            if len(self._blamed) >= self._config.max_restarts:
                raise ActorError(
                    f"{slot.name}: engines raise whatever they are given: {self._what(slot, error)}; starts quarantined within "
                    f"{self._config.restart_window:g} s: rollout.max_restarts = {self._config.max_restarts} and this one"
                ) from None
            self._blamed.append(time.monotonic())
            self._quarantine(guilty, describe(error))
            if self._recent:
                self._recent.pop()  # the time before was the request's fault too
        self._replace(slot, error, excused=guilty is not None or gone)

    def _quarantine(self, start: Start, reason: str) -> None:
        """A start is left out, now and whenever its context comes again."""
        self.quarantined += 1
        self._poisoned.add(start.context_ids.tobytes())
        self._tell(start, reason)

    def _counted(self, moments: Sequence[float]) -> list[float]:
        """Those within the window in which restarts and quarantines are counted."""
        now = time.monotonic()
        return [moment for moment in moments if now - moment < self._config.restart_window]

    def _replace(self, slot: Slot, error: BaseException, excused: bool) -> None:
        """Kill a failed engine's process and start another. `excused`: it does not count as one of the allowed restarts.

        Raises `error` if unfit weights are to blame (they would be as unfit again), ActorError when the restarts are used up.
        """
        what = self._what(slot, error)
        slot.kill()
        if isinstance(error, WeightError):
            raise error
        self._recent = self._counted(self._recent)
        if len(self._recent) >= self._config.max_restarts and not excused:
            raise ActorError(
                f"{slot.name}: {what}; rollout.max_restarts = {self._config.max_restarts} within "
                f"{self._config.restart_window:g} s is used up: look into its log, or allow more restarts"
            ) from None
        self._recent += [] if excused else [time.monotonic()]
        self.restarts += 1
        logger.warning("%s: %s; restart %d", slot.name, what, self.restarts)
        self._launch(slot)

    def _what(self, slot: Slot, error: BaseException) -> str:
        """What has happened to an actor, with the end of its log, in one line."""
        return describe(error) + _also(slot.log())


def _also(text: str) -> str:
    return f"; {text}" if text else ""
