"""The parts of the experiment, their arms, and the configuration of one run (PROTOCOL.md). Invariant: two arms of a
part differ in nothing but what `ARMS` names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.demo import changed
from bench.runs import ROOT
from core.config import Config
from core.load import load_config

Fields = Mapping[str, Any]  # fields of a configuration by 'section.field'
Result = dict[str, Any]

NO_IMITATION: Fields = {"replay.imitated": 0, "algorithm.positive_coefficient": 0.0}
NO_REPLAY: Fields = {"replay.ratio": 0.0}
NEITHER: Fields = {**NO_IMITATION, **NO_REPLAY}
ARMS: Mapping[str, Fields] = {
    "neither": NEITHER,
    "imitation": NO_REPLAY,
    "replay": NO_IMITATION,
    "both": {},
    "checked": {"replay.exclude_wrong": True},
    "hinted": {"replay.canonical": True},
    "grpo": {**NEITHER, "algorithm.estimator": "grpo", "learner.value_model": "none"},
    "epochs": {**NEITHER, "learner.epochs": 4},
    "weak_kl": {**NEITHER, "algorithm.kl_coefficient": 0.02, "algorithm.kl_schedule": "constant"},
    "fresh": NEITHER,
    "prefix": {**NO_IMITATION, "replay.canonical": True},
    "loss": NEITHER,  # no rollouts: `bench/real/hints.py`
    "gsm8k": {},  # of the assay, whose arms are its tasks
    "mbpp": {},
}
TUNING_SEED = 0
THREADS = 1  # of engine and learner: two runs at a time use two cores better than one run does
RATES = (5e-6, 1e-5)  # tried in a tuned part
TUNED = "neither"  # the arm that tries them, for all arms of its part
PAIRS = (
    ("both", "imitation"), ("imitation", "neither"), ("both", "replay"), ("replay", "neither"), ("neither", "grpo"),
    ("checked", "both"), ("checked", "imitation"), ("hinted", "both"), ("hinted", "imitation"),
    ("epochs", "neither"), ("imitation", "epochs"), ("neither", "weak_kl"), ("imitation", "weak_kl"),
    ("prefix", "fresh"),
)  # fmt: skip
"""Arms that are compared, the first minus the second. They differ in one thing, but for `checked` and `hinted`
minus `imitation`."""

GSM8K_FIELDS: Fields = {
    "task.problems": "auto",  # all rows of the file of the seed index
    "rollout.max_response_tokens": 192,
    "rollout.max_running": 64,
}
MAIN_FIELDS: Fields = {
    **GSM8K_FIELDS,
    "task.eval_problems": 326,
    "rollout.starts": 12,
    "rollout.samples": 8,
    "replay.start_states": 64,
    "replay.imitated": 16,
}
MBPP_FIELDS: Fields = {"rollout.max_response_tokens": 256, "task.code.program_seconds": 5.0}
SUMS_FIELDS: Fields = {
    "task.max_operations": 2,
    "task.eval_problems": 200,
    "task.examples": json.dumps(
        [
            {"prompt": "What is 47 plus 35?", "response": "47 + 35 = 82\n#### 82"},
            {"prompt": "What is 82 minus 56 plus 63?", "response": "82 - 56 = 26\n26 + 63 = 89\n#### 89"},
            {"prompt": "What is 31 plus 46 minus 18?", "response": "31 + 46 = 77\n77 - 18 = 59\n#### 59"},
        ]
    ),
    "rollout.max_response_tokens": 48,
    "replay.start_states": 64,
}
CODE_FIELDS: Fields = {
    **MBPP_FIELDS,
    "task.problems": "auto",
    "task.eval_problems": 100,
    "task.code.compile_error": 0.0,  # with the next two: the reward is the share of tests passed
    "task.code.runtime_error": 0.0,
    "task.code.failed": 0.0,
    "rollout.starts": 8,
    "rollout.samples": 8,
    "rollout.max_running": 64,
    "replay.start_states": 64,
    "replay.imitated": 16,
}
GAME_FIELDS: Fields = {
    "task.name": "bench.real.game:dial",
    "task.problems": 1024,
    "task.eval_problems": 128,
    "task.min_operations": 5,
    "task.max_operations": 5,
    "starter.max_operations": 6,
    "starter.steps": 1000,
    "rollout.max_prompt_tokens": 12,
    "rollout.max_response_tokens": 20,
    "rollout.starts": 16,
    "rollout.samples": 8,
    "rollout.max_running": 128,
    "replay.fill": True,
    "algorithm.kl_coefficient": 0.1,
    "learner.policy_lr": 1.4e-3,
}
SLOW_FIELDS: Fields = {**GAME_FIELDS, "rollout.environment_options": '{"delay": 0.05}'}
SAVED_FIELDS: Fields = {**GAME_FIELDS, "rollout.environment": "bench.real.game:SavedDial"}
ON: Mapping[str, Fields] = {
    "cpu": {"cluster.device": "cpu"},
    "cuda": {  # several runs share the GPU, so each has a cache of fixed size
        "cluster.device": "cuda",
        "rollout.gpu_memory_share": 0.02,
        "rollout.engine_options": json.dumps({"enforce_eager": True, "kv_cache_memory_bytes": 2 * 2**30}),
        "rollout.max_running": 128,
    },
}
"""Fields of a device. They set how fast a run is, not what it learns."""
ASSAY_FIELDS: Fields = {
    "task.eval_problems": 8,
    "rollout.max_running": 64,
    "replay.boundary": "stride",  # a state may begin wherever a character ends
    "replay.stride": 1,
    "replay.imitated": 0,
    "algorithm.kl_coefficient": 0.0,
    "algorithm.positive_coefficient": 0.0,
    "learner.critic_warmup": 10**6,  # the policy never learns
    "learner.minibatches": 8,
    "learner.value_lr": 1e-3,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the experiment."""

    recipe: str  # in configs/
    arms: tuple[str, ...]
    seeds: int  # seed indices 1, 2, ... that are planned
    fields: Fields
    budget: int = 0
    unit: str = "generated_tokens"  # of the budget: a metric of every iteration
    data: str = ""  # data set of its problems; empty: they are generated, or it is the arm's
    points: int = 2  # evaluations at equal distances before the last one
    last_samples: int = 4  # of each held-out problem in the last evaluation
    tuned: bool = False  # whether the learning rate is
    fewer: Mapping[str, int] = field(default_factory=dict)  # seed indices of arms by which nothing is decided


FACTORS = ("both", "imitation", "neither", "replay")
GAME_ARMS = (*FACTORS, "weak_kl")
PARTS: Mapping[str, Part] = {
    "assay": Part("gsm8k_smollm2", ("gsm8k", "mbpp"), 1, {}),
    "main": Part("gsm8k_smollm2", FACTORS[:3], 4, MAIN_FIELDS, 160_000, data="gsm8k", points=1, last_samples=8),
    "sums": Part(
        "demo",
        (*FACTORS, "checked", "hinted", "grpo"),
        6,
        SUMS_FIELDS,
        60_000,
        points=1,
        tuned=True,
        fewer={"replay": 3, "grpo": 3, "hinted": 3},
    ),
    "epochs": Part("demo", ("epochs",), 3, SUMS_FIELDS, 60_000, points=1, tuned=True),
    "hints": Part("gsm8k_smollm2", ("fresh", "prefix", "loss"), 3, MAIN_FIELDS, 80_000, data="gsm8k"),
    "code": Part("mbpp_smollm2", ("imitation", "replay", "both"), 3, CODE_FIELDS, 80_000, data="mbpp"),
    "game": Part("rule", GAME_ARMS, 4, GAME_FIELDS, 200_000, "environment_steps", points=10),
    "slow": Part("rule", FACTORS, 4, SLOW_FIELDS, 200_000, "environment_steps", points=10),
    "saved": Part("rule", ("replay", "both"), 4, SAVED_FIELDS, 200_000, "environment_steps", points=10),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run: an arm of a part at a seed index."""

    part: str
    arm: str
    seed: int
    rate: float | None = None  # learning rate of the policy; None: the recipe's

    @property
    def name(self) -> str:
        """Of its folder. A tuning run's has its rate."""
        return f"{self.part}-{self.arm}-{self.seed}" + (f"-{self.rate:g}" if self.seed == TUNING_SEED else "")


def matrix(part: str, arms: Sequence[str], seeds: Sequence[int], tuning: Sequence[Result]) -> list[Run]:
    """All runs of a part: every arm once before the next seed index. All have the rate that was tuned for the part.
    Without `seeds` those that are planned."""
    rate, plan = best_rate(tuning), PARTS[part]
    if seeds:
        return [Run(part, arm, seed, rate) for seed in seeds for arm in arms]
    every = range(1, plan.seeds + 1)
    return [Run(part, arm, seed, rate) for seed in every for arm in arms if seed <= plan.fewer.get(arm, plan.seeds)]


def tuning_matrix(part: str) -> list[Run]:
    """The tuning runs."""
    return [Run(part, TUNED, TUNING_SEED, rate) for rate in RATES]


def best_rate(rows: Sequence[Result]) -> float | None:
    """The rate with the highest success from the root over the last third of a tuning run's iterations, of equal ones
    the smallest. None until all rates were tried."""
    if {row["run"]["rate"] for row in rows} != set(RATES):
        return None

    def _rank(row: Result) -> tuple[float, float]:
        root = row["iterations"]["root_success"]
        last = root[len(root) - max(1, len(root) // 3) :]
        return sum(last) / len(last), -row["run"]["rate"]

    return float(max(rows, key=_rank)["run"]["rate"])


def data_of(run: Run) -> str:
    """The data set of a run's problems; empty if they are generated."""
    return run.arm if run.part == "assay" else PARTS[run.part].data


def data_folder(run: Run, work: Path) -> Path:
    """Where the rows of a run's seed index are."""
    return work / "data" / f"{data_of(run)}-{run.seed}"


def held_out_file(run: Run) -> str:
    """Its name in the folder of the seed index: parts on MBPP hold out different rows."""
    return f"{run.part}_held_out.jsonl"


def configuration(run: Run, work: Path, model: str, changes: Fields, device: str = "cpu") -> Config:
    """The configuration of a run. `work`: folder of the splits, warm starts and runs; `model`: what it starts from,
    or empty for the recipe's. Raises ConfigError."""
    part = PARTS[run.part]
    recipe = "mbpp_smollm2" if run.arm == "mbpp" else part.recipe
    fields: dict[str, Any] = {**part.fields, **ARMS[run.arm]}
    if run.part == "assay":
        fields = {**ASSAY_FIELDS, **(MBPP_FIELDS if run.arm == "mbpp" else GSM8K_FIELDS)}
    if data_of(run):
        data = data_folder(run, work)
        fields |= {"task.path": data / f"{run.part}.jsonl", "task.eval_path": data / held_out_file(run)}
    fields |= {"model.path": model} if model else {}
    fields |= {"learner.policy_lr": run.rate} if run.rate else {}
    fixed = {
        "run.seed": run.seed,
        "run.root": work,
        "run.iterations": 10_000,  # the budget of tokens ends a run
        "model.dtype": "float32",
        "evaluation.samples": 4,
        "rollout.threads": THREADS,
        "learner.threads": THREADS,
    }
    return changed(load_config(ROOT / "configs" / f"{recipe}.yaml"), {**fields, **fixed, **ON[device], **changes})
