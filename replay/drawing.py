"""Draws in proportion to mass, compiled: the sums over problems, the way down to one state, and its tokens on the way out.

Called by `replay/masses.py` and `replay/shard.py`. The sums lie in one array: 256 groups, 4,096 nodes and 65,536 slots in the
order of the problems' hashes, sixteen entries under each; a slot has a list of its problems by hash. Invariant: every sum is
taken in a fixed order and concerns the problems below it alone, so the same states give the same bits on any shard. What
waits for memory runs as short loops over all draws, so that the processor fetches for several of them at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from replay.kernels import finalise, find_slot
from replay.keys import GROUPS, SLOTS

Array = npt.NDArray[Any]

FAN = 16
NODES = SLOTS // FAN
_NODE, _SLOT = GROUPS, GROUPS + NODES  # where the sums of nodes and of slots begin
SUMS = GROUPS + NODES + SLOTS
_BELOW_ONE = 1.0 - 2.0**-53
_ODD = np.uint64(0x9E3779B97F4A7C15)
_48, _11 = np.uint64(48), np.uint64(11)

LINK = np.dtype([("mass", np.float64), ("live", np.int32), ("following", np.int32)])
"""Of a problem: its mass, how many of its states may be drawn, and the next problem of its slot (-1: none)."""


@njit(cache=True)
def enlist(heads: Array, links: Array, problems: Array, first: int) -> None:
    """Enter problems from number `first` on into the lists of their slots (top 16 bits), in the order of their hashes."""
    for problem in range(first, len(links)):
        own = problems[problem]["hash"]
        slot = np.int64(own >> _48)
        before, at = -1, heads[slot]
        while at >= 0 and problems[at]["hash"] < own:
            before, at = at, links[at]["following"]
        links[problem]["following"] = at
        if before < 0:
            heads[slot] = problem
        else:
            links[before]["following"] = problem


@njit(cache=True)
def _weight(states: Array, weights: Array, row: int, temperature: float, apart: int) -> None:
    """Set the weight of a state: exp(promise / temperature), the exponent held within +-600 so that sums stay finite.

    0 for a promise of -inf; negative for states of provenance `apart`, which are a pool of their own.
    """
    promise = np.float64(states[row]["promise"])
    weight = 0.0 if promise == -np.inf else np.exp(min(max(promise / temperature, -600.0), 600.0))
    weights[row] = -weight if states[row]["provenance"] == apart else weight


@njit(cache=True)
def weigh(states: Array, weights: Array, rows: Array, temperature: float, apart: int) -> None:
    """Weigh the states of some rows; see `_weight`."""
    for index in range(len(rows)):
        _weight(states, weights, rows[index], temperature, apart)


@njit(cache=True)
def weigh_all(problems: Array, states: Array, weights: Array, touched: Array, temperature: float, apart: int) -> None:
    """Weigh all states of the touched problems."""
    for index in range(len(touched)):
        first = problems[touched[index]]["start"]
        for row in range(first, first + problems[touched[index]]["count"]):
            _weight(states, weights, row, temperature, apart)


@njit(cache=True)
def sum_up(
    heads: Array, sums: Array, links: Array, problems: Array, weights: Array, touched: Array, sign: float
) -> int:
    """Renew the masses of the touched problems, of weights of this sign, and the sums above them.

    Returns how many more states may be drawn now.
    """
    more = 0
    for index in range(len(touched)):
        problem = touched[index]
        first, total, live = problems[problem]["start"], 0.0, 0
        for row in range(first, first + problems[problem]["count"]):
            weight = max(sign * weights[row], 0.0)
            total += weight
            live += weight > 0.0
        more += live - links[problem]["live"]
        links[problem]["mass"], links[problem]["live"] = total, live
    places = np.empty(len(touched), np.int64)
    for index in range(len(touched)):
        slot = np.int64(problems[touched[index]]["hash"] >> _48)
        places[index] = slot
        total, at = 0.0, heads[slot]
        while at >= 0:
            total += links[at]["mass"]
            at = links[at]["following"]
        sums[_SLOT + slot] = total
    _add_up(sums, places, _SLOT, _NODE)
    _add_up(sums, places, _NODE, 0)
    return more


@njit(cache=True)
def _add_up(sums: Array, places: Array, below: int, above: int) -> None:
    """Renew the sums of one level over the changed places of the level below; places become those of this level."""
    for index in range(len(places)):
        place = places[index] // FAN
        places[index] = place
        total = 0.0
        for at in range(below + place * FAN, below + place * FAN + FAN):
            total += sums[at]
        sums[above + place] = total


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing: Any, address: Any) -> Any:  # noqa: ARG001  numba's signature
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(typing: Any, address: Any) -> Any:  # noqa: ARG001
    """Tell the processor that the memory at an address will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer, number = context.get_value_type(types.voidptr), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(cache=True)
def _fetch_all(start: int, size: int) -> None:
    """`_fetch` of all lines of some bytes."""
    for address in range(start, start + size, 64):
        _fetch(address)
    _fetch(start + size - 1)


@njit(cache=True)
def _step(sums: Array, first: int, target: float) -> tuple[int, float]:
    """Which of the entries from `first` on the running sum passes `target` in, and the target left inside it.

    Rounding may leave the target at or beyond the sum: then the last entry that has mass.
    """
    last = first
    for at in range(first, first + FAN):
        if sums[at] > 0.0:
            if target < sums[at]:
                return at - first, target
            last = at
            target -= sums[at]
    return last - first, sums[last] * _BELOW_ONE


@njit(cache=True)
def fractions(seed: int, count: int) -> Array:
    """[count] uniform numbers in [0, 1) of a seed: splitmix64, 53 bits each."""
    found = np.empty(count)
    for index in range(count):
        found[index] = np.float64(finalise(np.uint64(seed) + np.uint64(index + 1) * _ODD) >> _11) * 2.0**-53
    return found


@njit(cache=True)
def _slots(sums: Array, ends: Array, fraction: Array) -> tuple[Any, Any, Any]:
    """Slots at fractions of the whole mass, the mass left inside each, and which of the fractions these are.

    `ends` are the running sums of the groups' masses over all shards; a group without mass here is another's.
    """
    mine, left, which = np.empty(len(fraction), np.int64), np.empty(len(fraction)), np.empty(len(fraction), np.int64)
    found, whole = 0, ends[-1]
    last = np.searchsorted(ends, whole)  # the last group that has mass
    for index in range(len(fraction)):
        target = fraction[index] * whole
        group = min(np.searchsorted(ends, target, side="right"), last)
        mass = sums[group]
        if mass > 0.0:
            target = min(max(target - (ends[group] - mass), 0.0), mass * _BELOW_ONE)
            node, target = _step(sums, _NODE + group * FAN, target)
            node += group * FAN
            slot, target = _step(sums, _SLOT + node * FAN, target)
            mine[found], left[found], which[found] = node * FAN + slot, target, index
            found += 1
    return mine[:found], left[:found], which[:found]


@njit(cache=True)
def _descend(
    heads: Array,
    sums: Array,
    links: Array,
    problems: Array,
    weights: Array,
    sign: float,
    states: Array,
    ends: Array,
    fraction: Array,
) -> tuple[Any, Any]:
    """Rows of the states at fractions of the whole mass, and which of the fractions they belong to."""
    rows, left, which = _slots(sums, ends, fraction)
    for index in range(len(rows)):
        _fetch(links.ctypes.data + heads[rows[index]] * links.itemsize)
    for index in range(len(rows)):  # from slots to problems
        target, at = left[index], heads[rows[index]]
        last = at
        while at >= 0:
            mass = links[at]["mass"]
            if mass > 0.0:
                last = at
                if target < mass:
                    break
                target -= mass
            at = links[at]["following"]
        rows[index], left[index] = last, target
        _fetch(problems.ctypes.data + last * problems.itemsize)
    stops = np.empty(len(rows), np.int64)
    for index in range(len(rows)):  # to their blocks
        problem = rows[index]
        rows[index] = problems[problem]["start"]
        stops[index] = rows[index] + problems[problem]["count"]
        _fetch_all(weights.ctypes.data + rows[index] * 8, (stops[index] - rows[index]) * 8)
    for index in range(len(rows)):  # to their states; where rounding leaves something, the last one with mass
        target = left[index]
        for row in range(rows[index], stops[index]):
            weight = sign * weights[row]
            if weight > 0.0:
                rows[index] = row
                target -= weight
                if target < 0.0:
                    break
        _fetch_all(states.ctypes.data + rows[index] * states.itemsize, states.itemsize)
    return rows, which


@njit(cache=True)
def _distinct(states: Array, rows: Array, which: Array, wanted: int) -> int:
    """Move the first `wanted` different states to the front of `rows` and `which`; how many there are."""
    size = 64
    while size < 2 * len(rows):
        size *= 2
    table, known = np.full(size, -1, np.int32), np.empty(len(rows), np.uint64)
    found = 0
    for index in range(len(rows)):
        known[found] = states[rows[index]]["key"]
        slot = find_slot(table, known, known[found])
        if table[slot] < 0:
            table[slot] = found
            rows[found], which[found] = rows[index], which[index]
            found += 1
            if found == wanted:
                break
    return found


@njit(cache=True)
def copy_out(states: Array, trajectories: Array, bases: Array, kind: Array, rows: Array) -> tuple[Any, Any, Any, Any]:
    """The states of the given rows, their problems, their prefixes one after the other, and where each begins.

    Tokens lie in chunks of `kind`'s type: an address is the number of a chunk, whose memory begins at bases[number], above 32
    bits of offset (`replay/arena.py`). They are copied as int32, as a rollout needs them.
    """
    taken, owners = np.empty(len(rows), states.dtype), np.empty(len(rows), np.int64)
    addresses, starts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    total = 0
    for index in range(len(rows)):
        taken[index] = states[rows[index]]
        starts[index] = total
        total += taken[index]["length"]
        _fetch(trajectories.ctypes.data + taken[index]["trajectory"] * trajectories.itemsize)
    for index in range(len(rows)):
        trajectory = taken[index]["trajectory"]
        address = trajectories[trajectory]["address"]
        owners[index] = trajectories[trajectory]["problem"]
        addresses[index] = bases[address >> 32] + (address & 0xFFFFFFFF) * kind.itemsize
        _fetch_all(addresses[index], taken[index]["length"] * kind.itemsize)
    tokens = np.empty(total, np.int32)
    for index in range(len(rows)):
        length, start = taken[index]["length"], starts[index]
        prefix = carray(_pointer(addresses[index]), (length,), kind.dtype)
        for place in range(length):
            tokens[start + place] = prefix[place]
    return taken, owners, tokens, starts


@njit(cache=True)
def draw(
    heads: Array, sums: Array, links: Array, problems: Array, weights: Array, sign: float, ends: Array, fraction: Array,
    wanted: int, states: Array, trajectories: Array, bases: Array, kind: Array,
) -> tuple[Any, Any, Any, Any, Any]:  # fmt: skip
    """`copy_out` of the first `wanted` different states at fractions [m] of the whole mass, and which fractions these are."""
    rows, which = _descend(heads, sums, links, problems, weights, sign, states, ends, fraction)
    found = _distinct(states, rows, which, wanted)
    taken, owners, tokens, starts = copy_out(states, trajectories, bases, kind, rows[:found])
    return taken, owners, tokens, starts, which[:found]
