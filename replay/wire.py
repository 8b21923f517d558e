"""Calls of a shard's actor as bytes. Used by `replay/store.py` on both ends of a call.

Ray passes bytes on as they are, and several times as fast as arrays in records: those it takes apart into buffers, and puts
each argument above 100 KB into its object store first (1.3 ms for a batch of 300 KB). Invariant: no part is that large.
"""

import pickle
from collections.abc import Sequence
from typing import Any

PART = 64 << 10
"""Bytes of a part. Beyond 10 MB of parts Ray itself goes by its object store."""


def sealed(content: object) -> list[bytes]:
    """Anything that can be pickled, in parts.

    >>> opened(sealed(("add", 2))), len(sealed(bytes(2 * PART)))
    (('add', 2), 3)
    """
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return [data[start : start + PART] for start in range(0, len(data), PART)]


def opened(parts: Sequence[bytes]) -> Any:
    """What was sealed."""
    return pickle.loads(b"".join(parts))
