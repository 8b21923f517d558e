"""Buckets of weights: what goes in comes out bit for bit, and any change changes the digest."""

import pickle
from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.weights import Bucket, bucketed, digest, pack, resolved, unpack

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=3)


@given(
    st.lists(st.tuples(SHAPES, st.sampled_from([torch.float32, torch.bfloat16])), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_round_trip_is_exact(layout: list[tuple[list[int], torch.dtype]], version: int) -> None:
    named = [(f"layer.{i}", torch.randn(shape).to(dtype)) for i, (shape, dtype) in enumerate(layout)]
    weights = pickle.loads(pickle.dumps(pack(named, version), protocol=5))
    assert weights.manifest.version == version
    back = dict(unpack(weights))
    assert list(back) == [name for name, _ in named]
    for name, tensor in named:
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_digest_sees_values_names_and_order() -> None:
    a, b = torch.ones(2, 3), torch.zeros(4)
    base = pack([("a", a), ("b", b)], 1).manifest.digest
    assert pack([("a", a), ("b", b)], 2).manifest.digest == base, "the version is acknowledged by itself"
    changed = a.clone()
    changed[0, 0] = np.nextafter(np.float32(1), np.float32(2)).item()
    for other in (
        [("a", changed), ("b", b)],
        [("x", a), ("b", b)],
        [("b", b), ("a", a)],
        [("a", a.reshape(3, 2)), ("b", b)],
    ):
        assert pack(other, 1).manifest.digest != base


def test_digest_of_received_bytes_equals_the_manifest() -> None:
    weights = pack([("a", torch.randn(7))], 3)
    assert digest(weights) == weights.manifest.digest


def test_buckets_are_filled_in_order_and_a_large_tensor_has_its_own() -> None:
    """Sizes 8, 8, 40, 4, 4 bytes; buckets of 16: [8, 8], [40], [4, 4]."""
    named = [(str(i), torch.zeros(count)) for i, count in enumerate((2, 2, 10, 1, 1))]
    assert [[name for name, _ in bucket] for bucket in bucketed(named, 16)] == [["0", "1"], ["2"], ["3", "4"]]
    assert [spec.bucket for spec in pack(named, 1, bucket_bytes=16).manifest.tensors] == [0, 0, 1, 2, 2]
    assert list(bucketed([], 16)) == []


def test_a_bucket_is_published_before_the_next_tensor_is_taken() -> None:
    """Gathered tensors (ZeRO-3) of only one bucket are alive at a time."""
    events: list[str] = []

    def gather() -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(4):
            events.append(f"gather {i}")
            yield str(i), torch.full((2,), float(i))

    kept: dict[int, Bucket] = {}

    def publish(bucket: Bucket) -> int:
        events.append(f"publish {len(bucket)}")
        kept[len(kept)] = [buffer.copy() for buffer in bucket]
        return len(kept) - 1

    weights = pack(gather(), 7, publish, bucket_bytes=16)
    assert events == ["gather 0", "gather 1", "gather 2", "publish 2", "gather 3", "publish 2"]
    assert weights.buckets == (0, 1)
    arrived = resolved(weights, kept.__getitem__)
    assert [float(tensor[0]) for _, tensor in unpack(arrived)] == [0.0, 1.0, 2.0, 3.0]
    assert digest(arrived) == weights.manifest.digest
    kept[1][0][0] ^= 1
    assert digest(resolved(weights, kept.__getitem__)) != weights.manifest.digest


def test_packed_weights_do_not_follow_the_model() -> None:
    tensor = torch.ones(3)
    weights = pack([("a", tensor)], 1)
    tensor.zero_()
    assert dict(unpack(weights))["a"].tolist() == [1.0, 1.0, 1.0]
