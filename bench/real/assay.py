"""The assay: restarts from states of several kinds against the root, without reinforcement learning (PROTOCOL.md, P0).
Engines and judges are the product's own. Each stage is kept in the run's folder, so a run that was killed
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

from core.config import ResolvedConfig
from core.parts.sources import Progress, roots, state_start
from core.records import EMPTY, Boundaries, Finish, IntArray, Provenance, ReplayedState, Rollout, Sampling, Start
from core.run_directory import RunDirectory
from core.seeds import derive, generator
from replay.cutting import States
from trainer.build import step_ends
from trainer.engines import SynchronousEngines
from trainer.run import Run

DEPTHS = (0.2, 0.4, 0.6, 0.8)
SAMPLES = 16  # from each root
CHOSEN = 20  # problems whose states are tried
FAILURES = 4  # of each
TRIED = 4  # continuations of each failed state, for its Monte-Carlo value
CONTINUATIONS = 8  # of each restart
Row = dict[str, Any]
Reals = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(slots=True)
class Assay:
    """The parts of a run, and what its stages cost."""

    run: Run
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

    def from_roots(self, problem_ids: Iterable[str], samples: int, label: str) -> list[list[Rollout]]:
        """Samples of each problem."""
        problems = [self.run.problems[name] for name in problem_ids]
        starts = roots(problems, samples, derive(self.seed, label))
        return _groups(self.run.task.judge(self.run.pool.generate(starts, self.sampling)), samples)

    def continued(self, states: Sequence[ReplayedState], samples: int, label: str) -> list[list[Rollout]]:
        """Continuations of each state."""
        starts = self.starts(states, samples, label)
        return _groups(self.run.task.judge(self.run.pool.generate(starts, self.sampling)), samples)

    def starts(self, states: Sequence[ReplayedState], samples: int, label: str) -> list[Start]:
        """The states as starts."""
        at = Progress(derive(self.seed, label), 0, 0, samples)
        return [
            state_start(self.run.problems[state.problem_id], state.prefix_ids, state.key, at, index)
            for index, state in enumerate(states)
        ]

    def tally(self, judged: Sequence[Rollout]) -> list[int]:
        """Successes, generated tokens; of the successes those with something wrong, and those that can be checked."""
        won = [item for item in judged if item.verdict.correct]
        told = [self.run.task.prefix_is_wrong(one.start.problem_id, one.response_ids) for one in won]
        tokens = sum(item.tokens.size for item in judged)
        return [len(won), tokens, told.count(True), len(told) - told.count(None)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A problem whose states are tried."""

    problem_id: str
    failures: list[list[ReplayedState]]  # [FAILURES][depth]
    success: list[ReplayedState] | None  # [depth] of an own success
    canonical: list[ReplayedState] | None


def _generated(found: Any) -> int:
    items = [item for group in found if isinstance(group, list) for item in group if isinstance(item, Rollout)]
    return sum(item.tokens.size for item in items)


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


def choose(assay: Assay, roots: Sequence[Sequence[Rollout]], count: int, boundaries: Boundaries) -> list[Chosen]:
    """Problems with enough failures, half with a success and half without."""
    rng, run = generator(assay.seed, "bench.real", "chosen"), assay.run
    found: dict[bool, list[Chosen]] = {True: [], False: []}
    for at in rng.permutation(len(roots)).tolist():
        group = [roots[at][i] for i in rng.permutation(len(roots[at])).tolist()]
        name, cut = group[0].start.problem_id, defaultdict[bool, list[list[ReplayedState]]](list)
        for item in group:
            kind = States(item, EMPTY).provenance
            states = states_of(name, item.response_ids, boundaries, kind)
            if item.finish is Finish.STOP and states is not None:
                cut[item.verdict.correct].append(states)
        solved, solution = any(item.verdict.correct for item in group), run.problems[name].solution_ids
        usable = len(cut[False]) >= FAILURES and (not solved or cut[True])
        if usable and len(found[solved]) < count // 2:
            given = None
            if solution is not None:
                given = states_of(name, solution, boundaries, Provenance.CANONICAL)
            success = cut[True][0] if solved else None
            found[solved].append(Chosen(name, cut[False][:FAILURES], success, given))
    return [*found[True], *found[False]]


def measure(run: Run, config: ResolvedConfig, directory: RunDirectory, scale: float) -> Row:
    """All stages of the assay. `scale`: share of the chosen problems, for trials (the rows are cut already)."""
    assert isinstance(run.engines, SynchronousEngines)
    assay = Assay(run, run.engines.sampling, config.run.seed, directory.path)
    roots = assay.stage("roots", lambda: assay.from_roots(run.problems, SAMPLES, "roots"))
    chosen = choose(assay, roots, max(4, round(scale * CHOSEN)), step_ends(config, run.task))
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
            wrong = run.task.prefix_is_wrong(state.problem_id, state.prefix_ids)
            rows[at].setdefault(kind, []).append([*assay.tally(group), wrong])
    tallies = [assay.tally(group) for group in roots]
    return {
        "scale": scale,
        "samples": SAMPLES,
        "roots": {
            "success": [one[0] for one in tallies],
            "tokens": sum(one[1] for one in tallies),
            "lucky": [sum(one[2] for one in tallies), sum(one[3] for one in tallies), sum(one[0] for one in tallies)],
            "truncated": float(np.mean([item.finish.truncated for group in roots for item in group])),
        },
        "chosen": rows,
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


def cuts(allowed: Sequence[int], size: int, depths: Sequence[float]) -> tuple[int, ...] | None:
    """The lengths next to these shares of a response of `size` tokens; None if two of them are the same.

    >>> cuts([1, 2, 4, 5, 6], 7, (0.25, 0.5)), cuts([1], 7, (0.25, 0.5))
    ((2, 4), None)
    """
    found = tuple(min(allowed, key=lambda length: abs(length - depth * size)) for depth in depths) if allowed else ()
    return found if len(set(found)) == len(depths) else None
