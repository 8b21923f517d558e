"""Replay as a start source: states of earlier rollouts are starts again (RRL, arXiv 2504.14363).

Nobody else knows the store. `propose` draws states by their priority (`replay/rankings`). `extra` asks for the values
of stale states and for the scores of canonical solutions. `observe` stores outcomes and new states. Replay changes only
where rollouts start: continuations are on-policy, so a replayed prefix is treated like a prompt. (What succeeds behind
it is repeated by another source, the discoveries of `replay/imitation.py`.)

The draw: `Replay.wanted` says how many, `race` in which order. With `replay.bounded`, the default, `rested` then puts
the problems in order, and the race decides among equals and which state of a problem.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.config import ReplayConfig
from core.parts.sources import Progress, StartSource, root_start, state_start
from core.records import Boundaries, Problem, ReplayedState, Rollout, Start, Use, outcomes, used
from core.sections.replay import ReplaySchedule
from core.seeds import derive
from replay.coverage import Coverage, Life, continued
from replay.cutting import IsWrong, cut
from replay.rankings.base import Ranking
from replay.store.keys import gumbels
from replay.store.records import Candidates

if TYPE_CHECKING:
    from replay.store.store import ReplayStore

FILE = "draws.json"  # problem -> iteration that drew it last
PAUSE = 4  # iterations in which a problem is replayed once at most


def replayed_count(most: float, schedule: ReplaySchedule, progress: float, unsolved: float) -> int:
    """How many starts of an iteration are replayed, of at most `most`. `progress`: share of the run that is over.
    `unsolved`: recent share of fresh problems of which every sample failed: they teach nothing.

    >>> [replayed_count(64, schedule, 0.25, 0.5) for schedule in ("constant", "annealed", "unsolved")]
    [64, 48, 32]
    """
    return round(most * {"constant": 1.0, "annealed": 1.0 - progress, "unsolved": unsolved}[schedule])


def race(states: Candidates, ranking: Ranking, seed: int, *, one_of_each: bool) -> list[int]:
    """The places of states in the order of a draw without replacement, weighted by exp(priority / temperature).

    It is a Gumbel race (Kool et al., 1903.06059): the largest log weight + noise wins, of ties the larger key. The
    noise is a function of (seed, key), so the number of shards changes nothing. `one_of_each`: only the winner of each
    problem.
    """
    scores = states.priority / ranking.temperature + gumbels(states.keys, seed)
    order = np.lexsort((states.keys, scores))[::-1]
    if one_of_each:
        order = order[np.sort(np.unique(states.problem[order], return_index=True)[1])]
    places: list[int] = order.tolist()
    return places


def rested(
    problem_ids: Sequence[str], lives: Mapping[str, Life], begun: Mapping[str, int], iteration: int
) -> list[int]:
    """The places of problems that were last replayed `PAUSE` iterations ago or earlier. Those whose root failed come
    first, of equals those that were replayed longest ago, of equals as given. `begun`: the latest iteration that drew
    each problem, whose outcomes may not be known yet.

    Without rest the same few problems are drawn in every iteration, and replay can learn the ends of their responses by
    heart, or make them better and their beginnings worse. How often a state is drawn is bounded by the ranking
    `learnability`.
    """
    known = [lives.get(name, Life()) for name in problem_ids]
    last = [max(life.replayed, begun.get(name, 0)) for name, life in zip(problem_ids, known, strict=True)]
    ready = [place for place, latest in enumerate(last) if not latest or latest <= iteration - PAUSE]
    return sorted(ready, key=lambda place: (known[place].root_succeeds, last[place]))


@dataclass(frozen=True, slots=True)
class Cutting:
    """Where states may begin."""

    boundaries: Boundaries
    budget: int  # most tokens of a response
    is_wrong: IsWrong | None = None  # states after an error are left out


class Replay(StartSource):
    """The states of the store, as starts."""

    def __init__(
        self,
        config: ReplayConfig,
        store: "ReplayStore",
        problems: Mapping[str, Problem],
        coverage: Coverage,
        cutting: Cutting,
        refreshed: int,
        lost: Callable[[], list[Start]] = list,
    ) -> None:
        """`problems`: to train on, by id. `coverage`: what the run did with them. `refreshed`: states with an old value
        that are valued anew in an iteration. `lost`: returns the replayed starts that no engine could generate since
        the last call."""
        self._config, self._store, self._problems, self._coverage = config, store, problems, coverage
        self._cutting, self._refreshed, self._lost = cutting, refreshed, lost
        self._begun: dict[str, int] = {}  # problem -> latest observed iteration that drew it
        self._open: dict[str, int] = {}  # the same of the iteration that is not observed yet: it may be repeated
        self._requested, self._drawn = 0, 0  # states, since the last `observe`

    def wanted(self, most: int, at: Progress) -> int:
        """How many of `most` starts are replayed by the schedule, if the store has as many; half of that while the
        root succeeds less than it did (`Coverage.replay_costs`)."""
        config, progress = self._config, (at.iteration - 1) / at.iterations
        share = config.ratio / 2 if self._coverage.replay_costs else config.ratio
        return replayed_count(most * share, config.schedule, progress, self._store.decayed_unsolved_share)

    def propose(self, most: int, at: Progress) -> list[Start]:
        """States of high priority, for the share of the starts that the schedule gives, once the store holds enough;
        with `replay.bounded` one of each problem that has rested. None while all rest: fresh problems take the
        places, and `store_hit_rate` falls."""
        config, store, wanted = self._config, self._store, self.wanted(most, at)
        if not wanted or len(store) < config.start_states:
            return []
        seed = derive(derive(at.seed, "replay", at.iteration, *([at.round] if at.round else [])), "replay")
        states, ranking = store.candidates(), store.ranking
        order = race(states, ranking, seed, one_of_each=config.bounded or ranking.one_per_problem)
        if config.bounded:
            problem_ids, begun = states.problem_ids(order), self._begun | self._open
            order = [order[place] for place in rested(problem_ids, self._coverage.lives, begun, at.iteration)]
        drawn = store.draw(states, order[:wanted])
        self._requested, self._drawn = self._requested + wanted, self._drawn + len(drawn)
        self._open |= {state.problem_id: at.iteration for state in drawn}
        return [self._start(state, at, index) for index, state in enumerate(drawn)]

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:
        """Canonical solutions of the problems of this iteration's fresh starts, to be scored; and the states of highest
        priority whose value is from an earlier critic, to be valued."""
        stale = self._store.top(self._refreshed, older_than=at.version) if self._refreshed else []
        queries = (self._start(state, at, index, "valued") for index, state in enumerate(stale))
        valued = [Rollout.given(start, np.zeros(1, np.int32), Use.VALUE) for start in queries]
        return [*self._solutions(rollouts, at), *valued]

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Store new values, outcomes of replayed states, and the states of the rollouts; none behind a prefix of
        another source, whose text is not the policy's own."""
        store, cutting = self._store, self._cutting
        store.count_draws(self._requested, self._drawn)  # not in `propose`: the iteration may be repeated
        self._requested, self._drawn = 0, 0
        self._begun, self._open = self._begun | self._open, {}
        store.revalue([one for one in used(rollouts, Use.VALUE) if np.isfinite(one.values[0])], at.version)
        store.record(continued(rollouts))
        own = [one for one in outcomes(rollouts) if one.start.from_root or one.start.replayed]
        solutions = [one for one in used(rollouts, Use.SOLUTION) if np.isfinite(one.proximal).all()]
        finite = [one for one in (*own, *solutions) if math.isfinite(one.verdict.reward)]
        store.add([cut(one, cutting.boundaries, cutting.budget, cutting.is_wrong) for one in finite], at.version)
        lost = [start for start in self._lost() if start.replayed]
        store.remove(lost)  # last: the iteration may have stored one of them again

    def save(self, folder: Path) -> None:
        """See `StartSource`. An iteration that is not observed yet will be repeated, so it has drawn nothing."""
        self._store.save(folder)  # makes the folder
        (folder / FILE).write_text(json.dumps(self._begun), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        self._lost()  # of the iteration that will be repeated
        self._begun, self._open = {}, {}
        self._requested, self._drawn = 0, 0
        if folder is None:
            self._store.clear()
        else:
            self._begun = json.loads((folder / FILE).read_text(encoding="utf-8"))
            self._store.restore(folder)

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        stats = self._store.stats()
        names = ("states", "replayable", "hit_rate", "mean_age", "max_age", "mean_depth", "mean_value")
        numbers = {f"store_{name}": getattr(stats, name) for name in names}
        numbers |= {"store_bytes": stats.memory_bytes, "store_evictions": stats.evicted}
        numbers["store_memory"] = stats.resident_bytes / 2**30
        return numbers | {"lost_outcomes": stats.lost_outcomes, "replay_halved": int(self._coverage.replay_costs)}

    def close(self) -> None:
        """Stop the shards."""
        self._store.close()

    def _start(self, state: ReplayedState, at: Progress, index: int, kind: str = "replayed") -> Start:
        return state_start(self._problems[state.problem_id], state.prefix_ids, state.key, at, index, kind)

    def _solutions(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:
        if not self._config.canonical:
            return []
        names = dict.fromkeys(r.start.problem_id for r in used(rollouts, Use.TRAIN, Use.COUNT) if r.start.from_root)
        problems = [self._problems[name] for name in names]
        return [
            Rollout.given(root_start(problem, at, index, "canonical"), solution, Use.SOLUTION, problem.solution_mask)
            for index, problem in enumerate(problems)
            if (solution := problem.solution_ids) is not None and solution.size
        ]
