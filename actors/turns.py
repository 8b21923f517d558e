"""Responses in several turns: an engine whose samples stop at a tool's call and go on after its answer. Invariants: a
continuation begins and ends with a token of the policy (else the answer is not given: truncated); answers use up the
budget, with log-probability 0 and the call's version; a turn's seed comes from (start, sample, tokens so far)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from actors.jobs import Continuation, Engine, Job
from core.records import Finish, FloatArray, IntArray
from core.tools import TokenTool
from core.weights import Acknowledgement, Weights


@dataclass(slots=True)
class _Sample:
    """A sample that is being generated: its turns so far, with the answers between them."""

    job: Job
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)

    def append(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], own: bool) -> None:
        """Add the tokens of a turn, or of an answer."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions
        self.mask += [own] * len(tokens)


class TurnsEngine(Engine):
    """The samples of `engine`, with what `tool` answers."""

    def __init__(self, engine: Engine, tool: TokenTool) -> None:
        self._engine, self._tool = engine, tool
        self._open: dict[tuple[str, int], _Sample] = {}
        self._done: list[Continuation] = []

    @property
    def unfinished(self) -> int:
        """Samples in flight, also those whose turn has ended while the engine took steps for `sequence_logprobs`."""
        return len(self._open)

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue the samples of `jobs`; see `Engine.add`."""
        for job in jobs:
            self._open |= {(job.start.id, sample): _Sample(job) for sample in job.samples}
            self._engine.add([replace(job, calls=self._tool.calls)])

    def step(self) -> None:
        """One step of the engine."""
        for turn in self._engine.run(0.0):
            self._next(turn)

    def rest(self) -> None:
        """The engine rests by itself."""

    def _next(self, turn: Continuation) -> None:
        """End the continuation with this turn, or let the tool answer and queue the next one."""
        key = turn.start_id, turn.sample
        sample = self._open[key]
        sample.append(turn.tokens, turn.logprobs, turn.versions, own=True)
        finish = turn.finish
        if finish is Finish.STOP and turn.tokens[-1] in self._tool.calls:
            prefix = sample.job.start.prefix_ids.tolist()
            answer = self._tool.answer(prefix + sample.tokens)
            if len(sample.tokens) + len(answer) < sample.job.budget:
                sample.append(answer, [0.0] * len(answer), turn.versions[-1:] * len(answer), own=False)
                written = tuple(sample.tokens)
                self._engine.add([replace(sample.job, samples=(turn.sample,), calls=self._tool.calls, written=written)])
                return
            finish = Finish.LENGTH
        del self._open[key]
        self._done.append(Continuation(*key, sample.tokens, sample.logprobs, sample.versions, finish, sample.mask))

    def abort(self) -> None:
        """Drop everything that is in flight."""
        self._engine.abort()
        self._open.clear()
        self._done = []

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps; see `Engine.load_weights`."""
        return self._engine.load_weights(weights)

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2."""
        return self._engine.sequence_logprobs(sequences)
