"""What is compared: tasks at three hardnesses, arms, and the configuration of one run.

Invariant: two arms of a task differ in nothing but what `ARMS` names: where rollouts start, and for GRPO the advantages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.config import Config
from core.load import parse_config

Fields = Mapping[str, Any]
"""Fields of a configuration by 'section.field'."""

HARDNESSES = ("easy", "medium", "hard")
"""Root success of the starter: about 1e-1, about 1e-2, at most 1e-3."""

ARMS: Mapping[str, Fields] = {
    "ppo": {"replay.ratio": 0.0},
    "grpo": {"replay.ratio": 0.0, "algorithm.estimator": "grpo"},
    "oversampling": {"replay.ratio": 0.0, "task.sampling": "hard"},
    "uniform": {"replay.ranking": "uniform"},
    "value": {"replay.ranking": "value"},
    "success_prefix": {"replay.ranking": "success_prefix"},
    "posterior": {"replay.ranking": "posterior"},
    "frontier": {"replay.ranking": "frontier"},
    "canonical": {"replay.ranking": "canonical", "replay.canonical": True},
    "frontier_canonical": {"replay.ranking": "frontier", "replay.canonical": True},
}
"""The arms. Those that are given canonical solutions are reported apart (`with_solutions`)."""

COMMON: Fields = {
    "starter.hidden_size": 64,
    "starter.layers": 2,
    "starter.heads": 2,
    "rollout.starts": 64,
    "rollout.samples": 8,
    "rollout.max_running": 512,
    "rollout.threads": 1,
    "rollout.kv_cache_gib": 0.25,
    "replay.ratio": 0.5,
    "replay.start_states": 64,
    "algorithm.policy_lambda": 1.0,
    "algorithm.normalise": "per_source",
    "learner.threads": 1,
    "learner.minibatches": 4,
    "learner.adam_beta2": 0.95,
    "learner.adam_epsilon": 3e-4,
    "learner.policy_lr": 1e-3,
    "learner.value_lr": 1e-3,
    "evaluation.samples": 8,
    "cluster.device": "cpu",
}
"""Settings of every run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A task at one hardness."""

    fields: Fields
    tokens: int  # generated tokens of a run


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    task: str
    hardness: str
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Its file, without the suffix."""
        return f"{self.task}-{self.hardness}-{self.arm}-{self.seed}"


def with_solutions(arm: str) -> bool:
    """Whether an arm is given canonical solutions."""
    return bool(ARMS[arm].get("replay.canonical", False))


def rule(lines: int, problems: int, held_out: int) -> Fields:
    """The fields of task rule at one length."""
    return {
        "task.name": "rule",
        "task.min_operations": lines,
        "task.max_operations": lines,
        "task.problems": problems,
        "task.eval_problems": held_out,
        "starter.guess": 1.0,
        "starter.max_operations": 9,
        "starter.steps": 800,
        "starter.lr": 5e-3,
        "rollout.max_prompt_tokens": lines + 2,
        "rollout.max_response_tokens": 3 * lines + 3,
    }


SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "rule": {
        "easy": Setting(rule(2, 116, 12), 100_000),
        "medium": Setting(rule(4, 4096, 64), 300_000),
        "hard": Setting(rule(7, 4096, 64), 600_000),
    },
}


def configuration(run: Run, folder: Path, changes: Fields) -> Config:
    """The configuration of a run; `changes`: single fields that replace the plan's, for tuning. Raises ConfigError."""
    setting = SETTINGS[run.task][run.hardness]
    fields = {**COMMON, **setting.fields, **ARMS[run.arm], "run.seed": run.seed, "run.root": str(folder), **changes}
    data: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        section, _, field = name.partition(".")
        data.setdefault(section, {})[field] = value
    return parse_config(data, source=f"bench.learning {run.name}")


def matrix(tasks: Sequence[str], hardnesses: Sequence[str], arms: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """All runs, in the order of the earliest answer: every arm of every setting once, then the next seed."""
    return [
        Run(task, hardness, arm, seed) for seed in seeds for task in tasks for hardness in hardnesses for arm in arms
    ]
