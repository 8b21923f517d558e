"""Hashes of the store: the shard of a problem, the key of a state, and the random noise of a state. Invariant: every
number depends only on its arguments, never on the number of shards, the process or the order of calls. So draws do not
depend on placement."""

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Keys = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

_ODD = 0x9E3779B97F4A7C15


def problem_hash(problem_id: str) -> int:
    """64-bit hash of a problem id."""
    return xxhash.xxh3_64_intdigest(problem_id.encode())


def shard_of(problem_id: str, shards: int) -> int:
    """The shard that owns a problem, in [0, shards)."""
    return problem_hash(problem_id) % shards


def state_keys(
    hashes: Keys,
    tokens: npt.NDArray[Any],
    sizes: npt.NDArray[np.integer[Any]],
    counts: npt.NDArray[np.integer[Any]],
    lengths: npt.NDArray[np.integer[Any]],
) -> Keys:
    """Keys [S] of the states of T trajectories: a hash of the problem and of the tokens of the prefix.

    `hashes` [T] of the problems; concatenated `tokens` of all trajectories, `sizes` [T] of each; `counts` [T] of the
    states of each trajectory, and their prefix `lengths` [S]. The key is finalise(hash + sum of finalise(token + 1 + (i
    + 1) * odd)) over the tokens i = 0, 1, ... of the prefix. So one running sum gives all prefixes of a trajectory. Two
    collide with probability 2^-64.
    """
    starts = np.cumsum(sizes) - sizes
    place = np.arange(1, len(tokens) + 1) - np.repeat(starts, sizes)
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(
        _finalise(tokens.astype(np.uint64) + np.uint64(1) + place.astype(np.uint64) * np.uint64(_ODD)), out=sums[1:]
    )
    first = np.repeat(starts, counts)
    return _finalise(np.repeat(hashes, counts) + sums[first + lengths] - sums[first])


def mix(keys: Keys, seed: int) -> Keys:
    """Pseudo-random 64 bits [S] of (seed, key): the finaliser of splitmix64 applied twice."""
    salt = _finalise(np.array([(seed + _ODD) & 0xFFFFFFFFFFFFFFFF], np.uint64))
    return _finalise(_finalise(keys ^ salt) + np.uint64(_ODD))


def gumbels(keys: Keys, seed: int) -> Reals:
    """Gumbel noise [S] of (seed, key). The n largest log w + noise are a draw without replacement, weighted by w."""
    uniform = ((mix(keys, seed) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # never 0 or 1
    noise: Reals = -np.log(-np.log(uniform))
    return noise


def eviction_order(
    retention: npt.NDArray[np.float32], version: npt.NDArray[np.int32], keys: Keys
) -> npt.NDArray[np.uint64]:
    """The order of eviction as one integer [S], the smallest first: lowest retention, oldest version, 12 bits of the
    key. These spread the eviction of ties over a trajectory instead of taking one end of it."""
    bits = (retention + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000)).astype(np.uint64)
    recent = (version.astype(np.uint64) & np.uint64(0xFFFFF)) << np.uint64(12)
    order: npt.NDArray[np.uint64] = (ordered << np.uint64(32)) | recent | (keys & np.uint64(0xFFF))
    return order


def _finalise(x: Keys) -> Keys:
    """The finaliser of splitmix64 (Steele et al., 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
