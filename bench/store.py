"""How much time does the replay store take in a training run? `python -m bench.store [--quick]`.

Every iteration does the loop's work on a store in a Ray actor with a journal: draw starts, find stale states, cut
trajectories at their boundaries, record outcomes, store new values, add states. It runs at the demo's sizes, where the
goal is a share of the demo's iteration (`bench.loop`), and with a million states and long responses.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.models import local_ray
from bench.report import RESULTS, Check, check, command_line, write
from core.config import ReplayConfig
from core.records import EMPTY, Finish, IntArray, ReplayedState, Rollout, Start, Use, Verdict
from replay.boundaries import TokenTable, boundaries
from replay.cutting import States
from replay.source import race
from replay.store.store import ReplayStore

VOCABULARY = 32_000
NEWLINE = 1
TABLE = TokenTable((b"ab", b"\n", *[b" c"] * (VOCABULARY - 2)))
CONTINUATIONS = 4  # per replayed state
REPEATS = 10
Seconds = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of the store and of one iteration."""

    name: str
    states: int
    trajectories: int  # per iteration
    tokens: int  # per trajectory
    step: int  # tokens per line
    replayed: int  # starts per iteration
    problems: int


DEMO = Size("demo", 50_000, 512, 60, 7, 64, 2_500)
LARGE = Size("large", 1_000_000, 1_024, 1_000, 40, 128, 40_000)


def responses(size: Size, seed: int) -> list[IntArray]:
    """The token ids of an iteration's trajectories, a line break every `step` tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(2, VOCABULARY, (size.trajectories, size.tokens), dtype=np.int32)
    tokens[:, size.step - 1 :: size.step] = NEWLINE
    return list(tokens)


def rollout_of(problem: str, tokens: IntArray, correct: bool, version: int, state: ReplayedState | None) -> Rollout:
    """A judged continuation of the root, or of a state."""
    start = Start("", problem, EMPTY, EMPTY, 1, 0, None if state is None else state.key)
    logprobs, versions = np.full(len(tokens), -1.0, np.float32), np.full(len(tokens), version, np.int32)
    return Rollout(start, 0, tokens, logprobs, versions, Finish.STOP, verdict=Verdict(float(correct), correct))


def found_states(size: Size, made: list[IntArray], lengths: list[IntArray], seed: int, version: int) -> list[States]:
    """The states of the responses, with values; a quarter of them succeed."""
    rng = np.random.default_rng(seed)
    problems = rng.integers(0, size.problems, len(made)).tolist()
    kinds = rng.random(len(made)) < 0.25
    return [
        States(replace(rollout_of(f"problem-{p}", t, won, version, None), values=rng.random(len(t), np.float32)), k)
        for p, t, k, won in zip(problems, made, lengths, kinds.tolist(), strict=True)
    ]


def draw(store: ReplayStore, count: int, seed: int) -> list[ReplayedState]:
    """States as the replay source draws them."""
    states = store.candidates()
    return store.draw(states, race(states, store.ranking, seed, one_of_each=True)[:count])


def iteration(store: ReplayStore, size: Size, number: int, seconds: Seconds) -> None:
    """Do one iteration's work on the store and time it by kind."""

    def _timed(kind: str, action: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = action()
        seconds.setdefault(kind, []).append(time.perf_counter() - start)
        return found

    made = responses(size, number)
    drawn = _timed("draw", partial(draw, store, size.replayed, number))
    stale = _timed("stale states", partial(store.top, 256, older_than=number))
    lengths = _timed("boundaries", lambda: [boundaries(tokens, TABLE, "line", 0) for tokens in made])
    one = np.zeros(1, np.int32)
    outcomes = [rollout_of(s.problem_id, one, i % 3 == 0, number, s) for s in drawn for i in range(CONTINUATIONS)]
    valued = [
        replace(rollout_of(s.problem_id, one, False, number, s), use=Use.VALUE, values=np.full(1, 0.5, np.float32))
        for s in stale
    ]
    _timed("record", partial(store.record, outcomes))
    _timed("revalue", partial(store.revalue, valued, number))
    _timed("add", partial(store.add, found_states(size, made, lengths, number, number), number))


def measure(size: Size, ranking: str) -> list[Check]:
    """Fill a store, then time iterations on the full store, and a checkpoint."""
    config = ReplayConfig.model_validate({"ranking": ranking, "capacity": size.states, "imitated": 32})
    name = f"{size.name}, {ranking}"
    with tempfile.TemporaryDirectory() as folder:
        live, saved = Path(folder) / "live", Path(folder) / "saved"
        store = ReplayStore(config, vocabulary=VOCABULARY, directory=live, fingerprint="bench")
        filling, seconds, number = Seconds(), Seconds(), 0
        while number < REPEATS or len(store) < size.states * 63 // 64:
            number += 1
            iteration(store, size, number, filling)
        for later in range(number + 1, number + 1 + REPEATS):
            iteration(store, size, later, seconds)
        checks = [check(f"{name}: {kind}", median(spent) * 1e3, "ms") for kind, spent in seconds.items()]
        work = list(map(sum, zip(filling["boundaries"], filling["add"], strict=True)))  # the first draws nothing
        checks += summary(name, size, work, median(map(sum, zip(*seconds.values(), strict=True))))
        stats = store.stats()
        checks.append(check(f"{name}: memory per state", stats.memory_bytes / stats.states, "bytes", "<=", 200))
        checks.append(check(f"{name}: of which tokens", stats.token_bytes / stats.states, "bytes"))
        start = time.perf_counter()
        store.save(saved)
        written = time.perf_counter()
        store.restore(saved)
        loaded = time.perf_counter()
        checks.append(check(f"{name}: write a checkpoint", written - start, "s", "<=", 5))
        checks.append(check(f"{name}: load a checkpoint", loaded - written, "s", "<=", 5))
        store.close()
    return checks


def summary(name: str, size: Size, filling: list[float], spent: float) -> list[Check]:
    """All work of an iteration against its goal, and the first `filling` seconds against the tenth."""
    first = check(f"{name}: first boundaries and add / tenth", filling[0] / filling[9], "ratio", "<=", 1.5)
    if size.name != DEMO.name:
        return [check(f"{name}: all work of an iteration", spent, "s", "<=", 1.0), first]
    whole = json.loads((RESULTS / "loop.json").read_text(encoding="utf-8"))["checks"]
    reference = next(item["value"] for item in whole if item["name"] == "seconds per iteration")
    share = check(f"{name}: share of the demo's iteration", spent / reference, "share", "<=", 0.01, reference)
    return [check(f"{name}: all work of an iteration", spent, "s"), share, first]


def main(quick: bool) -> None:
    """Run and write the results; `quick`: only the demo's sizes."""
    sizes = (DEMO,) if quick else (DEMO, LARGE)
    with local_ray():
        checks = [item for size in sizes for ranking in ("learnability", "value") for item in measure(size, ranking)]
    settings = {"repeats": REPEATS, "vocabulary": VOCABULARY, "continuations": CONTINUATIONS, "shards": 1}
    write("store", checks, settings, quick=quick)


if __name__ == "__main__":
    main(command_line(__doc__).parse_args().quick)
