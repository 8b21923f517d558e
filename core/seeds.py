"""All randomness comes from the run's seed by paths of labels, alike on every machine; consumers are independent."""

import hashlib

import numpy as np


def derive(seed: int, *path: int | str) -> int:
    """Seed in [0, 2**63) for the consumer named by `path`.

    >>> derive(0, "sampler") != derive(0, "rollout"), derive(7, "rollout", 3) == derive(7, "rollout", 3)
    (True, True)
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator seeded with `derive(seed, *path)`."""
    return np.random.default_rng(derive(seed, *path))
