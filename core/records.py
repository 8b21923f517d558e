"""The typed records that travel between the parts (the words are explained in docs/architecture.md). A `Problem` or
one of its states is a `Start`, which the engines continue. The `Rollout` that results is one record for all parts: each
fills in its columns.

All records are immutable and cheap to pickle. Shapes: P prompt tokens, K prefix tokens, C continuation tokens,
R = K + C response tokens, S states. Arrays are numpy, tokens int32, reals float32.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from core.seeds import derive

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Boundaries = Callable[[IntArray], IntArray]  # the boundaries of a response: increasing lengths, each strictly inside it
EMPTY: IntArray = np.zeros(0, np.int32)
StateKey = int  # 64-bit hash of (problem id, prefix tokens): the same prefix of the same problem is the same state


@dataclass(frozen=True, slots=True)
class Sampling:
    """How continuations are drawn. max_response_tokens counts the whole response, with a replayed prefix."""

    temperature: float  # 0: greedy
    top_p: float
    max_response_tokens: int


class Provenance(IntEnum):
    """Where a state came from. The state of a prefix that several trajectories share has the highest of theirs. A
    success behind a replayed state does not raise its provenance. It counts among the state's outcomes."""

    OWN_FAILED = 0
    OWN_PARTIAL = 1  # of a failure that solves over 5 % of its task (`Verdict.share`), or whose lines so far are right
    OWN_SUCCESSFUL = 2
    CANONICAL = 3


class Finish(IntEnum):
    """Why a continuation ended."""

    STOP = 0  # the model emitted an end-of-sequence token (which is the last token of the continuation)
    LENGTH = 1  # the token budget was used up: a truncated response
    REPETITION = 2  # cut because it only repeated itself: a truncated response

    @property
    def truncated(self) -> bool:
        """Whether the response lacks its end."""
        return self is not Finish.STOP


@dataclass(frozen=True, slots=True)
class World:
    """A problem as its environment sees it."""

    id: str  # of the problem
    prompt: str  # without template, system prompt and examples
    reference: str
    opening: str = ""  # digest of the messages with which it began

    @property
    def seed(self) -> int:
        """For what is random in it: the same in every episode and run."""
        return derive(0, "environment", self.id)


@dataclass(frozen=True, slots=True)
class Problem:
    """One item of a task."""

    id: str
    prompt_ids: IntArray  # [P]
    reference: str  # what the verifier needs: the gold answer
    level: str = ""  # difficulty, for reports: "3 operations", "Level 5"
    solution_ids: IntArray | None = None  # [R] canonical solution as a response, if the task has one
    source: str = ""  # label of its data set in a mixture
    # what a person reads: the prompt without template, system prompt and examples; with a world, as the model reads it
    question: str = ""
    world: World | None = None  # if an environment answers the policy
    solution_mask: Flags | None = None  # [R] False where an environment wrote the canonical solution


@dataclass(frozen=True, slots=True)
class Start:
    """What a rollout begins from: a problem's root or a replayed state. A result counts once per (id, sample)."""

    id: str
    problem_id: str
    prompt_ids: IntArray  # [P]
    prefix_ids: IntArray  # [K], empty for a root
    samples: int
    seed: int  # the seed of sample i is derive(seed, i)
    state_key: StateKey | None = None  # the state of the replay store; None: a root, or another source's prefix
    world: World | None = None  # as of its problem

    @property
    def from_root(self) -> bool:
        """Whether the rollout begins right after the prompt: not behind a state of the replay store or a prefix of
        another source."""
        return self.state_key is None and self.prefix_ids.size == 0

    @property
    def replayed(self) -> bool:
        """Whether it begins behind a state of the replay store."""
        return self.state_key is not None

    @property
    def context_ids(self) -> IntArray:
        """[P + K] all tokens the policy did not generate in this rollout."""
        return np.concatenate([self.prompt_ids, self.prefix_ids])


@dataclass(frozen=True, slots=True)
class Episode:
    """What an environment said of a continuation."""

    rewards: tuple[tuple[int, float], ...]  # (last token of a turn, counted in the continuation, reward of the turn)
    total: float  # sum of all rewards, with those of a replayed prefix
    turns: int  # of the policy, with those of a replayed prefix
    correct: bool | None = None  # None: it did not say
    detail: str = ""
    repeated: int = field(default=0, compare=False)  # turns that rebuilt its state; a snapshot spares them

    @property
    def steps(self) -> int:
        """What the environment did for it."""
        return self.repeated + len(self.rewards)

    @property
    def succeeded(self) -> bool:
        """Whether it is a success."""
        return self.total > 0 if self.correct is None else self.correct


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's result for a whole response."""

    reward: float
    correct: bool
    detail: str = ""  # why, for a person: "no answer found", "judge timed out"
    judge_failed: bool = False  # the judge gave no result: it raised, hung, crashed or returned no number
    steps: tuple[tuple[int, float], ...] = ()  # process rewards: (characters up to a step's end, its reward)
    parts: tuple[tuple[str, float], ...] = ()  # label and value of each of several rewards that apply
    share: float | None = None  # of the task that is solved, in [0, 1], if that is graded: tests passed, a score


def _empty() -> FloatArray:
    return np.zeros(0, np.float32)


class Use(IntEnum):
    """What becomes of a rollout in the iteration that has it."""

    TRAIN = 0  # generated in this iteration: policy and critic learn from it
    COUNT = 1  # generated and left out by dynamic sampling: only its outcome counts
    IMITATE = 2  # an earlier answer, repeated in the language-model loss
    VALUE = 3  # a state of which a start source wants to know the critic's value; nothing is learnt from it
    SOLUTION = 4  # a right answer that nobody generated: scored for its states, stored as those of a canonical solution


@dataclass(frozen=True, slots=True)
class Rollout:
    """A start, one continuation of it, and what each part knows of that. The engines fill in the columns up to
    `episode`, the judge the verdict, the learner the values and log-probabilities. First and last token of the
    continuation are the policy's; an environment's answers lie in between."""

    start: Start
    sample: int  # in [0, start.samples)
    tokens: IntArray  # [C], C >= 1; ends with what ends a sequence or an episode if finish is STOP
    logprobs: FloatArray  # [C] behaviour log-probabilities, of the distribution that was sampled from
    versions: IntArray  # [C] weight version that generated each token
    finish: Finish
    mask: Flags | None = None  # [C] whether the policy generated the token, and not an environment; None: all
    episode: Episode | None = None  # if there is an environment
    use: Use = Use.TRAIN
    weight: float = 1.0  # of an imitated answer's tokens in the loss, in (0, 1]: less the older it is
    verdict: Verdict = Verdict(0.0, False, "not judged", judge_failed=True)  # of the whole response
    step_rewards: FloatArray | None = None  # [C] reward of the step that ends with each token, 0 elsewhere
    values: FloatArray = field(default_factory=_empty)  # [C] V(s_t), the state before token t
    proximal: FloatArray = field(default_factory=_empty)  # [C] log pi_prox, the policy before the update
    reference: FloatArray = field(default_factory=_empty)  # [C] log pi_ref; without a reference as `proximal`

    @classmethod
    def given(
        cls, start: Start, tokens: IntArray, use: Use, mask: Flags | None = None, weight: float = 1.0
    ) -> "Rollout":
        """A text that no engine generated in this iteration, to be imitated, scored or valued; it counts as right."""
        zeros = np.zeros(tokens.size, np.float32), np.zeros(tokens.size, np.int32)
        right = Verdict(1.0, True, "given")
        return cls(start, 0, tokens, *zeros, Finish.STOP, mask, use=use, weight=weight, verdict=right)

    @property
    def generated(self) -> Flags:
        """[C] whether the policy generated the token; an environment's have log-probability 0 and no loss."""
        return np.ones(len(self.tokens), np.bool_) if self.mask is None else self.mask

    @property
    def response_ids(self) -> IntArray:
        """[R] prefix and continuation: the whole response."""
        return np.concatenate([self.start.prefix_ids, self.tokens])

    @property
    def sequence_ids(self) -> IntArray:
        """[P + R] prompt, prefix and continuation: what a model reads."""
        return np.concatenate([self.start.prompt_ids, self.start.prefix_ids, self.tokens])

    @property
    def reward(self) -> float:
        """The sum of the continuation's rewards: the verdict's, and those of steps and turns."""
        return self.verdict.reward + (0.0 if self.step_rewards is None else float(self.step_rewards.sum()))

    def text(self, decode: Callable[[IntArray], str]) -> str:
        """The continuation for a person: what an environment wrote stands in <environment> ... </environment>."""
        if self.generated.all():
            return decode(self.tokens)
        parts = np.split(self.tokens, np.flatnonzero(np.diff(self.generated)) + 1)  # the first is the policy's
        return "".join(
            f"<environment>{decode(part)}</environment>" if number % 2 else decode(part)
            for number, part in enumerate(parts)
        )

    def states(self, boundaries: Boundaries) -> IntArray:
        """Lengths of the response [S], increasing, at which a state is strictly inside the continuation. An
        answer ends a step, too. The policy goes on from a state, so none is inside an answer or right before one."""
        depth = self.start.prefix_ids.size
        lengths = boundaries(self.response_ids)
        lengths = lengths[lengths > depth]
        if self.mask is None:
            return lengths
        answered = np.flatnonzero(self.mask[1:] & ~self.mask[:-1]) + 1 + depth
        lengths = np.union1d(lengths, answered)
        return lengths[self.mask[lengths - depth]].astype(np.int32)


def unsolved_share(rollouts: Iterable[Rollout]) -> float:
    """Share of the fresh problems of which every sample fails; 1 without a fresh problem."""
    solved: dict[str, bool] = {}
    for rollout in outcomes(rollouts):
        if rollout.start.from_root:
            problem = rollout.start.problem_id
            solved[problem] = solved.get(problem, False) or rollout.verdict.correct
    return 1.0 - sum(solved.values()) / len(solved) if solved else 1.0


def used(rollouts: Iterable[Rollout], *uses: Use) -> list[Rollout]:
    """The rollouts of these uses, in order."""
    return [rollout for rollout in rollouts if rollout.use in uses]


def outcomes(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """The generated rollouts with a result, in order. Of one whose judge failed nobody knows whether it is right."""
    return [rollout for rollout in used(rollouts, Use.TRAIN, Use.COUNT) if not rollout.verdict.judge_failed]


@dataclass(frozen=True, slots=True)
class ReplayedState:
    """A state as the store returns it."""

    key: StateKey
    problem_id: str
    prefix_ids: IntArray  # [K]
    value: float
    provenance: Provenance
    version: int  # weight version at which it was last written
