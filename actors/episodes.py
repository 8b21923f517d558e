"""Episodes: an engine whose samples end their turns and go on after what an environment answers. Invariants: a
continuation begins and ends with a token of the policy (else the answer is not given: truncated); answers use up the
budget, with log-probability 0 and the turn's version; a turn's seed comes from (start, sample, tokens so far).

    engine       | turn of A .. | turn of B .. | turn of A ..     never waits for an environment while it has a turn
    environments        | A answers |  | B answers |

In synchronous mode an answer is used a fixed number of engine steps after its turn (`LAG`), however
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
from core.environments.turns import Retraced, TurnTokens
from core.environments.workers import Workers
from core.errors import DataError
from core.records import Episode, Finish, FloatArray, IntArray
from core.weights import Acknowledgement, Weights

LAG = 2  # steps of the engine; an earlier answer waits for them, and they wait for a later one
WAIT = 0.2  # seconds of one wait for environments; then the caller may want something else
SNAPSHOT_BYTES = 1 << 28  # of the snapshots that an engine keeps; the oldest go first
Key = tuple[str, int]  # start id, sample
Place = tuple[str, bytes]  # problem id, tokens of the response: a state


@dataclass(slots=True)
class _Sample:
    """An episode that is being generated: its turns so far, with the answers between them."""

    job: Job
    episode_id: int  # of the workers; also the order of entry
    past: Generator[str, Answer, Retraced] | None  # repeats the actions of a prefix
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
    said: Sequence[int] = ()  # the tokens of that turn
    begun: Sequence[int] = ()  # the tokens of its action that are in the prefix
    due: int = 0  # step of the engine at which what is answered to it is used
    answer: Answer | None = None  # to the turn; or an error
    lost: bool = False  # its state cannot be rebuilt: the environment answers differently

    def append(
        self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], of_policy: bool
    ) -> None:
        """Add the tokens of a turn, or of an answer."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions
        self.mask += [of_policy] * len(tokens)

    @property
    def ready(self) -> bool:
        """Whether it can go on: its turn is answered, or was cut and its state is known to be right."""
        return self.answer is not None or (self.finish is not Finish.STOP and self.opened and self.past is None)


class EpisodeEngine(Engine):
    """The samples of `engine`, with what environments answer. They are closed with it."""

    def __init__(
        self, engine: Engine, workers: Workers, turns: TurnTokens, config: ResolvedRollout, lag: int = LAG
    ) -> None:
        self._engine, self._workers, self._turns = engine, workers, turns
        self._most_turns, self._lag = config.max_turns, lag
        self._in_order = config.max_staleness == 0
        self._clock = 0  # steps of the engine
        self._most = math.ceil((1 + AHEAD) * config.max_running)
        self._queue: deque[Job] = deque()  # of one sample each, whose environments have not begun
        self._open: dict[Key, _Sample] = {}
        self._by_episode: dict[int, _Sample] = {}
        self._waiting: dict[int, _Sample] = {}  # by episode: those whose turn has ended
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
            episode_id = self._workers.open(start.world, snapshot)
            past = None if snapshot or not prefix else self._turns.retrace(prefix)
            sample = _Sample(job, episode_id, past, turns=turns, total=total)
            self._open[start.id, job.samples[0]] = self._by_episode[episode_id] = sample
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
            self._clock = max(self._clock, min(sample.due for sample in self._waiting.values()))
        self._listen(WAIT if self._waiting and (self._owed() or (idle and not self._in_order)) else 0.0)
        if not self._owed():
            for sample in sorted(self._waiting.values(), key=lambda sample: (sample.due, sample.episode_id)):
                if sample.ready and (sample.due <= self._clock or not self._in_order):
                    self._go_on(sample)
        self._begin()

    def rest(self) -> None:
        """See `Engine.rest`. While environments answer, the engine stays ready."""
        if not self.unfinished:
            self._engine.rest()

    def abort(self) -> None:
        """Drop everything that is in flight."""
        self._engine.abort()
        for episode_id in self._by_episode:
            self._workers.end(episode_id)
        self._open, self._by_episode, self._waiting, self._done = {}, {}, {}, []
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
        return self._in_order and any(
            sample.due <= self._clock and not sample.ready for sample in self._waiting.values()
        )

    def _listen(self, seconds: float) -> None:
        begun = time.monotonic()
        answers = self._workers.poll(seconds)
        self.waited += time.monotonic() - begun if seconds else 0.0
        for episode_id, answer in answers:
            if (sample := self._by_episode.get(episode_id)) is not None:
                self._hear(sample, answer)

    def _hear(self, sample: _Sample, answer: Answer) -> None:
        """Take an answer: of the beginning, of a repeated action, or of the turn."""
        if answer.error or (sample.opened and sample.past is None):
            sample.answer = answer
            return
        world = sample.job.start.world
        try:
            if sample.opened:
                sample.turns, sample.repeated = sample.turns + 1, sample.repeated + 1
                sample.total += answer.reward
            elif sample.turns == 0 and world is not None and digest(answer.messages) != world.opening:
                raise DataError("reset has returned other messages than before")
            if sample.past is not None:
                action = sample.past.send(answer) if sample.opened else next(sample.past)
                self._workers.step(sample.episode_id, action)
                sample.opened = True
                return
        except StopIteration as stop:
            sample.past, sample.begun = None, stop.value.rest
            if sample.turns and not sample.begun:
                self._keep(sample.job.start.prefix_ids.tobytes(), sample, answer.snapshot)
        except DataError as error:
            sample.answer, sample.lost = Answer([], error=str(error)), not sample.job.start.from_root
            return
        sample.opened = True
        if sample.finish is Finish.STOP:
            self._act(sample)

    def _end_turn(self, turn: Continuation) -> None:
        """Add a turn, and send it to its environment once that is where the turn began."""
        sample = self._open[turn.start_id, turn.sample]
        sample.append(turn.tokens, turn.logprobs, turn.versions, of_policy=True)
        sample.finish, sample.due = turn.finish, self._clock + self._lag
        sample.said = turn.tokens
        self._waiting[sample.episode_id] = sample
        if sample.finish is Finish.STOP and sample.opened and sample.past is None and sample.answer is None:
            self._act(sample)

    def _act(self, sample: _Sample) -> None:
        """Send the turn that has ended to the environment."""
        self._workers.step(sample.episode_id, self._turns.text([*sample.begun, *sample.said]))
        sample.begun = ()

    def _go_on(self, sample: _Sample) -> None:
        """Use what was answered: queue the next turn, or end the episode."""
        answer, finish = sample.answer, sample.finish
        sample.answer, sample.finish = None, None
        del self._waiting[sample.episode_id]
        assert finish is not None
        if answer is None:
            self._finish(sample, finish)
        elif answer.error:
            self._drop(sample, answer.error)
        else:
            sample.turns, sample.total = sample.turns + 1, sample.total + answer.reward
            sample.rewards.append((len(sample.tokens) - 1, answer.reward))
            if answer.done or sample.turns >= self._most_turns:
                self._finish(sample, Finish.STOP if answer.done else Finish.LENGTH, answer)
                return
            try:
                reply = self._turns.reply(sample.tokens[-1], answer.messages)
            except DataError as error:
                self._drop(sample, str(error))
                return
            if len(sample.tokens) + len(reply) >= sample.job.budget:
                self._finish(sample, Finish.LENGTH, answer)
                return
            sample.append(reply, [0.0] * len(reply), sample.versions[-1:] * len(reply), of_policy=False)
            self._remember(sample, answer.snapshot)
            self._engine.add([replace(sample.job, calls=self._turns.calls, written=tuple(sample.tokens))])

    def _remember(self, sample: _Sample, snapshot: str) -> None:
        """Keep the snapshot of the state that a sample has come to."""
        if snapshot:
            written = b"".join(token.to_bytes(4, "little") for token in sample.tokens)
            self._keep(sample.job.start.prefix_ids.tobytes() + written, sample, snapshot)

    def _keep(self, response: bytes, sample: _Sample, snapshot: str) -> None:
        """Keep the snapshot of a state, if there is one, in place of the oldest ones. `response`: its tokens."""
        place = sample.job.start.problem_id, response
        if snapshot and place not in self._snapshots:
            self._snapshot_bytes += len(snapshot) + len(response)
            self._snapshots[place] = (snapshot, sample.turns, sample.total)
        while self._snapshot_bytes > SNAPSHOT_BYTES:
            (_, old), (gone, *_) = self._snapshots.popitem(last=False)
            self._snapshot_bytes -= len(gone) + len(old)

    def _finish(self, sample: _Sample, finish: Finish, last: Answer | None = None) -> None:
        said = (None, "") if last is None else (last.correct, last.detail)
        episode = Episode(tuple(sample.rewards), sample.total, sample.turns, *said, repeated=sample.repeated)
        key = self._forget(sample)
        self._done.append(
            Continuation(*key, sample.tokens, sample.logprobs, sample.versions, finish, sample.mask, episode)
        )

    def _drop(self, sample: _Sample, reason: str) -> None:
        self._done.append(
            Continuation(*self._forget(sample), [], [], [], Finish.STOP, dropped=reason, state_lost=sample.lost)
        )

    def _forget(self, sample: _Sample) -> Key:
        key = sample.job.start.id, sample.job.samples[0]
        del self._open[key], self._by_episode[sample.episode_id]
        self._workers.end(sample.episode_id)
        return key
