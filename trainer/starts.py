"""Makes starts of problems and replayed states, and cut trajectories and outcomes for the replay store.

Invariant: results depend only on the arguments, so an iteration can be repeated.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from core.config import ReplaySchedule
from core.records import (
    Boundaries,
    CutTrajectory,
    Finish,
    Flags,
    FloatArray,
    IntArray,
    Judged,
    Outcome,
    Problem,
    Provenance,
    ReplayedState,
    Start,
    Success,
    Trajectory,
    Verdict,
)
from core.seeds import derive
from replay.rankings.base import CERTAIN, HOPELESS

EMPTY: IntArray = np.zeros(0, dtype=np.int32)
NO_VALUES: FloatArray = np.zeros(0, dtype=np.float32)
"""For rollouts that count for their problem and may be imitated, and which give no states."""
IsWrong = Callable[[str, IntArray], bool | None]
"""Problem id, beginning of a response -> whether it is wrong already; None if that cannot be told. What is wrong stays
wrong."""
SURE = 0.02  # nats that a token counts as a decision if the policy was sure of it: -log 0.98
ROOM = 0.25
"""Least share of the response budget that a state of a truncated trajectory leaves: with less it can only lose."""


def fresh_starts(problems: Sequence[Problem], samples: int, seed: int, iteration: int, first: int = 0) -> list[Start]:
    """One root start per problem, ids `ITERATION.f0`, `ITERATION.f1`, ..., counted from `first`."""
    return [
        Start(
            id=f"{iteration}.f{n}",
            problem_id=problem.id,
            prompt_ids=problem.prompt_ids,
            prefix_ids=EMPTY,
            samples=samples,
            seed=derive(seed, "fresh", iteration, n),
            world=problem.world,
        )
        for n, problem in enumerate(problems, first)
    ]


def replayed_starts(
    states: Sequence[ReplayedState],
    problems: Mapping[str, Problem],
    samples: int,
    seed: int,
    iteration: int,
    first: int = 0,
) -> list[Start]:
    """One start per replayed state, ids `ITERATION.r0`, ..., counted from `first`."""
    return [
        Start(
            id=f"{iteration}.r{index}",
            problem_id=state.problem_id,
            prompt_ids=problems[state.problem_id].prompt_ids,
            prefix_ids=state.prefix_ids,
            samples=samples,
            seed=derive(seed, "replayed", iteration, index),
            state_key=state.key,
            world=problems[state.problem_id].world,
        )
        for index, state in enumerate(states, first)
    ]


def replayed_count(most: int, schedule: ReplaySchedule, progress: float, unsolved: float) -> int:
    """How many starts of an iteration are replayed, of at most `most`. `progress`: share of the run that is over.
    `unsolved`: recent share of fresh problems of which every sample failed: they teach nothing.

    >>> [replayed_count(64, schedule, 0.25, 0.5) for schedule in ("constant", "annealed", "unsolved")]
    [64, 48, 32]
    """
    return round(most * {"constant": 1.0, "annealed": 1.0 - progress, "unsolved": unsolved}[schedule])


def unsolved_share(judged: Sequence[Judged]) -> float:
    """Share of the fresh problems of which every sample fails; 1 without a fresh problem."""
    solved: dict[str, bool] = {}
    for item in (item for item in judged if not item.trajectory.start.replayed):
        problem = item.trajectory.start.problem_id
        solved[problem] = solved.get(problem, False) or item.verdict.correct
    return 1.0 - sum(solved.values()) / len(solved) if solved else 1.0


def outcomes(judged: Sequence[Judged]) -> list[Outcome]:
    """The successes of the continuations of replayed states."""
    return [
        Outcome(
            start.state_key,
            start.problem_id,
            item.verdict.correct,
            int(item.trajectory.versions[-1]),
            item.verdict.share,
        )
        for item in judged
        if (start := item.trajectory.start).state_key is not None
    ]


def own_provenance(item: Judged) -> Provenance:
    """Of a rollout of the policy. Some tasks give a wrong answer a small score for its form: that is no part."""
    if item.verdict.correct:
        return Provenance.OWN_SUCCESSFUL
    return Provenance.OWN_PARTIAL if item.verdict.success > HOPELESS else Provenance.OWN_FAILED


def cut_trajectories(
    judged: Sequence[Judged],
    values: Sequence[FloatArray],
    boundaries: Boundaries,
    version: int,
    provenance: Callable[[Judged], Provenance] = own_provenance,
    *,
    budget: int | None = None,
    is_wrong: IsWrong | None = None,
) -> list[CutTrajectory]:
    """The states that the trajectories pass through, with the critic's values.

    A trajectory without a state is included, because its outcome counts for its problem. States without a finite value,
    states after which nothing is decided (`undecided`), and trajectories without a finite reward are left out.

    `values`: [C] per trajectory. The value of the state of length L is the one before continuation token L - K, behind
    a replayed prefix of K tokens. `boundaries`: response tokens [R] -> lengths at which a step ends. Those inside the
    prefix are states already.

    `budget`: most tokens of a response. States of a truncated trajectory must leave a quarter of it. `is_wrong`: states
    after an error are left out, and successes that contain one are marked.
    """
    found = []
    for item, known in zip(judged, values, strict=True):
        if not math.isfinite(item.verdict.reward):
            continue
        start, depth = item.trajectory.start, item.trajectory.start.prefix_ids.size
        kind = provenance(item)
        lengths = usable_lengths(item.trajectory, known, boundaries, budget, canonical=kind is Provenance.CANONICAL)
        wrong: bool | None = False
        if is_wrong is not None:
            wrong, lengths = before_error(item.trajectory, lengths, is_wrong)
        found.append(
            CutTrajectory(
                problem_id=start.problem_id,
                response_ids=item.trajectory.response_ids,
                lengths=lengths,
                values=known[lengths - depth],
                provenance=kind,
                reward=item.reward,
                version=version,
                parent=start.state_key,
                truncated=item.trajectory.finish.truncated,
                lucky=bool(wrong) and item.verdict.correct,
                share=item.verdict.share,
                decided=decided_share(item.trajectory)[lengths - depth],
                mask=item.trajectory.mask,
            )
        )
    return found


def usable_lengths(
    trajectory: Trajectory, known: FloatArray, boundaries: Boundaries, budget: int | None, *, canonical: bool
) -> IntArray:
    """The lengths of those states of a trajectory that have a finite value and leave something to decide, and, of a
    truncated one, a quarter of the budget. The arguments are those of `cut_trajectories`."""
    depth = trajectory.start.prefix_ids.size
    lengths = trajectory.states(boundaries)
    lengths = lengths[lengths - depth < known.size]  # without values there are no states
    lengths = lengths[np.isfinite(known[lengths - depth])]
    if budget is not None and trajectory.finish.truncated:
        lengths = lengths[lengths <= (1.0 - ROOM) * budget]
    return lengths if canonical else undecided(trajectory, lengths)


def decided_share(trajectory: Trajectory) -> FloatArray:
    """[C] share of the response's decisions that come before each token of the continuation.

    A token that the policy was sure of is no decision: it counts with its surprisal -log p, plus `SURE`. So a state
    after which only the answer has to be copied has little left, however long that is. Tokens of which no probability
    is known, those of a canonical solution, count alike. What a replayed prefix decided is not known: it counts as its
    share of the tokens.

    >>> start = Start("1.f0", "p", EMPTY, EMPTY, 1, 0)
    >>> log_p = np.array([-1.98, -0.98, 0.0, 0.0], np.float32)
    >>> tokens = np.zeros(4, np.int32)
    >>> (100 * decided_share(Trajectory(start, 0, tokens, log_p, tokens, Finish.STOP))).round().tolist()
    [0.0, 66.0, 99.0, 99.0]
    """
    decisions = trajectory.generated * (SURE - trajectory.logprobs.astype(np.float64))
    before = np.cumsum(decisions) - decisions
    prefix = trajectory.start.prefix_ids.size
    known = prefix / (prefix + trajectory.tokens.size)
    share: FloatArray = (known + (1.0 - known) * before / decisions.sum()).astype(np.float32)
    return share


def undecided(trajectory: Trajectory, lengths: IntArray) -> IntArray:
    """The lengths of those states from which the policy may well go on in another way than it did. It repeats the rest
    of its response with the probability of its tokens; where that is above `CERTAIN` all continuations end as this one
    did, in success or in failure, so a group of them teaches nothing.

    >>> start = Start("1.f0", "p", EMPTY, EMPTY, 1, 0)
    >>> log_p, tokens = np.array([-1.0, -0.06, -0.04, 0.0], np.float32), np.zeros(4, np.int32)
    >>> found = Trajectory(start, 0, tokens, log_p, tokens, Finish.STOP)
    >>> undecided(found, np.array([1, 2, 3])).tolist()  # the rest has a probability of 0.90, 0.96 and 1
    [1]
    """
    rest = np.cumsum(trajectory.logprobs[::-1], dtype=np.float64)[::-1]  # [C] log probability from each token on
    return lengths[rest[lengths - trajectory.start.prefix_ids.size] <= math.log(CERTAIN)]


def before_error(trajectory: Trajectory, lengths: IntArray, is_wrong: IsWrong) -> tuple[bool | None, IntArray]:
    """Whether a response is wrong, and those of its states, by ascending length, that are not wrong yet."""
    problem, response = trajectory.start.problem_id, trajectory.response_ids
    wrong = is_wrong(problem, response)
    if wrong:
        lengths = lengths[: bisect_left(lengths, True, key=lambda length: bool(is_wrong(problem, response[:length])))]
    return wrong, lengths


def canonical_rollouts(starts: Sequence[Start], problems: Mapping[str, Problem]) -> list[Judged]:
    """The canonical solutions of the fresh starts' problems as rollouts to value."""
    verdict = Verdict(1.0, True, "canonical solution")
    return [
        _rollout(start, solution, verdict, problems[start.problem_id].solution_mask)
        for start in starts
        if not start.replayed and (solution := problems[start.problem_id].solution_ids) is not None and solution.size
    ]


def imitated_rollouts(successes: Sequence[Success], problems: Mapping[str, Problem]) -> list[Judged]:
    """Own earlier successes as rollouts from the root."""
    starts = fresh_starts([problems[success.problem_id] for success in successes], samples=1, seed=0, iteration=0)
    verdict = Verdict(1.0, True, "own success")
    return [
        _rollout(start, success.response_ids, verdict, success.mask)
        for start, success in zip(starts, successes, strict=True)
    ]


def known_texts(problems: Sequence[Problem]) -> Iterator[IntArray]:
    """Prompts [T >= 2], each with its canonical solution if there is one."""
    for problem in problems:
        solution = EMPTY if problem.solution_ids is None else problem.solution_ids
        text = np.concatenate([problem.prompt_ids, solution])
        if text.size > 1:
            yield text


def value_queries(states: Sequence[ReplayedState], problems: Mapping[str, Problem]) -> list[Judged]:
    """A rollout of one arbitrary token from each state; its first value is the value of the state."""
    starts = replayed_starts(states, problems, samples=1, seed=0, iteration=0)
    return [_rollout(start, np.zeros(1, np.int32), Verdict(0.0, False)) for start in starts]


def _rollout(start: Start, tokens: IntArray, verdict: Verdict, mask: Flags | None = None) -> Judged:
    """A continuation that no engine generated in this iteration, to be valued or imitated."""
    logprobs = np.zeros(tokens.size, np.float32)
    return Judged(Trajectory(start, 0, tokens, logprobs, np.zeros(tokens.size, np.int32), Finish.STOP, mask), verdict)


def erroneous_share(texts: Iterable[tuple[str, IntArray]], is_wrong: IsWrong) -> float:
    """Share of wrong texts (problem id, beginning of a response) among those that `is_wrong` can tell; NaN of none."""
    known = [wrong for text in texts if (wrong := is_wrong(*text)) is not None]
    return sum(known) / len(known) if known else math.nan


def erroneous_states(judged: Sequence[Judged], boundaries: Boundaries, is_wrong: IsWrong) -> float:
    """Share of wrong states among those of the rollouts that `is_wrong` can tell; NaN of none."""
    states = erroneous = 0
    for item in judged:
        lengths = item.trajectory.states(boundaries)
        wrong, sound = before_error(item.trajectory, lengths, is_wrong)
        if wrong is not None:
            states += len(lengths)
            erroneous += len(lengths) - len(sound)
    return erroneous / states if states else math.nan
