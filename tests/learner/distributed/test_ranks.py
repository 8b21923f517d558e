"""Calls to a group whose ranks are gone. (Deaths of real ranks: test_group.py.)"""

from pathlib import Path

import pytest
import ray
import torch

from core.config import LearnerConfig
from core.errors import CheckpointError, LearnerError
from learner.distributed.ranks import Ranks, _explain
from learner.distributed.worker import RankWorker, as_checkpoint_error, random_states, set_random_states


def no_ranks(deadline: float) -> Ranks:
    config = LearnerConfig().model_copy(update={"ranks": 0, "deadline": deadline})
    return Ranks(config, device="cpu", cpus=0, gpus=0)


@pytest.mark.usefixtures("ray_cluster")  # else Ray connects by itself to whatever ran here last
def test_a_group_that_has_ended_refuses_every_call() -> None:
    ranks = no_ranks(1)
    with pytest.raises(LearnerError, match="learner: save "):
        ranks.call(RankWorker.save, [])
    with pytest.raises(LearnerError, match="learner: close_channel "):
        ranks.call_same(RankWorker.close_channel)


@pytest.mark.usefixtures("ray_cluster")
def test_what_has_come_counts_however_late_it_is_looked_at() -> None:
    ranks = no_ranks(0)  # as after a stall of the whole deadline
    assert ranks._gather({ray.put("b"): 1, ray.put("a"): 0}, "save") == ["a", "b"]
    never = ray.remote(num_cpus=1000)(lambda: None).remote()
    with pytest.raises(LearnerError, match=r"^learner-rank-1: .*save"):
        ranks._gather({ray.put("a"): 0, never: 1}, "save")
    ray.cancel(never)


def test_what_fails_in_a_library_while_a_checkpoint_is_read_is_a_checkpoint_error(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match=r"7: .*PytorchStreamReader failed"),
        as_checkpoint_error(tmp_path / "7", "read; resume from another one"),
    ):
        raise RuntimeError("PytorchStreamReader failed.")
    with pytest.raises(CheckpointError, match="its own"), as_checkpoint_error(tmp_path, "read"):
        raise CheckpointError("its own")


def test_a_dead_rank_explains_what_looks_like_a_damaged_checkpoint_to_its_peer() -> None:
    damaged = CheckpointError("connection closed by peer")
    read: Exception = ray.exceptions.RayTaskError("restore", "", damaged)
    assert _explain({0: read}, "restore") is damaged
    error = _explain({0: read, 1: ray.exceptions.ActorDiedError()}, "restore")
    assert isinstance(error, LearnerError)
    assert str(error).startswith("learner-rank-1 died during restore")


def test_random_states_go_on_from_a_file_as_if_nothing_had_been_drawn_since(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    device = torch.accelerator.current_accelerator(check_available=True) or cpu
    torch.save(random_states(device), tmp_path / "rng.pt")
    first = torch.rand(4), torch.rand(4, device=device)
    set_random_states(torch.load(tmp_path / "rng.pt"), device)
    assert all(torch.equal(a, b) for a, b in zip(first, (torch.rand(4), torch.rand(4, device=device)), strict=True))
    set_random_states(torch.load(tmp_path / "rng.pt"), cpu)  # on a machine without the accelerator
