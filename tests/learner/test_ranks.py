"""Calls to a group whose ranks are gone. (Deaths of real ranks: test_group.py.)"""

import pytest

from core.errors import ActorError
from learner.ranks import Ranks
from learner.worker import RankWorker


def test_a_group_that_has_ended_refuses_every_call() -> None:
    ranks = Ranks(0, device="cpu", cpus=0, gpus=0, threads=1, deadline=1)
    with pytest.raises(ActorError, match="learner: save after its ranks have ended; resume"):
        ranks.call(RankWorker.save, [])
    with pytest.raises(ActorError, match="learner: address after its ranks"):
        ranks.call_first(RankWorker.address)
