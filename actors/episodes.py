"""Episodes: an engine whose samples end their turns and go on after what an environment answers. Invariants: a
continuation begins and ends with a token of the policy (else the answer is not given: truncated); answers use up the
budget, with log-probability 0 and the turn's version; a turn's seed comes from (start, sample, tokens so far).

    engine       | turn of A .. | turn of B .. | turn of A ..     never waits for an environment while it has a turn
    environments        | A answers |  | B answers |

In synchronous mode an answer is used a fixed number of engine steps after its turn (`rollout.environment_lag`), however
long it takes: then what is in a batch, and with it the last bit of every number, does not depend on time. A turn is
generated while the state that it begins from is still being rebuilt."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from actors.jobs import Continuation, Engine, Job
from actors.ledger import AHEAD
from core.config import ResolvedRollout
from core.environments.protocol import Answer, digest
from core.environments.turns import TurnTokens
from core.environments.workers import Workers
from core.errors import DataError
from core.records import Episode, Finish, FloatArray, IntArray
from core.weights import Acknowledgement, Weights

WAIT = 0.2  # seconds of one wait for environments; then the caller may want something else
SNAPSHOT_BYTES = 1 << 28  # of the snapshots that an engine keeps; the oldest go first
Key = tuple[str, int]  # start id, sample
Place = tuple[str, bytes]  # problem id, tokens of the response: a state


@dataclass(slots=True)
class _Sample:
    """An episode that is being generated: its turns so far, with the answers between them."""

    job: Job
    number: int  # of the episode with the workers; also the order of entry
    past: Generator[str, Answer, list[bool]] | None  # repeats the actions of a replayed prefix
    opened: bool = False  # its environment has answered to `reset`, or to `restore`
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    rewards: list[tuple[int, float]] = field(default_factory=list)
    total: float = 0.0
    turns: int = 0
    repeated: int = 0  # of these
    finish: Finish | None = None  # of its turn, which has ended
    action: str = ""  # the text of that turn
    due: int = 0  # step of the engine at which what is answered to it is used
    answer: Answer | None = None  # to the turn; or an error
    lost: bool = False  # its state cannot be rebuilt: the environment answers differently

    def append(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], own: bool) -> None:
        """Add the tokens of a turn, or of an answer."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions
        self.mask += [own] * len(tokens)

    @property
    def ready(self) -> bool:
        """Whether it can go on: its turn is answered, or was cut and its state is known to be right."""
        return self.answer is not None or (self.finish is not Finish.STOP and self.opened and self.past is None)


class EpisodeEngine(Engine):
    """The samples of `engine`, with what environments answer. They are closed with it."""

    def __init__(self, engine: Engine, workers: Workers, turns: TurnTokens, config: ResolvedRollout) -> None:
        self._engine, self._workers, self._turns = engine, workers, turns
        self._most_turns, self._lag = config.max_turns, config.environment_lag
        self._in_order = config.max_staleness == 0
        self._clock = 0  # steps of the engine
        self._most = math.ceil((1 + AHEAD) * config.max_running)
        self._queue: deque[Job] = deque()  # of one sample each, whose environments have not begun
        self._open: dict[Key, _Sample] = {}
        self._of_number: dict[int, _Sample] = {}
        self._waiting: dict[int, _Sample] = {}  # by number: those whose turn has ended
        self._snapshots: OrderedDict[Place, tuple[str, int, float]] = OrderedDict()  # with turns and rewards so far
        self._snapshot_bytes = 0
        self._done: list[Continuation] = []
        self.waited = 0.0

    @property
    def unfinished(self) -> int:
        """Samples in flight, also those that wait for an environment."""
        return len(self._open) + len(self._queue)

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue the samples of `jobs`; see `Engine.add`."""
        self._queue += (replace(job, samples=(sample,)) for job in jobs for sample in job.samples)
        self._begin()

    def _begin(self) -> None:
        """Begin as many episodes as the engine decodes at once, and some more; each with its environment."""
        while self._queue and len(self._open) < self._most:
            job = self._queue.popleft()
            start = job.start
            assert start.world is not None
            prefix = start.prefix_ids.tolist()
            snapshot, turns, total = self._snapshots.get((start.problem_id, start.prefix_ids.tobytes()), ("", 0, 0.0))
            number = self._workers.open(start.world, snapshot)
            past = None if snapshot or not prefix else self._turns.retrace(prefix)
            one = _Sample(job, number, past, turns=turns, total=total)
            self._open[start.id, job.samples[0]] = self._of_number[number] = one
            self._engine.add([replace(job, calls=self._turns.calls)])

    def step(self) -> None:
        """One step of the engine, if an environment does not have to answer first; then all that can go on does."""
        if not self._owed():
            if self._engine.unfinished:
                self._engine.step()
                self._clock += 1
            for turn in self._engine.take():  # also what a probe of the weights has finished
                self._end_turn(turn)
        idle = not self._engine.unfinished
        if idle and self._waiting:
            self._clock = max(self._clock, min(one.due for one in self._waiting.values()))
        self._listen(WAIT if self._waiting and (self._owed() or (idle and not self._in_order)) else 0.0)
        if not self._owed():
            for one in sorted(self._waiting.values(), key=lambda one: (one.due, one.number)):
                if one.ready and (one.due <= self._clock or not self._in_order):
                    self._go_on(one)
        self._begin()

    def rest(self) -> None:
        """See `Engine.rest`. While environments answer, the engine stays ready."""
        if not self.unfinished:
            self._engine.rest()

    def abort(self) -> None:
        """Drop everything that is in flight."""
        self._engine.abort()
        for number in self._of_number:
            self._workers.end(number)
        self._open, self._of_number, self._waiting, self._done = {}, {}, {}, []
        self._queue.clear()

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps; see `Engine.load_weights`."""
        return self._engine.load_weights(weights)

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2."""
        return self._engine.sequence_logprobs(sequences)

    def close(self) -> None:
        """End the environments' processes."""
        self._workers.close()
        self._engine.close()

    def _owed(self) -> bool:
        """Whether an answer that is used now has not come."""
        return self._in_order and any(one.due <= self._clock and not one.ready for one in self._waiting.values())

    def _listen(self, seconds: float) -> None:
        begun = time.monotonic()
        found = self._workers.poll(seconds)
        self.waited += time.monotonic() - begun if seconds else 0.0
        for number, answer in found:
            if (one := self._of_number.get(number)) is not None:
                self._hear(one, answer)

    def _hear(self, one: _Sample, answer: Answer) -> None:
        """Take an answer: of the beginning, of a repeated action, or of the turn."""
        if answer.error or (one.opened and one.past is None):
            one.answer = answer
            return
        world = one.job.start.world
        try:
            if one.opened:
                one.turns, one.repeated = one.turns + 1, one.repeated + 1
                one.total += answer.reward
            elif one.turns == 0 and world is not None and digest(answer.messages) != world.opening:
                raise DataError("reset has returned other messages than before")
            if one.past is not None:
                action = one.past.send(answer) if one.opened else next(one.past)
                self._workers.step(one.number, action)
                one.opened = True
                return
        except StopIteration:
            one.past = None
            self._keep(one.job.start.prefix_ids.tobytes(), one, answer.snapshot)
        except DataError as error:
            one.answer, one.lost = Answer([], error=str(error)), one.job.start.replayed
            return
        one.opened = True
        if one.finish is Finish.STOP:
            self._workers.step(one.number, one.action)

    def _end_turn(self, turn: Continuation) -> None:
        """Add a turn, and send it to its environment once that is where the turn began."""
        one = self._open[turn.start_id, turn.sample]
        one.append(turn.tokens, turn.logprobs, turn.versions, own=True)
        one.finish, one.due = turn.finish, self._clock + self._lag
        one.action = self._turns.text(turn.tokens)
        self._waiting[one.number] = one
        if one.finish is Finish.STOP and one.opened and one.past is None and one.answer is None:
            self._workers.step(one.number, one.action)

    def _go_on(self, one: _Sample) -> None:
        """Use what was answered: queue the next turn, or end the episode."""
        answer, finish = one.answer, one.finish
        one.answer, one.finish = None, None
        del self._waiting[one.number]
        assert finish is not None
        if answer is None:
            self._finish(one, finish)
        elif answer.error:
            self._drop(one, answer.error)
        else:
            one.turns, one.total = one.turns + 1, one.total + answer.reward
            one.rewards.append((len(one.tokens) - 1, answer.reward))
            if answer.done or one.turns >= self._most_turns:
                self._finish(one, Finish.STOP if answer.done else Finish.LENGTH, answer)
                return
            try:
                reply = self._turns.reply(one.tokens[-1], answer.messages)
            except DataError as error:
                self._drop(one, str(error))
                return
            if len(one.tokens) + len(reply) >= one.job.budget:
                self._finish(one, Finish.LENGTH, answer)
                return
            one.append(reply, [0.0] * len(reply), one.versions[-1:] * len(reply), own=False)
            self._remember(one, answer.snapshot)
            self._engine.add([replace(one.job, calls=self._turns.calls, written=tuple(one.tokens))])

    def _remember(self, one: _Sample, snapshot: str) -> None:
        """Keep the snapshot of the state that a sample has come to."""
        if snapshot:
            written = b"".join(token.to_bytes(4, "little") for token in one.tokens)
            self._keep(one.job.start.prefix_ids.tobytes() + written, one, snapshot)

    def _keep(self, response: bytes, one: _Sample, snapshot: str) -> None:
        """Keep the snapshot of a state, if there is one, in place of the oldest ones. `response`: its tokens."""
        place = one.job.start.problem_id, response
        if snapshot and place not in self._snapshots:
            self._snapshot_bytes += len(snapshot) + len(response)
            self._snapshots[place] = (snapshot, one.turns, one.total)
        while self._snapshot_bytes > SNAPSHOT_BYTES:
            (_, old), (gone, *_) = self._snapshots.popitem(last=False)
            self._snapshot_bytes -= len(gone) + len(old)

    def _finish(self, one: _Sample, finish: Finish, last: Answer | None = None) -> None:
        said = (None, "") if last is None else (last.correct, last.detail)
        episode = Episode(tuple(one.rewards), one.total, one.turns, *said, repeated=one.repeated)
        key = self._forget(one)
        self._done.append(Continuation(*key, one.tokens, one.logprobs, one.versions, finish, one.mask, episode))

    def _drop(self, one: _Sample, reason: str) -> None:
        self._done.append(
            Continuation(*self._forget(one), [], [], [], Finish.STOP, dropped=reason, state_lost=one.lost)
        )

    def _forget(self, one: _Sample) -> Key:
        key = one.job.start.id, one.job.samples[0]
        del self._open[key], self._of_number[one.number]
        self._workers.end(one.number)
        return key
