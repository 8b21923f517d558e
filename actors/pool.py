"""The driver's view of generation: starts in, trajectories out, whatever becomes of single engines.

Called by the trainer's loop and, as a `WeightReceiver`, by the learner's broadcast; in asynchronous mode by the thread of
`actors/stream.py`. Invariants: every start yields each of its samples exactly once, or is quarantined as a whole; an engine
only ever generates with the current weights, acknowledged; no wait is without a deadline.

    ledger (waiting | out | done)  --jobs-->   turn of rollout-0, rollout-1, ...   stepping for a moment
                 ^                                          |
                 +------ finished samples, flat arrays -----+

An engine holds at most its share of what is open, a quarter more samples than it can decode at once, and
`rollout.tokens_in_flight` tokens; the rest waits in the ledger for whoever is free first. A turn ends early when an engine has
room and the ledger has work. Between two turns an engine does its duties: new weights, probes. Its next call is with it before the
one under way ends.

`config.actors` engines must be there: those that are furthest, whatever place they have; the others are guests, which wait for
room as long as it takes and make room for what must be there.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from actors.actor import Process, Ready, Turn
from actors.budget import GUEST_TRIES, Budget, Doubts, Quarantine
from actors.ledger import CALL_SECONDS, UNBOUNDED, Call, Ledger, Queues, check_room, refill_at, share, stretch
from actors.slot import Duty, EngineRecipe, Slot, answers, describe, explain, node_died, nodes_alive, rank, weights_lost
from core.config import Device, RolloutConfig
from core.errors import ActorError, RetrospectError, WeightError
from core.records import FloatArray, IntArray, Start, Trajectory
from core.sampling import Sampling
from core.weights import Acknowledgement, WeightHandle

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
        self._config = config
        self._losses = Budget(config.max_restarts, config.restart_window)
        self._quarantine = Quarantine(config.max_restarts, config.restart_window, quarantine)
        self._doubts = Doubts()
        self._fatal: RetrospectError | None = None  # what has ended the rounds
        self._handle: WeightHandle | None = None
        self._current: tuple[int, str] | None = None  # version and digest of the weights; None while they are swapped
        self._orphaned = False  # the weights are lost with the process that had published them
        self._inviting = True  # whether guests may come
        self._stopping = False
        self._busy, self._stretch = 0.0, CALL_SECONDS
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
    def quarantined(self) -> int:
        """Starts that no engine could generate since the run began."""
        return self._quarantine.count

    @property
    def idle(self) -> bool:
        """Whether there is nothing to pump for, for the time being."""
        return self._stranded or not (self._ledger.open or any(slot.busy for slot in self._slots))

    @property
    def _stranded(self) -> bool:
        """Whether no engine has weights to generate with, nor can get any."""
        return self._orphaned and all(slot.acknowledged is None for slot in self._slots)

    def check(self) -> None:
        """Raises ActorError when no engine can generate before it is given new weights."""
        if self._stranded:
            raise ActorError("no rollout actor has weights: they were lost with the rank that had published them")

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Trajectory]:
        """All samples of all starts, ordered by start and sample; before all that has been submitted.

        Those of quarantined starts are missing. Raises ConfigError when a start does not fit, ActorError after more restarts than
        `max_restarts`.
        """
        call = self._enter(starts, sampling, urgent=True)
        while call.left:
            self.check()
            self.pump()
        return [trajectory for start in starts for trajectory in self._ledger.collect(start.id)]

    def submit(self, starts: Sequence[Start], sampling: Sampling) -> None:
        """Queue starts; `pump` generates them and `collect` gives them out. Raises ConfigError when one does not fit."""
        self._stretch = stretch(len(self._slots))
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

        `handle` is kept: an engine that comes later begins with it. Raises WeightError for unfit weights, and ActorError when they
        were lost before every engine had read them: then nothing is wrong with the engines, and others may be given.
        """
        self._handle, self._current, self._orphaned, self._inviting = handle, None, False, True
        for slot in self._slots:
            slot.acknowledged = None
        members = [slot.process for slot in self._slots if slot.serving and not slot.leaving]
        load = lambda actor: actor.load_weights.remote(handle, members)  # noqa: E731  a successor is another process, no member
        said: list[Acknowledgement] = self._ask_all(load, loads=True)
        for answer in said:
            if answer.detour:
                logger.warning("%s took the weights from the object store: %s", answer.engine, answer.detour)
        self._current = (said[0].version, said[0].digest)
        return said

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

    def make_room(self) -> None:
        """End all guests until new weights come: something that must be there needs a place."""
        self._inviting = False
        for slot in [slot for slot in self._slots if slot.guest]:
            self._ledger.give_back(slot.name)
            slot.kill()
            self._slots.remove(slot)

    def remove(self, name: str) -> None:
        """Let an engine finish what it has and end it (in a run, engines leave with their nodes only). Raises ActorError if it is the
        last, or there is none of this name.
        """
        staying = [slot for slot in self._slots if not slot.leaving]
        leaving = [slot for slot in staying if slot.name == name]
        if not leaving or len(staying) == 1:
            raise ActorError(f"{name}: cannot leave, it is the last rollout actor or not there")
        leaving[0].leaving = True
        self._places -= 1
        self._rank()
        self._let_go()

    def queues(self) -> Queues:
        """How things stand."""
        ledger, serving = self._ledger, sum(slot.serving for slot in self._slots)
        return Queues(ledger.waiting, ledger.running, self._busy, serving)

    def pids(self) -> list[int]:
        """Process ids of the engines that are up or on their way, for measurements."""
        return [process.pid for slot in self._slots if (process := slot.process)]  # a stream's thread may replace one

    def pump(self) -> None:
        """One round: work for the idle engines, then what the busy ones answer; waits no longer than a turn.

        Raises what `_lose` raises, now and ever after.
        """
        if self._stopping:
            raise ActorError("the rollout pool is closing")
        if self._fatal is not None:
            raise self._fatal
        try:
            self._round()
        except RetrospectError as error:
            self._fatal = error
            raise

    def _round(self) -> None:
        for _ in range(len(self._slots), self._places if self._inviting else 0):
            self.add()  # guests, once the run is under way: the parts that must be there have their places by now
        for slot in self._slots:
            self._verify(slot)
        self._sharing = max(1, sum(slot.serving and not slot.leaving for slot in self._slots))
        for slot in self._slots:
            slot.proceed()
            self._offer(slot)
        for slot, answer in answers([slot for slot in self._slots if slot.call is not None], self._stretch / 2):
            if isinstance(answer, BaseException):
                self._lose(slot, answer)
            else:
                slot.accept(answer)
        self._let_go()
        for loss in self._doubts.settle(nodes_alive):
            self._losses.charge(loss.name, loss.what)

    def stop(self) -> None:
        """Let the thread that pumps end with an ActorError, until `resume`; called from another."""
        self._stopping = True

    def resume(self) -> None:
        """After `stop`: another may pump."""
        self._stopping, self._stretch = False, CALL_SECONDS

    def close(self) -> None:
        """End all engine processes."""
        for slot in self._slots:
            slot.kill()

    def _start(self) -> None:
        """Bring all engines up at the same time; most of it is importing and loading."""
        for slot in self._slots:
            self._launch(slot)
        while busy := [slot for slot in self._slots if slot.call is not None]:
            for slot, answer in answers(busy, CALL_SECONDS):
                if isinstance(answer, RetrospectError):
                    raise answer
                if isinstance(answer, BaseException):
                    raise ActorError(f"{slot.name} did not start: {explain(slot, answer)}") from None
                slot.accept(answer)

    def _enter(self, starts: Sequence[Start], sampling: Sampling, urgent: bool) -> Call:
        check_room(starts, sampling, self._config.max_prompt_tokens, self._config.max_response_tokens)
        call = self._ledger.add(starts, sampling, urgent)
        for start in self._quarantine.again(starts):
            self._ledger.drop(start.id)
        return call

    def _launch(self, slot: Slot) -> None:
        """Process, then engine, then the current weights; only then work."""

        def begin(process: Process) -> None:
            """It has a place."""
            slot.load(process, serve)
            self._rank()

        def serve(_: Ready) -> None:
            """Its engine is loaded."""
            slot.serving, slot.failures = True, 0
            self._rank()
            handle = None if self._orphaned else self._handle
            if handle is not None and not any(duty.loads for duty in slot.duties):
                load = lambda actor: actor.load_weights.remote(handle)  # noqa: E731
                slot.duties.appendleft(Duty(load, lambda _: None, loads=True))

        slot.acknowledged = None
        slot.launch(begin)
        self._rank()

    def _rank(self) -> None:
        if len(self._slots) > self._config.actors:  # else all of them must be there
            rank([slot for slot in self._slots if not slot.leaving], self._config.actors)

    def _verify(self, slot: Slot) -> None:
        """An engine that came while weights were swapped must have what the learner has found right in the others."""
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
        found: dict[int, Any] = {}
        while not found:
            asked = []
            for slot in self._slots:
                if slot.serving and not slot.leaving:
                    accept = lambda answer, index=slot.index: found.update({index: answer})  # noqa: E731
                    asked.append((slot, Duty(call, accept, loads)))
                    slot.duties.append(asked[-1][1])
            self.pump()
            while any(duty in slot.duties for slot, duty in asked):
                self.pump()
            if loads and self._orphaned:
                raise ActorError(
                    "the weights were lost with the process that had published them, before all engines had them"
                )
        return [found[index] for index in sorted(found)]

    def _offer(self, slot: Slot) -> None:
        """Give an engine its next duty, or else a turn, if there is anything to generate: also beside a turn that is half over, so that
        the engine does not wait for the driver between two (earlier if that turn may be over at once: it brought nothing new).
        """
        early = slot.call is not None and time.monotonic() - slot.begun < self._stretch / 2
        if not slot.free() or (early and not slot.duties and (slot.brought or not self._ledger.waiting)):
            return
        if slot.duties:
            duty = slot.duties[0]

            def done(answer: Any) -> None:
                """The duty is fulfilled."""
                slot.duties.popleft()
                if duty.loads:
                    slot.acknowledged = (answer.version, answer.digest)
                duty.accept(answer)

            slot.begin(duty.call, self._config.deadline, done)
            return
        if self._handle is not None and slot.acknowledged is None:
            return  # its weights are lost: there is no work for it until there are others
        held = self._ledger.held(slot.name)
        room = share(held.samples, self._ledger, self._sharing, self._config.max_running) - held.samples
        work = None if slot.leaving else self._ledger.take(slot.name, room, self._config.tokens_in_flight or UNBOUNDED)
        if work or (held.samples and not early):
            jobs, sampling = (work.jobs, work.sampling) if work else ([], None)
            more = self._ledger.waiting and not slot.leaving
            refill = refill_at(held.samples, self._config.max_running) if more else 0
            slot.begin(
                lambda actor: actor.turn.remote(jobs, sampling, self._stretch, refill),
                self._config.deadline,
                lambda turn: self._accept(slot, turn),
                generating=True,
                samples=sum(len(job.samples) for job in jobs),
            )

    def _accept(self, slot: Slot, turn: Turn) -> None:
        """Enter what a turn brought."""
        self._busy += time.monotonic() - slot.begun
        self._ledger.accept(turn.batch)
        held = self._ledger.held(slot.name).samples - (slot.queued.samples if slot.queued else 0)
        if turn.unfinished < held:
            self._lose(slot, ActorError(f"its engine has {turn.unfinished} samples of {held} in flight"))

    def _lose(self, slot: Slot, error: BaseException) -> None:
        """An engine has failed: take its work back, find the request that is to blame, and replace it.

        Raises ActorError when too many requests are to blame, and what `_replace` raises.
        """
        loading = slot.serving and not slot.generating and bool(slot.duties) and slot.duties[0].loads
        if loading and weights_lost(error):
            slot.duties.popleft()  # nothing is wrong with the engine; it keeps what it has
            self._orphaned = True
            logger.warning("%s: %s", slot.name, describe(error))
            return
        raised = slot.generating and isinstance(error, ray.exceptions.RayTaskError)
        guilty = self._ledger.give_back(slot.name, raised)
        if guilty is not None:
            if not self._quarantine.add(guilty.start, describe(error)):
                raise ActorError(
                    f"{slot.name}: engines raise whatever they are given: {explain(slot, error)}; starts quarantined within "
                    f"{self._config.restart_window:g} s: rollout.max_restarts = {self._config.max_restarts} and this one"
                ) from None
            self._losses.forgive(guilty.before)  # these were the request's fault too
        self._replace(slot, error, excused=guilty is not None)

    def _replace(self, slot: Slot, error: BaseException, excused: bool) -> None:
        """Kill a failed engine's process and start another. `excused`: it does not count as one of the allowed restarts.

        Raises `error` if unfit weights are to blame (they would be as unfit again), ActorError when the restarts are used up.
        """
        what, process, serving = explain(slot, error), slot.process, slot.serving
        slot.kill()
        if isinstance(error, WeightError):
            raise error
        raised = isinstance(error, RetrospectError | ray.exceptions.RayTaskError)
        slot.failures += not serving and not node_died(error)
        if slot.guest and not serving and (raised or slot.failures >= GUEST_TRIES):
            self._slots.remove(slot)
            self._places -= 1
            logger.warning("%s cannot join and is given up: %s", slot.name, what)
            return
        if slot.guest and process is not None and serving and not raised and not excused:
            self._doubts.add(slot.name, process.node, what)  # nodes come and go: that is no fault of the engine
        elif not excused and not (slot.guest and (node_died(error) or not serving)):
            self._losses.charge(slot.name, what)  # it must be there, or has served; else GUEST_TRIES is the bound
        self.restarts += 1
        logger.warning("%s: %s; restart %d", slot.name, what, self.restarts)
        self._launch(slot)
