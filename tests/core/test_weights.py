"""Flat buffers: what goes in comes out bit for bit, and any change changes the digest."""

import pickle

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.weights import digest, flatten, unflatten

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=3)


@given(
    st.lists(st.tuples(SHAPES, st.sampled_from([torch.float32, torch.bfloat16])), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_round_trip_is_exact(layout: list[tuple[list[int], torch.dtype]], version: int) -> None:
    named = [(f"layer.{i}", torch.randn(shape).to(dtype)) for i, (shape, dtype) in enumerate(layout)]
    weights = pickle.loads(pickle.dumps(flatten(named, version), protocol=5))
    assert weights.manifest.version == version
    back = dict(unflatten(weights))
    assert list(back) == [name for name, _ in named]
    for name, tensor in named:
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_digest_sees_values_names_and_order() -> None:
    a, b = torch.ones(2, 3), torch.zeros(4)
    base = flatten([("a", a), ("b", b)], 1).manifest.digest
    assert flatten([("a", a), ("b", b)], 2).manifest.digest == base, "the version is acknowledged by itself"
    changed = a.clone()
    changed[0, 0] = np.nextafter(np.float32(1), np.float32(2)).item()
    for other in (
        [("a", changed), ("b", b)],
        [("x", a), ("b", b)],
        [("b", b), ("a", a)],
        [("a", a.reshape(3, 2)), ("b", b)],
    ):
        assert flatten(other, 1).manifest.digest != base


def test_digest_of_received_bytes_equals_the_manifest() -> None:
    weights = flatten([("a", torch.randn(7))], 3)
    assert digest(weights.manifest.tensors, weights.buffers) == weights.manifest.digest
