"""The assay: restarts from states of several kinds against the root, without reinforcement learning (PROTOCOL.md, P0).
Engines, judges and the critic are the product's own. Each stage is kept in the run's folder, so a run that was killed
goes on after the last one."""

import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bench.real.statistics import cuts
from core.config import ResolvedConfig
from core.records import Boundaries, Finish, IntArray, Judged, Provenance, ReplayedState, Sampling
from core.run_directory import RunDirectory
from core.seeds import derive, generator
from replay.success import Feature, fit, sigmoid
from trainer.build import iteration_settings
from trainer.records import Components
from trainer.starts import decided_share, fresh_starts, own_provenance, replayed_starts, value_queries

DEPTHS = (0.2, 0.4, 0.6, 0.8)
SAMPLES = 16  # from each root
CHOSEN = {"gsm8k": 60, "mbpp": 20}  # problems whose states are tried
FAILURES = 4  # of each
TRIED = 4  # continuations of each failed state, for its Monte-Carlo value
CONTINUATIONS = 8  # of each restart
LEARNT = 8  # of the root samples of a problem, by the critic
CRITIC_BATCH = 32  # problems
Row = dict[str, Any]
Reals = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(slots=True)
class Assay:
    """The parts of a run, and what its stages cost."""

    parts: Components
    sampling: Sampling
    seed: int
    folder: Path
    costs: dict[str, Row] = field(default_factory=dict)  # by stage: tokens and seconds

    def stage(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returns, or returned when this stage was complete."""
        path = self.folder / f"{name}.pickle"
        if not path.exists():
            begun = time.monotonic()
            made = make()
            path.with_suffix(".tmp").write_bytes(pickle.dumps((made, time.monotonic() - begun)))
            path.with_suffix(".tmp").rename(path)
        found, seconds = pickle.loads(path.read_bytes())
        self.costs[name] = {"tokens": _generated(found), "seconds": seconds}
        print(f"{name}: {self.costs[name]}", flush=True)
        return found  # type: ignore[no-any-return]

    def from_roots(self, problem_ids: Iterable[str], samples: int, label: str) -> list[list[Judged]]:
        """Samples of each problem."""
        problems = [self.parts.by_id[name] for name in problem_ids]
        starts = fresh_starts(problems, samples, derive(self.seed, label), iteration=0)
        return _groups(self.parts.task.judge(self.parts.actors.generate(starts, self.sampling)), samples)

    def continued(self, states: Sequence[ReplayedState], samples: int, label: str) -> list[list[Judged]]:
        """Continuations of each state."""
        starts = replayed_starts(states, self.parts.by_id, samples, derive(self.seed, label), iteration=0)
        return _groups(self.parts.task.judge(self.parts.actors.generate(starts, self.sampling)), samples)

    def tally(self, judged: Sequence[Judged]) -> list[int]:
        """Successes, generated tokens; of the successes those with something wrong, and those that can be checked."""
        won = [item.trajectory for item in judged if item.verdict.correct]
        told = [self.parts.task.prefix_is_wrong(one.start.problem_id, one.response_ids) for one in won]
        tokens = sum(item.trajectory.tokens.size for item in judged)
        return [len(won), tokens, told.count(True), len(told) - told.count(None)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A problem whose states are tried."""

    problem_id: str
    failures: list[list[ReplayedState]]  # [FAILURES][depth]
    left: Reals  # [FAILURES, depth] share of their decisions that is still to come
    success: list[ReplayedState] | None  # [depth] of an own success
    canonical: list[ReplayedState] | None


def _generated(found: Any) -> int:
    items = [item for group in found if isinstance(group, list) for item in group if isinstance(item, Judged)]
    return sum(item.trajectory.tokens.size for item in items)


def _groups(items: Sequence[T], size: int) -> list[list[T]]:
    return [list(items[at : at + size]) for at in range(0, len(items), size)]


def states_of(
    problem_id: str, response: IntArray, boundaries: Boundaries, provenance: Provenance
) -> list[ReplayedState] | None:
    """The states of a response, which ends with an end-of-sequence token, at the depths; None if it is too short."""
    lengths = cuts(boundaries(response).tolist(), response.size - 1, DEPTHS)
    if lengths is None:
        return None
    return [ReplayedState(length, problem_id, response[:length], 0.0, provenance, 0) for length in lengths]


def choose(assay: Assay, roots: Sequence[Sequence[Judged]], count: int) -> list[Chosen]:
    """Problems with enough failures, half with a success and half without."""
    rng, parts = generator(assay.seed, "bench.real", "chosen"), assay.parts
    found: dict[bool, list[Chosen]] = {True: [], False: []}
    for at in rng.permutation(len(roots)).tolist():
        group = [roots[at][i] for i in rng.permutation(len(roots[at])).tolist()]
        name, cut = group[0].trajectory.start.problem_id, defaultdict[bool, list[list[ReplayedState]]](list)
        left: list[Reals] = []  # of the failures
        for item in group:
            one, kind = item.trajectory, own_provenance(item)
            states = states_of(name, one.response_ids, parts.boundaries, kind)
            if one.finish is Finish.STOP and states is not None:
                cut[item.verdict.correct].append(states)
                if not item.verdict.correct:
                    lengths = [state.prefix_ids.size for state in states]
                    left.append(1.0 - decided_share(one)[lengths].astype(np.float64))
        solved, solution = any(item.verdict.correct for item in group), parts.by_id[name].solution_ids
        usable = len(cut[False]) >= FAILURES and (not solved or cut[True])
        if usable and len(found[solved]) < count // 2:
            given = None
            if solution is not None:
                given = states_of(name, solution, parts.boundaries, Provenance.CANONICAL)
            success = cut[True][0] if solved else None
            found[solved].append(Chosen(name, cut[False][:FAILURES], np.stack(left[:FAILURES]), success, given))
    return [*found[True], *found[False]]


def measure(parts: Components, config: ResolvedConfig, directory: RunDirectory, scale: float) -> Row:
    """All stages of the assay. `scale`: share of the chosen problems, for trials (the rows are cut already)."""
    task = "gsm8k" if config.task.name == "gsm8k" else "mbpp"
    assay = Assay(parts, iteration_settings(config).sampling, config.run.seed, directory.path)
    roots = assay.stage("roots", lambda: assay.from_roots(parts.by_id, SAMPLES, "roots"))
    chosen = choose(assay, roots, max(4, round(scale * CHOSEN[task])))
    names = [one.problem_id for one in chosen]
    again = assay.stage("root again", lambda: assay.from_roots(names, CONTINUATIONS * len(DEPTHS), "again"))
    failed = [state for one in chosen for states in one.failures for state in states]
    tried = assay.stage("values", lambda: assay.continued(failed, TRIED, "values"))
    wins = np.array([[item.verdict.correct for item in group] for group in tried], np.float64)
    wins = wins.reshape(len(chosen), FAILURES, len(DEPTHS), TRIED)
    kinds = restart_states(chosen, wins.sum(axis=-1))
    rows: list[Row] = [
        {"solved": one.success is not None, "root": assay.tally(group)}
        for one, group in zip(chosen, again, strict=True)
    ]
    for kind, own in kinds.items():
        make = partial(assay.continued, list(own.values()), CONTINUATIONS, kind)
        for ((at, _), state), group in zip(own.items(), assay.stage(kind, make), strict=True):
            wrong = parts.task.prefix_is_wrong(state.problem_id, state.prefix_ids)
            rows[at].setdefault(kind, []).append([*assay.tally(group), wrong])
    values, critic = None, Row()
    if task == "gsm8k":
        others = [group for group in roots if group[0].trajectory.start.problem_id not in names]
        values, critic = assay.stage("critic", lambda: critic_values(assay, others, failed))
    tallies = [assay.tally(group) for group in roots]
    return {
        "scale": scale,
        "samples": SAMPLES,
        "roots": {
            "success": [one[0] for one in tallies],
            "tokens": sum(one[1] for one in tallies),
            "lucky": [sum(one[2] for one in tallies), sum(one[3] for one in tallies), sum(one[0] for one in tallies)],
            "truncated": float(np.mean([item.trajectory.finish.truncated for group in roots for item in group])),
        },
        "chosen": rows,
        "precision": precision(wins, values, np.stack([one.left.ravel() for one in chosen])),
        "critic": critic,
        "stages": assay.costs,
    }


def restart_states(chosen: Sequence[Chosen], wins: Reals) -> dict[str, dict[tuple[int, int], ReplayedState]]:
    """By kind of restart the states by (chosen problem, depth). `wins` [problem, failure, depth]: of their tries."""
    found: dict[str, dict[tuple[int, int], ReplayedState]] = {"own": {}, "random": {}, "best": {}, "canonical": {}}
    for at, one in enumerate(chosen):
        for depth in range(len(DEPTHS)):
            best = int(wins[at, :, depth].argmax())
            found["random"][at, depth] = one.failures[0][depth]  # they are in random order
            found["best"][at, depth] = one.failures[best][depth]
            for kind, states in (("own", one.success), ("canonical", one.canonical)):
                if states is not None:
                    found[kind][at, depth] = states[depth]
    return found


def critic_values(
    assay: Assay, roots: Sequence[Sequence[Judged]], states: Sequence[ReplayedState]
) -> tuple[list[float], Row]:
    """The values of states by a critic that has learnt from some of the samples of other problems, and how well it
    predicted each batch before it learnt from it."""
    learner, found = assay.parts.learner, []
    for at in range(0, len(roots), CRITIC_BATCH):
        batch = [item for group in roots[at : at + CRITIC_BATCH] for item in group[:LEARNT]]
        found.append(learner.update(learner.score(batch), assay.parts.boundaries).value_auc)
    values = [float(own[0]) for own in learner.values(value_queries(states, assay.parts.by_id))]
    return values, {"auc": found, "trajectories": LEARNT * len(roots)}


def precision(wins: Reals, values: Sequence[float] | None, left: Reals) -> dict[str, list[float]]:
    """By selector, for each chosen problem, the success of the state that it picks. `wins` [problem, failure, depth,
    try]; `values`: the critic's, of all these states in order; `left` [problem, state]: share of decisions to come."""
    problems, tries = len(wins), wins.reshape(len(wins), -1, wins.shape[-1])
    half = tries.shape[-1] // 2
    first, second = tries[..., :half].sum(axis=-1), tries[..., half:].mean(axis=-1)
    each = np.arange(problems)
    found = {"random": tries.mean(axis=(1, 2)), "half of the tries": second[each, first.argmax(axis=1)]}
    if values is not None:
        value = np.array(values).reshape(problems, -1)
        chance = model_chances(left, value, tries)
        for name, score in (("critic", value), ("success model", chance)):
            found[name] = tries.mean(axis=-1)[each, score.argmax(axis=1)]
    return {name: of_problems.tolist() for name, of_problems in found.items()}


def model_chances(left: Reals, value: Reals, tries: Reals) -> Reals:
    """[problem, state] the chance of success by the product's success model, fitted to the other half of the problems.
    `left` [problem, state]: share of decisions still to come; `value`: the critic's; `tries` [problem, state, try]."""
    scaled = (value - value.mean()) / (value.std() or 1.0)
    mean = np.broadcast_to(scaled.mean(axis=1, keepdims=True), scaled.shape)
    columns = {
        Feature.ONE: np.ones_like(left),
        Feature.LEFT: left,
        Feature.FAILED: np.ones_like(left),
        Feature.FAILED_LEFT: left,
        Feature.CANONICAL: np.zeros_like(left),
        Feature.PROBLEM_VALUE: mean,
        Feature.VALUE: scaled - mean,
        Feature.PARTIAL: np.zeros_like(left),
        Feature.PARTIAL_LEFT: np.zeros_like(left),
    }
    features = np.stack([columns[name] for name in Feature], axis=-1)  # [problem, state, F]
    won, found = tries.sum(axis=-1), np.zeros_like(left)
    for parity in (0, 1):
        own, other = slice(parity, None, 2), slice(1 - parity, None, 2)
        rows = features[other].reshape(-1, len(Feature))
        weights = fit(rows, won[other].ravel(), tries.shape[-1] - won[other].ravel())
        found[own] = sigmoid(features[own] @ np.array(weights))
    return found
