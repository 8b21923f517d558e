"""The parts of the experiment, their arms, and the configuration of one run (PROTOCOL.md). Invariant: two arms of a
part differ in nothing but what `ARMS` names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.demo import changed
from bench.models import ROOT
from bench.runs import Fields, Result, Run
from core.config import Config
from core.load import load_config

NO_IMITATION: Fields = {"replay.imitated": 0, "algorithm.positive_coefficient": 0.0}
NO_REPLAY: Fields = {"replay.ratio": 0.0}
NEITHER: Fields = {**NO_IMITATION, **NO_REPLAY}
UNBOUNDED: Fields = {"replay.bounded": False, "replay.discoveries": 0}  # of the arms that do not name them
REPLAYED: Fields = {**NO_IMITATION, "replay.ratio": 0.25, "replay.bounded": True, "replay.discoveries": 16}
FAST: Fields = {"learner.policy_lr": 5e-5}  # 2.5 times the rate of the sums
KL: Fields = {"algorithm.kl_coefficient": 0.01}  # the default
SOLUTIONS: Fields = {**REPLAYED, "replay.canonical": True}
ARMS: Mapping[str, Fields] = {
    "neither": NEITHER,
    "imitation": NO_REPLAY,
    "replay": NO_IMITATION,
    "both": {},
    "grpo": {**NEITHER, "algorithm.estimator": "grpo", "learner.value_model": "none"},
    "mbpp": {},  # of an assay, whose arms are its tasks
    "ppo": NEITHER,
    "dapo": {**NEITHER, "rollout.resample": 2},
    "imitate": {**NEITHER, "replay.imitated": 16},
    "replayed": REPLAYED,
    "replayed_imitate": {**REPLAYED, "replay.imitated": 16},
    "canonical": SOLUTIONS,
    "canonical_imitate": {**SOLUTIONS, "replay.imitated": 16},
    "checked": {**REPLAYED, "replay.exclude_wrong": True},
    "checked_imitate": {**REPLAYED, "replay.exclude_wrong": True, "replay.imitated": 16},
    "canonical_value": {**SOLUTIONS, "replay.ranking": "value"},
    "canonical_uniform": {**SOLUTIONS, "replay.ranking": "uniform"},
    "rrl": {**NO_IMITATION, "replay.ratio": 0.25, "replay.ranking": "value", "replay.canonical": True},
    "paper": {**NO_IMITATION, "replay.ratio": 0.25, "replay.ranking": "value"},
    "share_eighth": {**SOLUTIONS, "replay.ratio": 0.125},
    "share_half": {**SOLUTIONS, "replay.ratio": 0.5},
    "no_discoveries": {**SOLUTIONS, "replay.discoveries": 0},
    "unbounded": {**SOLUTIONS, "replay.bounded": False},
    "ppo_kl": {**NEITHER, **KL},
    "replayed_kl": {**REPLAYED, **KL, "replay.schedule": "unsolved"},
    "ppo_fast": {**NEITHER, **FAST},
    "canonical_fast": {**SOLUTIONS, **FAST},
}
TUNING_SEED = 0
RATES = (5e-6, 1e-5)  # tried in a tuned part
TUNED = "neither"  # the arm that tries them, for all arms of its part
PAIRS = (
    ("both", "imitation"), ("imitation", "neither"), ("both", "replay"), ("replay", "neither"), ("neither", "grpo"),
    ("replayed", "ppo"), ("replayed", "dapo"), ("replayed_imitate", "imitate"), ("imitate", "ppo"),
    ("canonical", "ppo"), ("canonical", "imitate"), ("canonical_imitate", "imitate"),
    ("canonical_imitate", "canonical"), ("checked", "ppo"), ("checked", "replayed"), ("canonical", "replayed"),
    ("replayed", "paper"), ("checked_imitate", "imitate"), ("checked_imitate", "ppo"), ("share_eighth", "canonical"),
    ("ppo_fast", "ppo"), ("canonical_fast", "canonical"), ("canonical_fast", "ppo_fast"),
    ("share_half", "canonical"), ("no_discoveries", "canonical"), ("unbounded", "canonical"),
    ("canonical_value", "canonical"), ("canonical_uniform", "canonical"), ("rrl", "ppo"),
    ("ppo_kl", "ppo"), ("replayed_kl", "ppo_kl"), ("replayed_imitate", "ppo"),
)  # fmt: skip
"""Arms that are compared, the first minus the second."""

MBPP_FIELDS: Fields = {
    "rollout.max_response_tokens": 256,
    "rollout.max_running": 64,
    "task.code.program_seconds": 5.0,
}
SUMS_FIELDS: Fields = {
    **UNBOUNDED,
    "task.operations": "1,2",
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
HARD_FIELDS: Fields = {
    **SUMS_FIELDS,
    "task.operations": "2,2",
    "task.problems": 32,
    "rollout.starts": 8,
    "replay.start_states": 8,
    "replay.schedule": "constant",
}
FEW_FIELDS: Fields = {**HARD_FIELDS, "task.operations": "1,2"}
CHAIN_FIELDS: Fields = {
    **HARD_FIELDS,
    "task.operations": "3,3",
    "rollout.max_response_tokens": 64,
}
TAUGHT_FIELDS: Fields = {**CHAIN_FIELDS, "task.operations": "2,3", "task.examples": "[]", "task.problems": 128}
"""Of the supervised training before `after`."""
AFTER_FIELDS: Fields = {**TAUGHT_FIELDS, "task.operations": "3,3", "learner.policy_lr": 5e-6}
CODER_FILE = ROOT / "models" / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CODER_FIELDS: Fields = {
    "model.path": str(CODER_FILE) if CODER_FILE.exists() else "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "task.examples": json.dumps(  # without one it explains its program and tests it, in three times as many tokens
        [
            {
                "prompt": "Write a function to find the largest number in a list.\n"
                "For example: assert largest([3, 9, 2]) == 9",
                "response": "def largest(numbers):\n    best = numbers[0]\n    for number in numbers:\n"
                "        if number > best:\n            best = number\n    return best",
            }
        ]
    ),
    "rollout.max_prompt_tokens": 512,  # of HumanEval, and of all of MBPP
    "rollout.max_response_tokens": 128,
    "algorithm.kl_coefficient": 0.0,
    "learner.lora_rank": 16,
    "learner.policy_lr": 2e-4,
    "learner.micro_batch_tokens": 1024,
}
"""All weights of this model would need 22 GiB on CPU."""
CODE_FIELDS: Fields = {
    **UNBOUNDED,
    **MBPP_FIELDS,
    **CODER_FIELDS,
    "task.problems": "auto",
    "task.eval_problems": 64,
    "task.code.reward": "share",
    "rollout.starts": 8,
    "rollout.samples": 8,
    "replay.start_states": 8,
    "replay.schedule": "constant",
}
ON: Mapping[str, Fields] = {
    "cpu": {"cluster.device": "cpu"},
    "cuda": {  # several runs share the GPU, so each has a cache of fixed size
        "cluster.device": "cuda",
        "rollout.gpu_memory_share": 0.02,
        "rollout.engine_options": json.dumps({"enforce_eager": True, "kv_cache_memory_bytes": 2 * 2**30}),
        "rollout.max_running": 128,
        "rollout.sleep": False,
    },
}
"""Fields of a device. They set how fast a run is, not what it learns."""
ASSAY_FIELDS: Fields = {
    **MBPP_FIELDS,
    "task.eval_problems": 8,
    "replay.boundary": "stride",  # a state may begin wherever a character ends
    "replay.stride": 1,
    "replay.imitated": 0,
    "algorithm.kl_coefficient": 0.0,
    "algorithm.positive_coefficient": 0.0,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the experiment."""

    recipe: str  # in configs/
    arms: tuple[str, ...]
    seeds: int  # seed indices 1, 2, ... that are planned
    fields: Fields
    budget: int = 0  # generated tokens
    data: str = ""  # data set of its problems; empty: they are generated
    last_samples: int = 4  # of each held-out problem in the last evaluation
    threads: int = 1  # two runs at a time use two cores better than one run does, if both fit into memory
    after: int | None = None  # seed index of the supervised training that its runs begin with
    tuned: bool = False  # whether the learning rate is
    humaneval: bool = False  # whether its runs are evaluated on HumanEval, too
    fewer: Mapping[str, int] = field(default_factory=dict)  # seed indices of arms by which nothing is decided


FACTORS = ("both", "imitation", "neither", "replay")
MAIN_ARMS = ("ppo", "canonical", "imitate")
OTHER_ARMS = ("replayed", "checked", "replayed_imitate", "canonical_imitate", "dapo", "paper")
CHAIN_ARMS = (*MAIN_ARMS, "replayed", "replayed_imitate", "dapo", "paper")
CODE_ARMS = ("ppo", "canonical", "imitate", "replayed", "ppo_kl", "replayed_kl")
AFTER_ARMS = ("ppo", "replayed", "imitate", "checked", "checked_imitate")
DOSES = ("share_eighth", "share_half", "no_discoveries", "unbounded")
FASTER = ("ppo_fast", "canonical_fast")
RANKED = ("rrl", "canonical_value", "canonical_uniform")
DECIDING_NOTHING = (*OTHER_ARMS, *DOSES, *FASTER, *RANKED)
FEWER = dict.fromkeys(("dapo", "paper", "replayed_imitate"), 3)
PARTS: Mapping[str, Part] = {
    "assay": Part("mbpp_smollm2", ("mbpp",), 1, ASSAY_FIELDS, data="mbpp"),
    "hard": Part(
        "sums_smollm2",
        (*MAIN_ARMS, *DECIDING_NOTHING),
        12,
        HARD_FIELDS,
        20_000,
        fewer=dict.fromkeys(DECIDING_NOTHING, 3),
    ),
    "few": Part("sums_smollm2", (*MAIN_ARMS, *OTHER_ARMS), 6, FEW_FIELDS, 10_000, fewer=FEWER),
    "after": Part("sums_smollm2", AFTER_ARMS, 6, AFTER_FIELDS, 60_000, after=TUNING_SEED),
    "chain": Part("sums_smollm2", CHAIN_ARMS, 6, CHAIN_FIELDS, 20_000, fewer=FEWER),
    "sums": Part(
        "sums_smollm2", (*FACTORS, "grpo"), 6, SUMS_FIELDS, 60_000, tuned=True, fewer={"replay": 3, "grpo": 3}
    ),
    "code_assay": Part("mbpp_smollm2", ("mbpp",), 1, {**ASSAY_FIELDS, **CODER_FIELDS}, data="mbpp", threads=2),
    "code": Part("mbpp_smollm2", CODE_ARMS, 3, CODE_FIELDS, 36_000, data="mbpp", threads=2, humaneval=True),
}
ASSAYS = ("assay", "code_assay")  # parts that train nothing; the second chooses the problems of `code`


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


def supervised_model(work: Path, seed: int) -> Path:
    """Where `bench.real.supervised` leaves the model of a seed index."""
    return work / f"supervised-{seed}"


def data_folder(run: Run, work: Path) -> Path:
    """Where the rows of a run's seed index are."""
    return work / "data" / f"{PARTS[run.part].data}-{run.seed}"


def held_out_file(run: Run) -> str:
    """Its name in the folder of the seed index: parts on one data set hold out different rows."""
    return f"{run.part}_held_out.jsonl"


def humaneval_file(work: Path) -> Path:
    """The problems of HumanEval, for all seed indices."""
    return work / "data" / "humaneval.jsonl"


def humaneval_set(work: Path) -> Fields:
    """HumanEval as an evaluation set."""
    return {
        "label": "humaneval",
        "name": "humaneval",
        "path": str(humaneval_file(work)),
        "template": "Write this function without its docstring.\n{prompt}",
        "columns": {"prompt": "prompt", "tests": "test", "entry_point": "entry_point"},
    }


def configuration(run: Run, work: Path, changes: Fields, device: str = "cpu") -> Config:
    """The configuration of a run. `work`: folder of the splits and runs. Raises ConfigError."""
    part = PARTS[run.part]
    fields: dict[str, Any] = {**part.fields, **ARMS[run.arm]}
    if part.data:
        data = data_folder(run, work)
        fields |= {"task.path": data / f"{run.part}.jsonl", "task.eval_path": data / held_out_file(run)}
    fields |= {"task.eval_sets": json.dumps([humaneval_set(work)])} if part.humaneval else {}
    fields |= {"learner.policy_lr": run.rate} if run.rate else {}
    fields |= {} if part.after is None else {"model.path": supervised_model(work, part.after)}
    fixed = {
        "run.seed": run.seed,
        "run.root": work,
        "run.iterations": 10_000,  # the budget of tokens ends a run
        "model.dtype": "float32",
        "evaluation.samples": 4,
        "rollout.threads": part.threads,
        "learner.threads": part.threads,
    }
    return changed(load_config(ROOT / "configs" / f"{part.recipe}.yaml"), {**fields, **fixed, **ON[device], **changes})
