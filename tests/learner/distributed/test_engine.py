import torch

from core.config import LearnerConfig
from learner.distributed.engine import GuardedAdamW, engine_config


def test_guarded_adamw_clips_and_refuses_what_is_not_finite() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = GuardedAdamW([{"params": [parameter]}], max_grad_norm=1.0, lr=0.1, weight_decay=0.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert optimizer._global_grad_norm == 5.0  # before clipping
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.1, -0.1]))  # Adam's first step is lr x sign
    moments = {k: v.clone() for k, v in optimizer.state[parameter].items()}
    parameter.grad = torch.tensor([float("inf"), 0.0])
    optimizer.step()
    assert optimizer.overflow
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.1, -0.1]))
    for key, value in moments.items():
        assert torch.equal(optimizer.state[parameter][key], value)


def test_stage_0_needs_fp32_and_leaves_clipping_to_the_guard() -> None:
    plain = engine_config(LearnerConfig(), torch.float32)
    assert (plain["zero_optimization"]["stage"], plain["gradient_clipping"]) == (0, 0.0)
    half = engine_config(LearnerConfig(), torch.bfloat16)  # fp32 master weights live in the ZeRO optimizer
    assert (half["zero_optimization"]["stage"], half["gradient_clipping"]) == (2, 1.0)
    assert half["bf16"] == {"enabled": True, "check_grad_overflow": True}
    offloaded = engine_config(LearnerConfig(zero_stage=2, offload=True), torch.float32)
    assert offloaded["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


def test_a_group_without_gradients_keeps_its_moments() -> None:
    groups = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = GuardedAdamW([{"params": [parameter]} for parameter in groups], lr=0.1, betas=(0.9, 0.95))
    for parameter in groups:
        parameter.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    trunk = {name: number.clone() for name, number in optimizer.state[groups[0]].items()}
    groups[0].grad = torch.zeros(2)
    optimizer.idle = [optimizer.param_groups[0]]
    optimizer.step()
    assert len(optimizer.param_groups) == 2
    for name, number in optimizer.state[groups[0]].items():
        torch.testing.assert_close(number, trunk[name], rtol=0, atol=0)
    assert optimizer.state[groups[1]]["step"] == 2
