"""The pool of `launch.py train --local`: one engine in this process, with its errors unwrapped. Invariant: the same
starts give the same trajectories as `actors/pool.py`, in the same order (bit for bit with vLLM on CPU)."""

import time
from collections.abc import Callable, Sequence

from actors.jobs import Engine
from actors.ledger import Ledger, Queues, check_room, tell_dropped
from core.config import ResolvedRollout
from core.records import FloatArray, IntArray, Rollout, Sampling, Start
from core.weights import Acknowledgement, Weights

NAME = "rollout-0"
KEPT: list[Engine] = []
"""Engines of closed pools: vLLM would end torch's process groups with them, also those of the next run."""


class LocalPool:
    """One engine in this process."""

    def __init__(
        self, engine: Engine, config: ResolvedRollout, quarantine: Callable[[Start, str], None] = lambda _, __: None
    ) -> None:
        """`quarantine` gets the starts that cannot be generated, with the reason."""
        self.restarts = 0  # always: the engine and the caller share a process
        self.quarantined = self.dropped = 0  # starts and episodes since the run began
        self._reported: set[bool] = set()  # kinds of dropped episodes that were said
        self._lost: dict[str, Start] = {}  # by id: starts whose state cannot be rebuilt
        self._engine, self._report = engine, quarantine
        self._busy = 0.0  # seconds of generation
        self._room = (config.max_prompt_tokens, config.max_response_tokens)

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Rollout]:
        """All samples of all starts, ordered by start and sample. Raises ConfigError when a start does not fit."""
        check_room(starts, sampling, *self._room)
        begun, waited = time.monotonic(), self._engine.waited
        ledger = Ledger()
        ledger.add(starts, sampling)
        self._engine.add(ledger.take(NAME, ledger.open))
        for start, continuation in ledger.accept(self._engine.run(float("inf"))):
            self.dropped += 1
            if continuation.state_lost and start.id not in self._lost:
                self.quarantined += 1
                self._lost[start.id] = start
                self._report(start, continuation.dropped)
            tell_dropped(start, continuation, self._reported)
        self._busy += time.monotonic() - begun - (self._engine.waited - waited)
        return [trajectory for start in starts for trajectory in ledger.collect(start.id)]

    def take_lost(self) -> list[Start]:
        """As of `RolloutPool`."""
        lost, self._lost = list(self._lost.values()), {}
        return lost

    def queues(self) -> Queues:
        """As of a pool with one engine; nothing is in flight between two calls."""
        return Queues(waiting=0, running=0, busy=self._busy, actors=1)

    def load_weights(self, handle: Weights) -> list[Acknowledgement]:
        """Swap the engine's weights. Raises WeightError when a parameter is missing."""
        return [self._engine.load_weights(handle)]

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[1][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
        return [self._engine.sequence_logprobs(sequences)]

    def close(self) -> None:
        """The engine ends with the process, and its memory stays in use until then. Its environments end now."""
        self._engine.close()
        KEPT.append(self._engine)
