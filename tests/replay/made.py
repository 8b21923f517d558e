"""States and outcomes as the replay source gives them to the store."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.records import EMPTY, Finish, IntArray, Provenance, ReplayedState, Rollout, Start, Use, Verdict
from core.seeds import derive
from replay.cutting import States
from replay.source import race
from replay.store.shard import Shard
from replay.store.store import ReplayStore

VERDICTS = {
    Provenance.OWN_FAILED: Verdict(0.0, False),
    Provenance.OWN_PARTIAL: Verdict(0.0, False, share=0.5),
    Provenance.OWN_SUCCESSFUL: Verdict(0.0, True),
    Provenance.CANONICAL: Verdict(0.0, True),
}


def rollout(start: Start, tokens: object, verdict: Verdict, version: int = 1, use: Use = Use.TRAIN) -> Rollout:
    """A continuation whose tokens have equal probabilities."""
    ids = np.array(tokens, np.int32)
    log_p, versions = np.full(ids.size, -1.0, np.float32), np.full(ids.size, version, np.int32)
    return Rollout(start, 0, ids, log_p, versions, Finish.STOP, use=use, verdict=verdict)


def states(
    problem: str, tokens: object, lengths: object, values: object, provenance: Provenance = Provenance.OWN_FAILED
) -> States:
    """The states of a rollout from the root."""
    cuts = np.array(lengths, np.int32)
    use = Use.SOLUTION if provenance is Provenance.CANONICAL else Use.TRAIN
    made = rollout(Start("", problem, EMPTY, EMPTY, 1, 0), tokens, VERDICTS[provenance], use=use)
    known = np.zeros(made.tokens.size, np.float32)
    known[cuts] = np.array(values, np.float32)
    return States(replace(made, values=known, proximal=made.logprobs), cuts)


def of_kind(found: States, provenance: Provenance) -> States:
    """The same tokens and states from another source."""
    return states(found.problem_id, found.rollout.tokens, found.lengths, found.values, provenance)


def outcome(key: int, problem: str, correct: bool, version: int, share: float | None = None) -> Rollout:
    """A continuation of a replayed state."""
    return rollout(start_of(key, problem, EMPTY), [1], Verdict(0.0, correct, share=share), version)


def outcomes(drawn: Sequence[ReplayedState], correct: bool, version: int) -> list[Rollout]:
    """One continuation of each state."""
    return [outcome(state.key, state.problem_id, correct, version) for state in drawn]


def valued(key: int, problem: str, value: float) -> Rollout:
    """A state with a new value."""
    made = rollout(start_of(key, problem, EMPTY), [0], Verdict(0.0, False), use=Use.VALUE)
    return replace(made, values=np.array([value], np.float32))


def start_of(key: int, problem: str, prefix: IntArray) -> Start:
    """A replayed start."""
    return Start("", problem, EMPTY, prefix, 1, 0, key)


def sample(store: ReplayStore, count: int, seed: int) -> list[ReplayedState]:
    """A draw by the priority alone, as the replay source makes it."""
    states = store.candidates()
    order = race(states, store.ranking, derive(seed, "replay"), one_of_each=store.ranking.one_per_problem)
    return store.draw(states, order[:count])


def best(shard: Shard) -> list[ReplayedState]:
    """The states of a shard that may be drawn, highest priority first."""
    states = shard.candidates()
    order = np.argsort(-states.priority, kind="stable").tolist()
    return shard.fetch(states.problem_ids(order), states.keys[order].tolist())
