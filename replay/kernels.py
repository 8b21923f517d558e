"""The loops of a shard's writes, compiled: hashing, merging, choosing, counting. No Python objects, no allocation per state.

Called by `replay/keys.py`, `replay/table.py` and `replay/shard.py`, which say what the numbers mean; draws: `replay/drawing.py`.
Invariant: the same inputs give the same bits, however the problems are spread over shards: every sum is taken in a fixed
order, and no loop runs in parallel. Compiled at the first call (some seconds once per machine) and kept beside this file. They
hold the interpreter: to give it away for less than a millisecond to a snapshot that is being written would cost five.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_ONE = np.uint64(1)


@njit(cache=True, inline="always")
def finalise(x: Any) -> Any:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


@njit(cache=True)
def prefix_keys(seeds: Array, tokens: Array, sizes: Array, counts: Array, lengths: Array) -> Array:
    """See `replay.keys.state_keys`: seeds [T] uint64, tokens uint32, sizes and counts [T], lengths [S] -> [S] uint64."""
    keys = np.empty(len(lengths), np.uint64)
    token, state = 0, 0
    for trajectory in range(len(sizes)):
        total, done = seeds[trajectory], 0
        for at in range(state, state + counts[trajectory]):
            added = tokens[token + done : token + lengths[at]]  # a slice, counted from 0: so it becomes vector code
            for place in range(len(added)):
                total += finalise(np.uint64(added[place]) + _ONE + np.uint64(done + place + 1) * _ODD)
            done = lengths[at]
            keys[at] = finalise(total)
        state += counts[trajectory]
        token += sizes[trajectory]
    return keys


@njit(cache=True)
def find_slot(table: Array, known: Array, key: Any) -> Any:
    """Place of a key in an open-addressing table of indices into `known` (-1: free)."""
    mask = len(table) - 1
    at = np.int64(key & np.uint64(mask))
    while table[at] >= 0 and known[table[at]] != key:
        at = (at + 1) & mask
    return at


@njit(cache=True)
def join(states: Array, starts: Array, held: Array, place: Array, counts: Array, keys: Array) -> tuple[Any, Any, Any]:
    """Where the rows of problems go when new states join what they hold, equal keys together.

    The problems' blocks in `states` are starts, held [P]; trajectories are of problem place[t] and bring counts[t] of the
    keys [S]. Returns the rows of each problem afterwards [P], the target row of each new state [S] (rows of a problem
    adjacent, those it held first), and whether the state is the first there [S].
    """
    total = held.sum()
    size = 64
    while size < 2 * (total + len(keys)):
        size *= 2
    table, known = np.full(size, -1, np.int32), np.empty(total + len(keys), np.uint64)
    row = 0
    for problem in range(len(starts)):
        for at in range(starts[problem], starts[problem] + held[problem]):
            known[row] = states[at]["key"]
            table[find_slot(table, known, known[row])] = row
            row += 1
    after, owner = held.copy(), np.empty(len(keys), np.int64)
    leader, fresh = np.empty(len(keys), np.int64), np.empty(len(keys), np.bool_)
    state = 0
    for trajectory in range(len(counts)):
        problem = place[trajectory]
        for at in range(state, state + counts[trajectory]):
            known[total + at] = keys[at]
            slot = find_slot(table, known, keys[at])
            owner[at], fresh[at] = problem, table[slot] < 0
            if fresh[at]:
                table[slot] = total + at
                after[problem] += 1
            leader[at] = table[slot]
        state += counts[trajectory]
    return _targets(held, after, owner, leader, fresh), after, fresh


@njit(cache=True)
def _targets(held: Array, after: Array, owner: Array, leader: Array, fresh: Array) -> Array:
    """Target rows for `join`: `leader` counts the held rows of all problems first, then the new states."""
    total = held.sum()
    moved, cursor = np.empty(total, np.int64), np.empty(len(held), np.int64)
    row, base = 0, 0
    for problem in range(len(held)):
        for step in range(held[problem]):
            moved[row] = base + step
            row += 1
        cursor[problem] = base + held[problem]
        base += after[problem]
    target = np.empty(len(owner), np.int64)
    for at in range(len(owner)):
        if fresh[at]:
            target[at] = cursor[owner[at]]
            cursor[owner[at]] += 1
        elif leader[at] < total:
            target[at] = moved[leader[at]]
        else:
            target[at] = target[leader[at] - total]
    return target


@njit(cache=True)
def merge(
    states: Array, starts: Array, held: Array, after: Array, target: Array, fresh: Array, keys: Array, lengths: Array,
    values: Array, counts: Array, versions: Array, provenance: Array, base: int,
) -> Array:  # fmt: skip
    """Rows [sum of after] of the problems of `join`: what they held, and the new states, trajectories numbered from `base`.

    Of equal states the newer value wins (of equals the later one), and the higher provenance keeps its trajectory: a
    proven prefix stays proven.
    """
    rows = np.zeros(after.sum(), states.dtype)
    row = 0
    for problem in range(len(starts)):
        for step in range(held[problem]):
            rows[row + step] = states[starts[problem] + step]
        row += after[problem]
    at = 0
    for trajectory in range(len(counts)):
        version, origin = versions[trajectory], provenance[trajectory]
        for _ in range(counts[trajectory]):
            into = target[at]
            if fresh[at]:
                rows[into]["key"], rows[into]["length"] = keys[at], lengths[at]
                rows[into]["version"] = version
            if version >= rows[into]["version"]:
                rows[into]["value"], rows[into]["version"] = values[at], version
            if fresh[at] or origin > rows[into]["provenance"]:
                rows[into]["trajectory"], rows[into]["provenance"] = base + trajectory, origin
            at += 1
    return rows


@njit(cache=True)
def best(ranks: Array, counts: Array, quota: int) -> Array:
    """[S] which rows stay when each problem (counts[i] adjacent rows) keeps its `quota` of highest rank (ties: the later)."""
    stays = np.ones(len(ranks), np.bool_)
    first = 0
    for problem in range(len(counts)):
        count = counts[problem]
        if count > quota:
            ordered = np.sort(ranks[first : first + count])
            bar = ordered[count - quota]
            room = quota
            for at in range(first, first + count):
                stays[at] = ranks[at] > bar
                room -= stays[at]
            for at in range(first + count - 1, first - 1, -1):
                if ranks[at] == bar and room > 0:
                    stays[at] = True
                    room -= 1
        first += count
    return stays


@njit(cache=True)
def refer(references: Array, states: Array, starts: Array, held: Array, rows: Array) -> Array:
    """Count the references of `rows` to trajectories instead of those in the blocks; trajectories that lost the last one."""
    for row in range(len(rows)):
        references[rows[row]["trajectory"]] += 1
    dead = np.empty(held.sum(), np.int64)
    found = 0
    for problem in range(len(starts)):
        for row in range(starts[problem], starts[problem] + held[problem]):
            trajectory = states[row]["trajectory"]
            references[trajectory] -= 1
            if references[trajectory] == 0:
                dead[found] = trajectory
                found += 1
    return dead[:found]


@njit(cache=True)
def store(states: Array, starts: Array, held: Array, rows: Array, counts: Array) -> None:
    """Write rows, counts[i] for problem i, into the blocks at starts [P]; rows held beyond that are cleared."""
    row = 0
    empty = np.zeros(1, states.dtype)
    for problem in range(len(starts)):
        first = starts[problem]
        for step in range(counts[problem]):
            states[first + step] = rows[row]
            row += 1
        for step in range(counts[problem], held[problem]):
            states[first + step] = empty[0]


@njit(cache=True)
def distinct(numbers: Array) -> tuple[Any, Any]:
    """The different ones of some numbers [N] in the order of their first appearance, and which of them each is [N]."""
    size = 64
    while size < 2 * len(numbers):
        size *= 2
    table, known = np.full(size, -1, np.int32), np.empty(len(numbers), np.uint64)
    place, found = np.empty(len(numbers), np.int64), 0
    for at in range(len(numbers)):
        known[found] = np.uint64(numbers[at])
        slot = find_slot(table, known, known[found])
        if table[slot] < 0:
            table[slot] = found
            found += 1
        place[at] = table[slot]
    return known[:found].astype(np.int64), place


@njit(cache=True)
def columns(
    rows: Array, owner: Array, problems: Array, touched: Array, trajectories: Array, base: int, sizes: Array
) -> tuple[Any, Any, Any]:
    """What rankings read of some states: see `replay.columns.Columns`. State i is of problem touched[owner[i]].

    value, wins, losses, root wins, root losses [5, S]; chain, length, total, tried [4, S]; provenance [S]. Trajectories from
    number `base` on are not in the table yet, and have these sizes.
    """
    reals, ints = np.empty((5, len(rows)), np.float32), np.empty((4, len(rows)), np.int64)
    provenance = np.empty(len(rows), np.uint8)
    for at in range(len(rows)):
        problem, chain = touched[owner[at]], np.int64(rows[at]["trajectory"])
        reals[0, at], reals[1, at], reals[2, at] = rows[at]["value"], rows[at]["wins"], rows[at]["losses"]
        reals[3, at], reals[4, at] = problems[problem]["wins"], problems[problem]["losses"]
        ints[0, at], ints[1, at], ints[3, at] = chain, rows[at]["length"], rows[at]["tried"]
        ints[2, at] = sizes[chain - base] if chain >= base else trajectories[chain]["size"]
        provenance[at] = rows[at]["provenance"]
    return reals, ints, provenance


@njit(cache=True)
def age(states: Array, problems: Array, numbers: Array, versions: Array, decay: float) -> None:
    """Decay the outcomes of problems `numbers` [N] and of their states up to the versions [N] of what is written of them."""
    for index in range(len(numbers)):
        problem, version = numbers[index], versions[index]
        late = version - problems[problem]["touched"]
        if late <= 0:
            continue
        problems[problem]["touched"] = version
        factor = np.float32(decay ** np.float64(late))
        if factor == np.float32(1.0):
            continue
        problems[problem]["wins"] *= factor
        problems[problem]["losses"] *= factor
        first = problems[problem]["start"]
        for row in range(first, first + problems[problem]["count"]):
            states[row]["wins"] *= factor
            states[row]["losses"] *= factor


@njit(cache=True)
def count_roots(
    problems: Array, numbers: Array, parent: Array, provenance: Array, canonical: int, successful: int
) -> tuple[int, int]:
    """Count rollouts from roots among trajectories [T]: those without a parent, canonical ones apart; how many, solved."""
    tried, solved = 0, 0
    for index in range(len(numbers)):
        if parent[index] != 0 or provenance[index] == canonical:
            continue
        won = int(provenance[index] == successful)
        problem = numbers[index]
        problems[problem]["tried"] += np.int32(1)
        problems[problem]["solved"] += np.int32(won)
        problems[problem]["wins"] += np.float32(won)
        problems[problem]["losses"] += np.float32(1 - won)
        tried, solved = tried + 1, solved + won
    return tried, solved


@njit(cache=True)
def _find(states: Array, problems: Array, problem: int, key: Any) -> int:
    """Row of the state of a problem with this key; -1: not there."""
    first = problems[problem]["start"]
    for row in range(first, first + problems[problem]["count"]):
        if states[row]["key"] == key:
            return row
    return -1


@njit(cache=True)
def tally(states: Array, problems: Array, numbers: Array, keys: Array, correct: Array) -> int:
    """Count outcomes [N] of states of the problems `numbers`; how many were of states that are not there."""
    lost = 0
    for index in range(len(keys)):
        row = _find(states, problems, numbers[index], keys[index])
        if row < 0:
            lost += 1
            continue
        states[row]["wins"] += np.float32(correct[index])
        states[row]["losses"] += np.float32(not correct[index])
        if states[row]["tried"] < 65535:
            states[row]["tried"] += 1
        if correct[index] and states[row]["solved"] < 65535:
            states[row]["solved"] += 1
    return lost


@njit(cache=True)
def revalue(
    states: Array, problems: Array, numbers: Array, keys: Array, values: Array, versions: Array
) -> tuple[Any, Any]:
    """Give states new values [N] where these are not older than what is held; rows that changed, and their problems."""
    rows, owners = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    found = 0
    for index in range(len(keys)):
        row = _find(states, problems, numbers[index], keys[index])
        if row >= 0 and versions[index] >= states[row]["version"]:
            states[row]["value"], states[row]["version"] = values[index], versions[index]
            rows[found], owners[found] = row, numbers[index]
            found += 1
    return rows[:found], distinct(owners[:found])[0]


@njit(cache=True)
def totals(states: Array, newest: int) -> tuple[float, int, float, float]:
    """Over all states: sum of versions, the oldest of them (`newest` without states), sums of values and of lengths."""
    versions, oldest, values, depths = 0.0, newest, 0.0, 0.0
    for row in range(len(states)):
        if states[row]["key"] != 0:
            versions += np.float64(states[row]["version"])
            oldest = min(oldest, states[row]["version"])
            values += np.float64(states[row]["value"])
            depths += np.float64(states[row]["length"])
    return versions, oldest, values, depths


OUTSIDE, FALLING, INFINITE = 1, 2, 3
"""What can be wrong with a state; see `flaw`."""


@njit(cache=True)
def flaw(sizes: Array, counts: Array, lengths: Array, values: Array) -> tuple[int, int, int]:
    """The first state (counts[t] of trajectory t, one after the other) that cannot be: what is wrong (0: none is), which, whose.

    Its length is not strictly inside its trajectory, or not above that of the state before it, or its value is not finite.
    """
    state = 0
    for trajectory in range(len(counts)):
        before = 0
        for at in range(state, state + counts[trajectory]):
            if lengths[at] <= 0 or lengths[at] >= sizes[trajectory]:
                return OUTSIDE, at, trajectory
            if lengths[at] <= before:
                return FALLING, at, trajectory
            if not np.isfinite(values[at]):
                return INFINITE, at, trajectory
            before = lengths[at]
        state += counts[trajectory]
    return 0, 0, 0


@njit(cache=True)
def narrow(tokens: Array, vocabulary: int, out: Array) -> int:
    """Copy token ids into a smaller type; the first that is not in [0, vocabulary), or -1."""
    bad = False
    for at in range(len(tokens)):
        bad |= tokens[at] < 0 or tokens[at] >= vocabulary
        out[at] = tokens[at]
    if bad:
        for at in range(len(tokens)):
            if tokens[at] < 0 or tokens[at] >= vocabulary:
                return at
    return -1
