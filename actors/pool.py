"""The driver's view of generation: starts in, trajectories out, whatever becomes of single engines.

Called by the trainer's loop and, as a `WeightReceiver`, by the learner's broadcast. Invariants: every start yields each
of its samples exactly once, in order; an engine only ever serves with the current weights; no wait is without a deadline.

    ledger (waiting | out | done)  --jobs-->   turn of rollout-0, rollout-1, ...   stepping for TURN_SECONDS
                 ^                                          |
                 +------ finished samples, flat arrays -----+

An engine holds at most its share of a call's samples and a quarter more than it can decode at once; the rest waits in the
ledger for whoever is free first. A turn ends early when an engine has room and the ledger has work.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from actors.actor import Ready, Turn
from actors.ledger import Ledger, check_room
from actors.slot import EngineRecipe, Slot, describe
from core.config import Device, RolloutConfig
from core.errors import ActorError, RetrospectError, WeightError
from core.records import FloatArray, IntArray, Start, Trajectory
from core.sampling import Sampling
from core.weights import Acknowledgement, WeightHandle

TURN_SECONDS = 0.5
"""Longest stretch of engine steps between two looks at the driver: how long new weights or work may have to wait."""
AHEAD = 1.25
"""Samples in an engine, as a multiple of those it decodes at once: the next ones are there when others finish."""

logger = logging.getLogger("retrospect.actors")


class RolloutPool:
    """`config.actors` engines. Starts them side by side and returns when all can serve.

    Raises ModelError when the model cannot be loaded and ActorError when an engine does not come up.
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
    ) -> None:
        self.restarts = 0
        self._recent: list[float] = []  # when engines were restarted, as far as it counts
        self._max_restarts = config.max_restarts
        self._window = config.restart_window
        self._deadline = config.deadline
        self._max_running = config.max_running
        self._max_prompt_tokens = config.max_prompt_tokens
        self._max_response_tokens = config.max_response_tokens
        self._handle: WeightHandle | None = None
        recipe = EngineRecipe(model_path, config, dtype, device, seed, cpus)
        self._slots = [Slot(index, recipe) for index in range(config.actors)]
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Trajectory]:
        """All samples of all starts, ordered by start and sample.

        Raises ConfigError when a start does not fit, ActorError after more restarts than `max_restarts`.
        """
        check_room(starts, sampling, self._max_prompt_tokens, self._max_response_tokens)
        ledger = Ledger(starts, sampling.max_response_tokens)
        room = min(math.ceil(ledger.total / len(self._slots)), math.ceil(self._max_running * AHEAD))

        def offer(slot: Slot) -> None:
            jobs = ledger.take(slot.name, room - slot.unfinished)
            slot.unfinished += sum(len(job.samples) for job in jobs)
            if slot.unfinished:
                refill = min(self._max_running, room - 1) if ledger.waiting else 0
                slot.begin(lambda actor: actor.turn.remote(jobs, sampling, TURN_SECONDS, refill), self._deadline)

        def accept(slot: Slot, turn: Turn) -> None:
            ledger.accept(turn.batch)
            slot.unfinished = turn.unfinished

        self._drive(lambda: ledger.finished, offer, accept, lambda slot: ledger.give_back(slot.name))
        return ledger.trajectories()

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """Swap the weights of every engine; one acknowledgement each, in the order of the engines.

        `handle` is kept: an engine that is restarted later begins with it. Raises WeightError for unfit weights.
        """
        self._handle = handle
        return self._ask_all(lambda actor: actor.load_weights.remote(handle))

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[engine][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
        given = ray.put(list(sequences))
        return self._ask_all(lambda actor: actor.sequence_logprobs.remote(given))

    def close(self) -> None:
        """End all engine processes."""
        for slot in self._slots:
            slot.kill()

    def _start(self) -> None:
        """Bring all engines up at the same time; most of it is importing and loading."""
        for slot in self._slots:
            slot.launch(None)
        while busy := [slot for slot in self._slots if slot.call is not None]:
            for slot, answer in self._answers(busy):
                if isinstance(answer, RetrospectError):
                    raise answer
                if isinstance(answer, BaseException):
                    raise ActorError(f"{slot.name} did not start: {describe(answer)}") from None

    def _ask_all(self, call: Callable[[Any], Any]) -> list[Any]:
        """The same call on every engine; one that fails is restarted and asked again."""
        answers: dict[str, Any] = {}

        def offer(slot: Slot) -> None:
            if slot.name not in answers:
                slot.begin(call, self._deadline)

        def accept(slot: Slot, answer: Any) -> None:
            answers[slot.name] = answer

        self._drive(lambda: len(answers) == len(self._slots), offer, accept, lambda _: None)
        return [answers[slot.name] for slot in self._slots]

    def _drive(
        self,
        finished: Callable[[], bool],
        offer: Callable[[Slot], None],
        accept: Callable[[Slot, Any], None],
        lost: Callable[[Slot], object],
    ) -> None:
        """Until `finished`: `offer` work to idle engines, `accept` their answers, and replace those that fail.

        `lost` hears of a failed engine before its successor is started. Raises what `_replace` raises.
        """
        while not finished():
            for slot in self._slots:
                if slot.call is None:
                    offer(slot)
            for slot, answer in self._answers([slot for slot in self._slots if slot.call is not None]):
                if isinstance(answer, BaseException):
                    lost(slot)
                    self._replace(slot, answer)
                elif not isinstance(answer, Ready):  # a successor that is ready is simply idle now
                    accept(slot, answer)

    def _answers(self, busy: Sequence[Slot]) -> Iterator[tuple[Slot, Any]]:
        """Wait for the next answer of the busy slots: (slot, result or exception). A slot past its deadline is hung."""
        patience = max(0.0, min(slot.left() for slot in busy))
        calls = [slot.call for slot in busy]
        ray.wait(calls, num_returns=1, timeout=patience)
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)  # all that are there, not just the first
        for slot in busy:
            if slot.call in done:
                yield slot, slot.answer()
            elif slot.left() <= 0:
                yield slot, TimeoutError(f"it hangs: no answer within {slot.patience:g} s")

    def _replace(self, slot: Slot, error: BaseException) -> None:
        """Kill a failed engine's process and start another with the current weights.

        Raises `error` if unfit weights are to blame (they would be as unfit again), ActorError when the restarts are
        used up.
        """
        slot.kill()
        if isinstance(error, WeightError):
            raise error
        now = time.monotonic()
        self._recent = [moment for moment in self._recent if now - moment < self._window]
        if len(self._recent) >= self._max_restarts:
            raise ActorError(
                f"{slot.name}: {describe(error)}; rollout.max_restarts = {self._max_restarts} within "
                f"{self._window:g} s is used up: look into its log, or allow more restarts"
            ) from None
        self._recent.append(now)
        self.restarts += 1
        logger.warning("%s: %s; restart %d", slot.name, describe(error), self.restarts)
        slot.launch(self._handle)
