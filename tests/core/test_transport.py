"""Direct transfer of weights: every receiver gets the same bytes, in every broadcast; a missing receiver ends the
wait."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from core.transport import GroupSender, HandleSender, MemoryHandles, flattened, offsets
from core.weights import Member, Sender, SenderHost, Weights, digest, pack, unpack

HOME = SenderHost("cpu", "127.0.0.1", seconds=120.0)
NAMED = [(f"layer.{i}", torch.randn(3 + i, 5)) for i in range(5)] + [("odd", torch.randn(7).bfloat16())]
SENDERS: list[type[Sender]] = [GroupSender, HandleSender]
OTHER_PROCESS = """
import pickle, sys
from dataclasses import replace
from core.weights import Member, digest
weights = pickle.load(sys.stdin.buffer)
print(digest(replace(weights, buckets=tuple(weights.direct.receive(weights.manifest, Member(1, 2, "cpu", 60.0))))))
"""


def received(weights: Weights, rank: int, world: int, seconds: float = 120.0) -> Weights:
    assert weights.direct is not None
    return replace(
        weights, buckets=tuple(weights.direct.receive(weights.manifest, Member(rank, world, "cpu", seconds)))
    )


def to_all(weights: Weights, count: int) -> Sequence[Weights]:
    with ThreadPoolExecutor(count) as engines:
        return list(engines.map(lambda rank: received(weights, rank, count + 1), range(1, count + 1)))


@pytest.mark.parametrize("kind", SENDERS)
def test_every_receiver_gets_the_bytes_and_the_number_of_receivers_may_change(kind: type[Sender]) -> None:
    sender = kind(HOME)
    for version, count in enumerate((3, 1, 2)):
        named = [(name, tensor + version) for name, tensor in NAMED]
        weights = pack(named, version, bucket_bytes=200, sender=sender)
        assert len(weights.buckets) > 2
        for got in to_all(replace(weights, buckets=()), count):
            assert digest(got) == weights.manifest.digest
            for (name, tensor), (expected, original) in zip(unpack(got), named, strict=True):
                assert name == expected
                assert torch.equal(tensor, original)
        sender.close()
        sender.close()  # which may come twice


@pytest.mark.parametrize("kind", SENDERS)
def test_another_process_receives(kind: type[Sender]) -> None:
    sender = kind(HOME)
    weights = pack(NAMED, 1, bucket_bytes=200, sender=sender)
    found = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS],
        input=pickle.dumps(replace(weights, buckets=())),
        capture_output=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert found.stdout.decode().strip() == weights.manifest.digest
    sender.close()


def test_what_is_staged_is_a_copy() -> None:
    """The optimizer's next step must not reach an engine that still reads."""
    sender, tensor = HandleSender(HOME), torch.zeros(4)
    weights = pack([("a", tensor)], 1, sender=sender)
    tensor += 1
    assert dict(unpack(received(weights, 1, 2)))["a"].tolist() == [0.0] * 4
    sender.close()


def test_a_broadcast_that_nobody_comes_to_ends_with_close() -> None:
    sender = GroupSender(HOME)
    direct = pack(NAMED, 1, sender=sender).direct
    sender.close()
    assert pack(NAMED, 1, sender=sender).direct != direct  # and the next one is another
    sender.close()


def test_a_receiver_does_not_wait_for_ever_for_one_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = GroupSender(HOME)
    weights = pack(NAMED, 1, sender=sender)
    with monkeypatch.context() as patch:
        patch.setattr("core.transport.GROUP_SECONDS", 1.0)
        with pytest.raises(RuntimeError):
            received(weights, 1, world=3, seconds=1.0)  # rank 2 never comes
    sender.close()
    weights = pack(NAMED, 2, sender=sender)
    assert digest(received(weights, 1, world=2)) == weights.manifest.digest
    sender.close()


def test_a_handle_that_leads_nowhere_is_an_error() -> None:
    weights = pack(NAMED, 1)
    with pytest.raises(RuntimeError, match="not a handle of this machine"):
        received(replace(weights, direct=MemoryHandles((b"nothing",))), 1, 2)


def test_places_are_aligned() -> None:
    weights = pack(NAMED, 1)
    begins = offsets(weights.manifest.tensors)
    assert all(begin % 16 == 0 for begin in begins)
    assert begins[-1] == len(flattened([tensor for _, tensor in NAMED]))
