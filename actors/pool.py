"""The rollout actors seen from the driver: starts go in, trajectories come out, even if single actors fail.

Invariants: every start yields each of its samples exactly once, or is quarantined as a whole. An engine generates only
with the current weights, once acknowledged. Every wait has a deadline.

An engine gets at most its share of the open samples, and at most 1.25 x `rollout.max_running`. Others wait in the
ledger, and an engine with room answers early.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray

from actors.actor import StepResult
from actors.handle import ActorHandle, EngineSpec, Kind, Request, answers, error_text, weights_lost
from actors.ledger import Ledger, Queues, check_room, refill_at, sample_limit, tell_dropped
from core.errors import ActorError, LearnerError, RetrospectError, WeightError
from core.records import FloatArray, IntArray, Rollout, Sampling, Start
from core.weights import Acknowledgement, WeightHandle

CALL_SECONDS, STREAM_SECONDS = 0.5, 0.2
"""How long an engine steps before it answers: in `generate`, and after `submit`, because new weights wait for it."""
ANSWER_SECONDS = 600.0
"""How long an actor may give no answer (they come several times a second); then it counts as hung."""
INCIDENT_SECONDS = 60.0  # losses of different actors within it are one incident: a node is lost, or memory runs out

logger = logging.getLogger("retrospect.actors")
RESTART_WINDOW = 3600.0  # seconds that `rollout.max_restarts` is counted over


class RolloutPool:
    """`rollout.actors` rollout actors, all serving. A start that makes engines raise, or whose state cannot be rebuilt,
    is passed to `quarantine`, with the reason. Raises ModelError when the model cannot be loaded and ActorError when an
    actor does not start."""

    def __init__(self, spec: EngineSpec, quarantine: Callable[[Start, str], None] = lambda _, __: None) -> None:
        config = spec.config
        self.restarts = self.quarantined = self.dropped = 0  # actors, starts and episodes since the run began
        self.stopping = False  # another thread sets it: `pump` raises ActorError
        self._config = config
        self._budget = RestartBudget(config.max_restarts, RESTART_WINDOW)
        self._report = quarantine
        self._bad: dict[tuple[str, bytes], str] = {}  # `_context`s of quarantined starts, and why
        self._lost: deque[Start] = deque()  # replayed ones of these starts, until `take_lost` returns them
        self._reported: set[bool] = set()  # kinds of dropped episodes that were said
        self._error: RetrospectError | None = None  # why the pool ended
        self._weights: WeightHandle | None = None
        self._current: tuple[int, str] | None = None  # version and digest of the weights; None while they are swapped
        self._weights_lost = False  # the process that published them has died
        self._busy, self._seconds = 0.0, CALL_SECONDS
        self._ledger = Ledger()
        self._spec = spec
        self._actors = [ActorHandle(index, spec) for index in range(config.actors)]
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def idle(self) -> bool:
        """Whether `pump` has nothing to do."""
        return self._weights_lost or not (self._ledger.open or any(actor.requests for actor in self._actors))

    def check(self) -> None:
        """Raises LearnerError when engines wait for new weights, because the current ones are lost with the learner."""
        if self._weights_lost:
            raise LearnerError("the weights of the rollout actors were lost: the process that published them has died")

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Rollout]:
        """All samples of all starts, before all submitted, ordered by start and sample, without quarantined starts and
        episodes that environments dropped.
        Raises ConfigError when one does not fit; ActorError after too many restarts; LearnerError as `check`."""
        self._add(starts, sampling, urgent=True)
        while not self._ledger.finished(starts):
            if self._weights_lost:
                self.abandon()  # the caller may generate the same starts again after a restart of the learner
            self.check()
            self.pump()
        return [trajectory for start in starts for trajectory in self._ledger.collect(start.id)]

    def submit(self, starts: Sequence[Start], sampling: Sampling) -> None:
        """Queue starts; `pump` generates them and `collect` returns them. Raises ConfigError when one does not fit."""
        self._seconds = STREAM_SECONDS
        self._add(starts, sampling, urgent=False)

    def collect(self) -> list[tuple[str, list[Rollout]]]:
        """Remove and return the complete starts in order: (start id, its trajectories; none if quarantined)."""
        return [(start_id, self._ledger.collect(start_id)) for start_id in self._ledger.complete]

    def take_lost(self) -> list[Start]:
        """Remove and return the replayed starts that were quarantined: their states are of no use."""
        return [self._lost.popleft() for _ in range(len(self._lost))]  # the pool's thread may add others meanwhile

    def abandon(self) -> None:
        """Drop everything that was submitted, also in the engines."""
        self._ledger.clear()
        self._ask_all(lambda actor: actor.abort.remote())

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """Swap the weights of every engine, now or when it starts; one acknowledgement each. Raises WeightError when
        they do not fit the model, ActorError when they were lost before every engine had read them."""
        self._weights, self._current, self._weights_lost = handle, None, False
        members = [actor.process for actor in self._actors if actor.serving]
        acknowledgements: list[Acknowledgement] = self._ask_all(
            lambda actor: actor.load_weights.remote(handle, members), "load"
        )
        for acknowledgement in acknowledgements:
            if acknowledgement.fallback:
                logger.warning(
                    "%s took the weights from the object store: %s", acknowledgement.engine, acknowledgement.fallback
                )
        self._current = (acknowledgements[0].version, acknowledgements[0].digest)
        return acknowledgements

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[engine][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
        shared = ray.put(list(sequences))
        return self._ask_all(lambda actor: actor.sequence_logprobs.remote(shared))

    def queues(self) -> Queues:
        """Where the samples are, and how long the engines have generated."""
        serving = sum(actor.serving for actor in self._actors)
        return Queues(self._ledger.waiting, self._ledger.running, self._busy, serving)

    def pids(self) -> list[int]:
        """Process ids of the actors. (The stream's thread may change `process` meanwhile.)"""
        return [process.pid for actor in self._actors if (process := actor.process)]

    def pump(self) -> None:
        """One round: give work to idle engines, accept answers. Raises what `_replace` raises, also in later calls."""
        if self.stopping:
            raise ActorError("the rollout pool is closing")
        if self._error is not None:
            raise self._error
        try:
            self._round()
        except RetrospectError as error:
            self._error = error
            raise

    def close(self) -> None:
        """End all actor processes."""
        for actor in self._actors:
            actor.kill()

    def _start(self) -> None:
        for actor in self._actors:
            self._launch(actor)
        while not all(actor.serving for actor in self._actors):
            for actor, request, answer in answers(self._actors, CALL_SECONDS):
                if isinstance(answer, RetrospectError):
                    raise answer
                if isinstance(answer, BaseException):
                    raise ActorError(f"{actor.name} did not start: {actor.explain(answer)}") from None
                request.accept(answer)

    def _launch(self, actor: ActorHandle) -> None:
        """Start an actor. Its engine gets the current weights before any work."""

        def _serve(_: Any) -> None:
            actor.serving = True
            if (weights := self._weights) is not None and not self._weights_lost:
                actor.ask(lambda remote: remote.load_weights.remote(weights), ANSWER_SECONDS, lambda _: None, "load")

        actor.launch(_serve)

    def _round(self) -> None:
        for actor in self._actors:
            self._verify(actor)
        serving = max(1, sum(actor.serving for actor in self._actors))
        for actor in self._actors:
            self._assign(actor, serving)
        for actor, request, answer in answers(self._actors, self._seconds):
            if isinstance(answer, BaseException):
                self._replace(actor, answer, request)
                continue
            if request.kind == "load":
                actor.acknowledged = (answer.version, answer.digest)
            request.accept(answer)
            if request.kind == "generate":
                self._busy += time.monotonic() - request.begun - answer.waited

    def _assign(self, actor: ActorHandle, serving: int) -> None:
        """Ask an idle engine to generate: new samples if it has room, and those that it has."""
        if actor.requests or not actor.serving or self._weights_lost:
            return
        ledger, config, seconds = self._ledger, self._config, self._seconds
        before = ledger.in_flight(actor.name)
        room = sample_limit(before, ledger, serving, config.max_running) - before
        jobs = ledger.take(actor.name, room)
        if samples := ledger.in_flight(actor.name):
            refill = refill_at(samples, config.max_running) if ledger.waiting else 0
            accept = partial(self._accept, actor)
            actor.ask(lambda remote: remote.generate.remote(jobs, seconds, refill), ANSWER_SECONDS, accept, "generate")

    def _accept(self, actor: ActorHandle, result: StepResult) -> None:
        for start, continuation in self._ledger.accept(result.finished):
            self.dropped += 1
            if continuation.state_lost and _context(start) not in self._bad:
                self._quarantine(start, continuation.dropped)
            tell_dropped(start, continuation, self._reported)
        expected = self._ledger.in_flight(actor.name)
        if result.unfinished < expected:
            self._replace(actor, ActorError(f"its engine has {result.unfinished} samples of {expected} in flight"))

    def _add(self, starts: Sequence[Start], sampling: Sampling, urgent: bool) -> None:
        check_room(starts, sampling, self._config.max_prompt_tokens, self._config.max_response_tokens)
        self._ledger.add(starts, sampling, urgent)
        for start in starts:
            if self._bad and (reason := self._bad.get(_context(start))):
                self._ledger.drop(start.id)
                self._quarantine(start, reason)

    def _quarantine(self, start: Start, reason: str) -> None:
        """Leave out a start, and every later start with the same context."""
        self.quarantined += 1
        self._bad[_context(start)] = reason
        if not start.from_root:
            self._lost.append(start)
        self._report(start, reason)

    def _ask_all(self, call: Callable[[Any], Any], kind: Kind = "ask") -> list[Any]:
        """Answers of all engines that serve, in order, at least one. An engine that fails meanwhile is left out."""
        answers: dict[int, Any] = {}
        while not answers:
            requests: list[tuple[ActorHandle, Request]] = []
            for actor in self._actors:
                if actor.serving:
                    accept = partial(answers.__setitem__, actor.index)
                    requests.append((actor, actor.ask(call, ANSWER_SECONDS, accept, kind)))
            self.pump()
            while any(request in actor.requests for actor, request in requests):
                self.pump()
            if kind == "load":
                self.check()
        return [answers[index] for index in sorted(answers)]

    def _verify(self, actor: ActorHandle) -> None:
        """Replace an engine that started during a weight swap if it acknowledged other weights than the rest."""
        if None not in (self._current, actor.acknowledged) and self._current != actor.acknowledged:
            error = ActorError(f"it acknowledged weights {actor.acknowledged}, the others {self._current}")
            self._replace(actor, error)

    def _replace(self, actor: ActorHandle, error: BaseException, request: Request | None = None) -> None:
        """Queue a failed actor's samples again and start another process. If it raised while it generated, a start may
        be the cause: `Ledger.requeue` finds it, for one restart, and it is quarantined. Raises `error` if it is a
        WeightError (a restart would load the same weights); ActorError when the budget is used up."""
        if request is not None and request.kind == "load" and weights_lost(error):
            self._weights_lost = True  # the engine still works and keeps its samples
            logger.warning("%s: %s", actor.name, error_text(error))
            return
        reason = actor.explain(error)
        raised = isinstance(error, RetrospectError | ray.exceptions.RayTaskError)
        generating = request is not None and request.kind == "generate"
        cause = self._ledger.requeue(actor.name, raised=raised and generating)
        actor.kill()
        if isinstance(error, WeightError):
            raise error
        if cause is not None:
            self._quarantine(cause, error_text(error))  # charged when its first engine raised
        else:
            self._budget.charge(actor.name, reason)
        self.restarts += 1
        message = f"{actor.name}: {reason}; restart {self.restarts}"
        logger.warning(message)
        print(message, flush=True)
        self._launch(actor)


class RestartBudget:
    """At most `allowed` losses of rollout actors within any `window` seconds. Losses of different actors within
    INCIDENT_SECONDS count once; a second one of the same actor is new: it dies after every start."""

    def __init__(self, allowed: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._window, self._clock = allowed, window, clock
        self._incidents: list[tuple[float, set[str]]] = []  # when it began, and which actors were lost

    @property
    def spent(self) -> int:
        """Incidents within the window that ends now."""
        self._incidents = [incident for incident in self._incidents if self._clock() - incident[0] < self._window]
        return len(self._incidents)

    def charge(self, name: str, reason: str) -> None:
        """Count the loss of actor `name`. Raises ActorError, with the one-line `reason`, when it is one too many."""
        spent, now = self.spent, self._clock()
        if self._incidents and now - self._incidents[-1][0] < INCIDENT_SECONDS and name not in self._incidents[-1][1]:
            self._incidents[-1][1].add(name)
        elif spent < self._allowed:
            self._incidents.append((now, {name}))
        else:
            raise ActorError(
                f"{name}: {reason}; rollout.max_restarts = {self._allowed} within {self._window:g} s is used up: look "
                "into its log, or allow more restarts"
            )


def _context(start: Start) -> tuple[str, bytes]:
    """What its engine reads; with a world also which problem it is, because worlds may begin with the same words."""
    return start.problem_id if start.world else "", start.context_ids.tobytes()
