"""Hashes of the store: which shard owns a problem, which state a prefix is, and noise that belongs to a state.

Used by the shard and the driver. Invariant: every number here depends only on its arguments, never on the number of
shards, the process or the order of calls, which is what makes samples independent of placement.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from core.records import IntArray
from replay.kernels import prefix_keys

Keys = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

GROUPS = 256
"""Problems fall into this many groups by the top 8 bits of their hash; a shard owns a contiguous range of groups."""
SLOTS = 65536
"""Finer division of the same order, by the top 16 bits: 256 slots per group."""


def problem_hash(problem_id: str) -> int:
    """64-bit hash of a problem id."""
    return xxhash.xxh3_64_intdigest(problem_id.encode())


def group_of(problem_id: str) -> int:
    """Group of a problem, in [0, GROUPS)."""
    return problem_hash(problem_id) >> 56


def owned_groups(shard: int, shards: int) -> range:
    """The groups that shard `shard` of `shards` owns; the ranges of all shards partition [0, GROUPS)."""
    return range(shard * GROUPS // shards, (shard + 1) * GROUPS // shards)


def shard_of_group(shards: int) -> npt.NDArray[np.int64]:
    """[GROUPS] the shard that owns each group."""
    owner = np.empty(GROUPS, np.int64)
    for shard in range(shards):
        owned = owned_groups(shard, shards)
        owner[owned.start : owned.stop] = shard
    return owner


def state_keys(hashes: Keys, tokens: npt.NDArray[Any], sizes: IntArray, counts: IntArray, lengths: IntArray) -> Keys:
    """Keys of the states of several trajectories, [S in total].

    `hashes` are those of the trajectories' problems, [T]. `tokens` holds the responses one after the other, `sizes` [T] of
    them each; trajectory t has the next counts[t] entries of `lengths`, increasing. With f the finaliser of splitmix64 and
    g = 2^64 / golden ratio the key of (x_1 ... x_n) is f(hash + sum over i of f(x_i + 1 + i g)), modulo 2^64: a sum, so that
    each token is read once and several at a time, and two prefixes meet with probability 2^-64.

    >>> two = np.array([2], np.int32), np.array([2], np.int32), np.array([1, 2], np.int32)
    >>> state_keys(np.array([7], np.uint64), np.array([5, 6], np.uint8), *two).tolist()
    [10510012226568145507, 5147822675897080089]
    """
    whole = (column.astype(np.int64) for column in (sizes, counts, lengths))
    found: Keys = prefix_keys(hashes, tokens, *whole)
    return found


def mix(keys: Keys, seed: int) -> Keys:
    """Pseudo-random 64 bits of (seed, key), vectorised: the finaliser of splitmix64 applied twice."""
    salt = np.uint64(_finalise_int((seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF))
    with np.errstate(over="ignore"):
        return _finalise(_finalise(keys ^ salt) + np.uint64(0x9E3779B97F4A7C15))


def uniforms(keys: Keys, seed: int) -> Reals:
    """Uniform numbers in (0, 1) that belong to (seed, key): 53 bits, never 0 or 1."""
    return ((mix(keys, seed) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gumbels(keys: Keys, seed: int) -> Reals:
    """Standard Gumbel noise of (seed, key): the n largest of log w + noise are n draws without replacement ~ w."""
    noise: Reals = -np.log(-np.log(uniforms(keys, seed)))
    return noise


def _finalise(x: Keys) -> Keys:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _finalise_int(x: int) -> int:
    mask = 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def ragged(starts: Rows, counts: Rows) -> Rows:
    """Indices starts[i], ..., starts[i] + counts[i] - 1 for every i, one after the other.

    >>> ragged(np.array([10, 3]), np.array([2, 3])).tolist()
    [10, 11, 3, 4, 5]
    """
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(total, dtype=np.int64)
