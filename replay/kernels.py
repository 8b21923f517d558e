"""The loops of a shard, compiled: hashing, merging, choosing, summing, drawing. No Python objects, no allocation per state.

Called by `replay/keys.py`, `replay/masses.py`, `replay/table.py` and `replay/shard.py`, which say what the numbers mean.
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
            stop = lengths[at]
            for place in range(done, stop):
                total += finalise(np.uint64(tokens[token + place]) + _ONE + np.uint64(place + 1) * _ODD)
            done = stop
            keys[at] = finalise(total)
        state += counts[trajectory]
        token += sizes[trajectory]
    return keys


@njit(cache=True)
def _slot(table: Array, known: Array, key: Any) -> Any:
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
            table[_slot(table, known, known[row])] = row
            row += 1
    after, owner = held.copy(), np.empty(len(keys), np.int64)
    leader, fresh = np.empty(len(keys), np.int64), np.empty(len(keys), np.bool_)
    state = 0
    for trajectory in range(len(counts)):
        problem = place[trajectory]
        for at in range(state, state + counts[trajectory]):
            known[total + at] = keys[at]
            slot = _slot(table, known, keys[at])
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
def locate(states: Array, starts: Array, held: Array, keys: Array) -> Array:
    """[N] row of each key among the states of its problem (block starts, held [N]); -1: not there."""
    rows = np.full(len(keys), -1, np.int64)
    for at in range(len(keys)):
        for row in range(starts[at], starts[at] + held[at]):
            if states[row]["key"] == keys[at]:
                rows[at] = row
                break
    return rows


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
def fade(states: Array, starts: Array, held: Array, factors: Array) -> None:
    """Multiply the outcomes of all states of problem i by factors[i]."""
    for problem in range(len(starts)):
        if factors[problem] != np.float32(1.0):
            for row in range(starts[problem], starts[problem] + held[problem]):
                states[row]["wins"] *= factors[problem]
                states[row]["losses"] *= factors[problem]


@njit(cache=True)
def enlist(heads: Array, following: Array, hashes: Array, first: int) -> None:
    """Enter problems from number `first` on into the lists of their slots (top 16 bits), in the order of their hashes."""
    for problem in range(first, len(hashes)):
        slot = np.int64(hashes[problem] >> np.uint64(48))
        before, at = -1, heads[slot]
        while at >= 0 and hashes[at] < hashes[problem]:
            before, at = at, following[at]
        following[problem] = at
        if before < 0:
            heads[slot] = problem
        else:
            following[before] = problem


@njit(cache=True)
def add_up(
    heads: Array,
    following: Array,
    hashes: Array,
    mass: Array,
    slots: Array,
    nodes: Array,
    groups: Array,
    changed: Array,
) -> None:
    """Renew the sums above the changed problems, each level summed in order."""
    fan_nodes, fan_groups = len(slots) // len(nodes), len(nodes) // len(groups)
    for index in range(len(changed)):
        slot = np.int64(hashes[changed[index]] >> np.uint64(48))
        total, at = 0.0, heads[slot]
        while at >= 0:
            total += mass[at]
            at = following[at]
        slots[slot] = total
    for index in range(len(changed)):
        node = np.int64(hashes[changed[index]] >> np.uint64(48)) // fan_nodes
        total = 0.0
        for at in range(node * fan_nodes, (node + 1) * fan_nodes):
            total += slots[at]
        nodes[node] = total
    for index in range(len(changed)):
        group = np.int64(hashes[changed[index]] >> np.uint64(48)) // fan_nodes // fan_groups
        total = 0.0
        for at in range(group * fan_groups, (group + 1) * fan_groups):
            total += nodes[at]
        groups[group] = total


@njit(cache=True)
def _step(masses: Array, first: int, stop: int, target: float) -> tuple[int, float]:
    """The entry of masses[first:stop] where their running sum passes `target`, and the target left inside it.

    Rounding may leave the target at or beyond the sum: then the last entry that has mass.
    """
    last = first
    for at in range(first, stop):
        if masses[at] > 0.0:
            if target < masses[at]:
                return at, target
            last = at
            target -= masses[at]
    return last, masses[last] * (1.0 - 2.0**-53)


@njit(cache=True)
def descend(
    heads: Array,
    following: Array,
    mass: Array,
    slots: Array,
    nodes: Array,
    groups: Array,
    chosen: Array,
    fractions: Array,
) -> tuple[Any, Any]:
    """Problems at fractions [m] in [0, 1) of the mass of the chosen groups [m], and the mass left inside each."""
    fan_nodes, fan_groups = len(slots) // len(nodes), len(nodes) // len(groups)
    problems, left = np.empty(len(chosen), np.int64), np.empty(len(chosen))
    for index in range(len(chosen)):
        group = chosen[index]
        target = fractions[index] * groups[group]
        node, target = _step(nodes, group * fan_groups, (group + 1) * fan_groups, target)
        slot, target = _step(slots, node * fan_nodes, (node + 1) * fan_nodes, target)
        at, last = heads[slot], heads[slot]
        while at >= 0:
            if mass[at] > 0.0:
                last = at
                if target < mass[at]:
                    break
                target -= mass[at]
            at = following[at]
        problems[index], left[index] = last, target
    return problems, left


@njit(cache=True)
def choose(
    states: Array, starts: Array, held: Array, targets: Array, temperature: float, pool: int, failed: int
) -> Array:
    """[m] rows of the states where the running mass of their problems' states passes `targets`; exp(promise / temperature)
    each. Rounding may leave a target at or beyond the sum: then the last state with mass.

    Only states of own failures (provenance `failed`) with `pool` 1, only others with 0, all with -1.
    """
    rows = np.empty(len(starts), np.int64)
    for index in range(len(starts)):
        target, rows[index] = targets[index], starts[index]
        for row in range(starts[index], starts[index] + held[index]):
            promise = states[row]["promise"]
            if promise == -np.inf or (pool >= 0 and (states[row]["provenance"] == failed) != (pool == 1)):
                continue
            rows[index] = row
            target -= np.exp(min(max(np.float64(promise) / temperature, -600.0), 600.0))
            if target < 0.0:
                break
    return rows


@njit(cache=True)
def tally(states: Array, rows: Array, correct: Array) -> int:
    """Count outcomes [N] of the states in `rows` (-1: of none); how many were of none."""
    lost = 0
    for at in range(len(rows)):
        row = rows[at]
        if row < 0:
            lost += 1
            continue
        states[row]["wins"] += np.float32(correct[at])
        states[row]["losses"] += np.float32(not correct[at])
        if states[row]["tried"] < 65535:
            states[row]["tried"] += 1
        if correct[at] and states[row]["solved"] < 65535:
            states[row]["solved"] += 1
    return lost


@njit(cache=True)
def replayable(states: Array, starts: Array, held: Array, failed: int) -> Array:
    """[2] states of the blocks that may be drawn: all but own failures (provenance `failed`), and those."""
    found = np.zeros(2, np.int64)
    for problem in range(len(starts)):
        for row in range(starts[problem], starts[problem] + held[problem]):
            if states[row]["promise"] > -np.inf:
                found[np.int64(states[row]["provenance"] == failed)] += 1
    return found
