"""Calls to a group whose ranks are gone. (Deaths of real ranks: test_group.py.)"""

from pathlib import Path

import pytest

from core.errors import ActorError
from learner.ranks import Ranks
from learner.worker import RankWorker, free_port


def test_a_group_that_has_ended_refuses_every_call() -> None:
    ranks = Ranks(0, device="cpu", cpus=0, gpus=0, threads=1, deadline=1)
    with pytest.raises(ActorError, match="learner: save after its ranks have ended; resume"):
        ranks.call(RankWorker.save, [])
    with pytest.raises(ActorError, match="learner: address after its ranks"):
        ranks.call_first(RankWorker.address)


def test_the_port_of_rank_0_is_none_that_the_kernel_gives_to_others_before_it_is_used() -> None:
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert all(1024 < free_port() < int(first) for _ in range(20))
