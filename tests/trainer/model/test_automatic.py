"""What a recipe leaves to `auto`, by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.config import Config, ResolvedConfig
from core.errors import ConfigError
from core.load import dump_config, override, parse_config
from core.machine import Machine
from tasks.limits import TokenLimits, chosen_limits
from tasks.problems import LeftOut
from trainer.model.automatic import resolved
from trainer.model.estimates import (
    check_memory,
    iteration_estimate,
    memory_estimate,
    operations,
    rank_memory,
    warnings_of,
)
from trainer.model.files import ModelInfo

SMOL = ModelInfo(
    "LlamaForCausalLM",
    context=8192,
    vocabulary=49_152,
    parameters=134_515_008,
    dtype="bfloat16",
    layers=30,
    hidden=576,
    intermediate=1536,
    key_value_width=192,
)
"""SmolLM2-135M."""
LIMITS = TokenLimits(200, 300)
OLD, NEW = Machine(2, 24.0, bfloat16=False), Machine(2, 24.0)


def made(*options: str, machine: Machine = NEW, device: str = "cpu") -> ResolvedConfig:
    return resolved(override(Config(), ["--model.path=owner/name", *options]), SMOL, LIMITS, 9, machine, device)[0]


def test_nothing_is_left_to_choose_and_a_resumed_run_reads_the_same() -> None:
    config, notes = resolved(Config(), SMOL, LIMITS, 9, NEW, "cpu")
    again = parse_config(yaml.safe_load(dump_config(config)), "run")
    assert again.model_dump() == config.model_dump()
    assert [(note.text.partition(":")[0], note.audience) for note in notes] == [
        ("rollout.max_prompt_tokens", "everyone"),
        ("rollout.max_response_tokens", "everyone"),
        ("model.dtype", "everyone"),
        ("learner.policy_lr", "training"),
        ("learner.value_lr", "training"),
        ("learner.micro_batch_tokens", "training"),
        ("rollout.max_running", "everyone"),
    ]
    assert resolved(again, SMOL, LIMITS, 9, OLD, "cuda") == (config, [])  # what is chosen stays


def test_the_type_is_the_checkpoints_but_where_the_cpu_lacks_it() -> None:
    assert made().model.dtype == "bfloat16"
    assert made(machine=OLD).model.dtype == "float32"
    assert made(machine=OLD, device="cuda").model.dtype == "bfloat16"


def test_rates_follow_from_the_model() -> None:
    # 1e-6 x sqrt(8e9 / 134.5e6) = 7.7e-6
    assert made().learner.policy_lr == 8e-6
    assert made("--learner.lora_rank", "8").learner.policy_lr == 8e-5
    assert made("--model.path", "starter").learner.policy_lr == 1e-4  # trained from scratch
    assert (made().learner.value_lr, made("--learner.value_model", "shared").learner.value_lr) == (1e-5, 3e-4)


def test_sizes_follow_from_memory() -> None:
    # 30 layers x (14 x 576 + 5 x 1536) x 2 bytes = 944,640 bytes per token; 3 GiB hold 3,410 tokens, in steps of 256
    assert made().learner.micro_batch_tokens == 3328
    assert made("--learner.ranks", "8").learner.micro_batch_tokens == 500  # a whole sequence, 200 + 300
    # 2 x 30 x 192 x 2 bytes = 23,040 of a token; 1 GiB holds 46,603, 133 sequences of 200 + 300 / 2
    assert made().rollout.max_running == 133
    assert made(device="cuda").rollout.max_running == 256


def test_limits_follow_from_the_data() -> None:
    assert chosen_limits((None, None), [10, 20], [], 8192) == (20, 1024)
    assert chosen_limits((None, None), [10, 20], [], 512) == (20, 491)  # what the context leaves
    assert chosen_limits((None, None), [10, 300], [], 512) == (10, 501)  # a prompt over half of it is left out
    assert chosen_limits(TokenLimits(7, 9), [10, 20], [[50]], 512) == (7, 9)
    assert chosen_limits((None, 400), [90, 120], [[50]], 512) == (90, 400)  # 120 + 400 are too many
    of_two = [[200] * 7000, [900] * 60]  # the largest need of the data sets; 900 x 1.25 = 1125, in steps of 32
    assert chosen_limits((None, None), [10], of_two, 8192) == (10, 1152)
    assert chosen_limits((None, None), [10], [[200], []], 8192) == (10, 1024)


def test_what_looks_wrong_is_said() -> None:
    config = made()
    assert warnings_of(config, LeftOut(long_solutions=5, solutions=100)) == []
    cut, rate = warnings_of(override(config, ["--learner.policy_lr=1e-4", "--model.path=x"]), LeftOut(0, 0, 6, (), 100))
    assert "6% of the canonical solutions are longer than rollout.max_response_tokens = 300" in cut.text
    assert "learner.policy_lr = 0.0001 is outside" in rate.text
    assert "1e-07 to 5e-05" in rate.text
    assert (cut.audience, rate.audience) == ("everyone", "training")


def test_an_iteration_is_estimated_from_operations() -> None:
    config = made()
    # generation 2, score of policy, critic and reference 2 each, update 6 of policy and critic
    assert operations(config, SMOL, "separate") == pytest.approx((2 + 6 + 12) * SMOL.parameters)
    assert operations(config, SMOL, "shared") == pytest.approx((2 + 4 + 6) * SMOL.parameters)
    memory = memory_estimate(config, SMOL, "cpu", "shared")
    assert memory["trained models"] == pytest.approx(SMOL.parameters * (2 + 4 + 8 + 4) / 2**30)
    assert memory["engines"] == pytest.approx(SMOL.parameters * 2 / 2**30 + 1.0)
    text = iteration_estimate(made(machine=OLD), SMOL, "cpu", "shared")
    assert text.startswith("an iteration: at most 153,600 generated tokens; about ")  # 64 x 8 x 300
    assert "minutes" in text
    assert "minutes" not in iteration_estimate(config, SMOL, "cuda", "shared")


QWEN = [
    replace(SMOL, parameters=int(size), layers=layers, hidden=hidden, intermediate=middle, key_value_width=width)
    for size, layers, hidden, middle, width in (
        (0.494e9, 24, 896, 4864, 128),
        (1.544e9, 28, 1536, 8960, 256),
        (7.616e9, 28, 3584, 18_944, 512),
    )
]
"""Qwen2.5 of 0.5, 1.5 and 7 B parameters."""
OF_A_RANK: list[tuple[str, str, list[str]]] = [
    ("a trained model", "trained models", []),
    ("with ZeRO 2 on 4 ranks", "trained models", ["--learner.ranks=4", "--learner.zero_stage=2"]),
    ("with ZeRO 3 on 8 ranks", "trained models", ["--learner.ranks=8", "--learner.zero_stage=3"]),
    ("with `learner.offload`", "trained models", ["--learner.offload=true", "--learner.zero_stage=2"]),
    ("LoRA of rank 32", "trained models", ["--learner.lora_rank=32"]),
    ("the reference", "reference", []),
    ("activations with", "activations", ["--learner.gradient_checkpointing=true"]),
]


@pytest.mark.parametrize(("row", "part", "options"), OF_A_RANK, ids=[row for row, *_ in OF_A_RANK])
def test_the_page_on_sizes_has_what_the_estimate_says(row: str, part: str, options: list[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sizing.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {row}"))
    config = made("--learner.micro_batch_tokens=8192", "--algorithm.kl_coefficient=0.05", *options, device="cuda")
    gigabytes = [rank_memory(config, info, "shared")[part] * 2**30 / 1e9 for info in QWEN]
    assert line.split(" | ")[2:] == [f"{value:.1f} GB" for value in gigabytes[:2]] + [f"{gigabytes[2]:.1f} GB |"]


def test_the_estimate_is_of_a_rank_on_gpus_and_of_the_machine_on_cpu() -> None:
    options = ("--learner.ranks=4", "--learner.zero_stage=2")
    one = SMOL.parameters / 2**30
    gpu = memory_estimate(made(*options, device="cuda"), SMOL, "cuda", "separate")
    assert set(gpu) == {"trained models", "reference", "activations"}
    assert gpu["trained models"] == pytest.approx(2 * (2 + 16 / 4) * one)
    cpu = memory_estimate(made("--learner.ranks=4", "--model.dtype=float32"), SMOL, "cpu", "separate")
    assert cpu["trained models"] == pytest.approx(4 * 2 * 16 * one)  # stage 0: every rank has everything
    offloaded = memory_estimate(made(*options, "--learner.offload=true"), SMOL, "cpu", "none")
    assert offloaded["on the host"] == pytest.approx(16 * one)
    assert "in each learner rank's GPU (trained" in iteration_estimate(made(device="cuda"), SMOL, "cuda", "shared")


SHORT = ["--rollout.samples=4", "--replay.imitated=4", "--replay.discoveries=2"]
MEASURED: list[tuple[ModelInfo, str, list[str], float]] = [
    (SMOL, "bfloat16", ["--rollout.starts=16", "--rollout.samples=8", "--learner.minibatches=2"], 8.2),
    (replace(SMOL, parameters=49_549_248, layers=6), "bfloat16", ["--rollout.starts=4", *SHORT], 4.6),
    (
        replace(SMOL, vocabulary=18, parameters=100_000, layers=2, hidden=64, intermediate=192, key_value_width=64),
        "float32",
        ["--rollout.starts=16", "--rollout.samples=2", "--rollout.kv_cache_gib=0.25"],
        2.3,
    ),
]
"""Runs on two cores with a shared critic, a reference and 2,048 tokens per pass: the most of all processes together in
GiB (sum of their proportional set sizes, every 4 s)."""


@pytest.mark.parametrize(("info", "dtype", "options", "gib"), MEASURED, ids=["135M", "50M", "tiny"])
def test_the_estimate_is_near_what_runs_on_a_cpu_have_needed(
    info: ModelInfo, dtype: str, options: list[str], gib: float
) -> None:
    of_all = ["--learner.value_model=shared", "--algorithm.kl_coefficient=0.02", "--learner.micro_batch_tokens=2048"]
    config = made(
        f"--model.dtype={dtype}",
        "--rollout.max_prompt_tokens=182",
        "--rollout.max_response_tokens=48",
        *of_all,
        *options,
    )
    assert sum(memory_estimate(config, info, "cpu", "shared").values()) == pytest.approx(gib, rel=0.15)


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--learner.micro_batch_tokens=16384", "learner.micro_batch_tokens"),
        ("--rollout.kv_cache_gib=9", "rollout.kv_cache_gib"),
    ],
)
def test_a_run_that_does_not_fit_the_machine_is_refused_with_the_field_to_lower(option: str, field: str) -> None:
    small = "--learner.micro_batch_tokens=512"
    check_memory(made(small), SMOL, "shared", 12.0)
    with pytest.raises(ConfigError, match=rf"12\.0 GiB.*lower {field}"):
        check_memory(made(small, option), SMOL, "shared", 12.0)


@pytest.mark.parametrize("bad", ["0", "nothing", "-1"])
def test_what_is_neither_a_number_nor_auto_is_refused(bad: str) -> None:
    given: Any = [f"--rollout.max_running={bad}"]
    with pytest.raises(ConfigError, match=r"rollout\.max_running"):
        override(Config(), given)
    assert override(Config(), ["--rollout.max_running", "auto"]) == Config()
