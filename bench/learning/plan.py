"""What is compared: tasks at three hardnesses, arms, and the configuration of one run. Invariant: two arms of a task
differ in nothing but what `ARMS` names: where rollouts start, what is repeated, the KL that holds the root, the batch,
and for GRPO the advantages. Arms that `ranked` makes differ in the ranking alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.config import Config
from core.load import parse_config

Fields = Mapping[str, Any]  # fields of a configuration by 'section.field'

HARDNESSES = ("easy", "medium", "hard")  # root success of the starter: about 1e-1, about 1e-2, at most 1e-3

OWN = {
    "frontier": "bench.rankings.frontier:Frontier",
    "success_prefix": "bench.rankings.success_prefix:SuccessPrefix",
    "canonical": "bench.rankings.canonical:Canonical",
}
"""Examples of one's own rankings. `frontier` was measured when successes that continue a state made no chain."""
CANONICAL: Fields = {"replay.canonical": True}
FROM_ROOT: Fields = {"replay.ratio": 0.0}  # all rollouts start at the root

COMMON: Fields = {
    "starter.hidden_size": 64,
    "starter.layers": 2,
    "starter.heads": 2,
    "rollout.starts": 32,
    "rollout.samples": 8,
    "rollout.max_running": 512,
    "rollout.threads": 1,
    "rollout.kv_cache_gib": 0.25,
    "replay.ratio": 0.5,
    "replay.schedule": "constant",
    "replay.start_states": 64,
    "replay.imitated": 0,
    "algorithm.policy_lambda": 1.0,
    "algorithm.normalise": "separate",
    "algorithm.kl_coefficient": 0.02,
    "algorithm.kl_schedule": "constant",
    "algorithm.positive_coefficient": 0.0,
    "learner.threads": 1,
    "learner.minibatches": 4,
    "learner.adam_beta2": 0.95,
    "learner.adam_epsilon": 3e-4,
    "learner.policy_lr": 5e-4,
    "learner.value_lr": 1e-3,
    "learner.micro_batch_tokens": 8192,
    "evaluation.samples": 8,
    "cluster.device": "cpu",
}
"""Settings of every run, unless its task has others."""


SHIPPED: Fields = {
    "replay.ratio": 0.5,
    "replay.schedule": "unsolved",
    "replay.start_states": 512,
    "replay.imitated": 32,
    "algorithm.policy_lambda": 0.95,
    "algorithm.normalise": "separate",
    "algorithm.kl_coefficient": 0.2,
    "algorithm.kl_schedule": "unsolved",
    "algorithm.positive_coefficient": 1.0,
    "learner.adam_beta2": 0.999,
    "learner.adam_epsilon": 1e-8,
}
"""The defaults for replay, losses and Adam when these runs were made; now those of generated tasks' recipes."""


_SMALL: Fields = {"rollout.starts": 8}
_GROWING: Fields = {"rollout.starts": 16, "replay.ratio": 0.5, "replay.schedule": "unsolved", "replay.fill": False}
"""8 fresh problems while the root fails, 16 once it succeeds; the difference may be replayed."""
_EMPTY: Fields = {"replay.start_states": 10**7, "replay.capacity": 10**7}  # no state is ever replayed
_KL: Fields = {"algorithm.kl_coefficient": 0.2, "algorithm.kl_schedule": "unsolved"}
"""A KL that holds the root while it fails, and fades to a tenth as it succeeds."""
_ON_TOP: Fields = {**_GROWING, **_KL}
_IMITATING: Fields = {"replay.imitated": 32, "algorithm.positive_coefficient": 1.0}
"""Up to 32 earlier own successes in every update, in the language-model loss of correct responses."""
_RESAMPLED: Fields = {**FROM_ROOT, **_SMALL, **_KL, "rollout.resample": 8}
"""Dynamic sampling: 8 problems with different rewards, of up to 72."""


def ranked(ranking: str) -> Fields:
    """An arm with the batch and the KL of ours, by its ranking."""
    return {**_ON_TOP, "replay.ranking": ranking}


ABLATIONS: Mapping[str, Fields] = {
    "on_top_filled": {**_ON_TOP, "replay.fill": True},
    "on_top_resample": {**_ON_TOP, "replay.fill": True, "rollout.resample": 8},
    "on_top_no_model": ranked("posterior"),
    "on_top_kl_constant": {**_ON_TOP, "algorithm.kl_schedule": "constant"},
    "on_top_kl_0.02": {**_ON_TOP, "algorithm.kl_coefficient": 0.02},
    "on_top_kl_0": {**_ON_TOP, "algorithm.kl_coefficient": 0.0, "algorithm.kl_schedule": "constant"},
    "on_top_share_constant": {**_ON_TOP, "replay.schedule": "constant"},
    "on_top_share_annealed": {**_ON_TOP, "replay.schedule": "annealed", "run.iterations": 250},  # more than there are
    "on_top_ratio_0.125": {**_ON_TOP, "rollout.starts": 9, "replay.ratio": 0.125},
    "on_top_ratio_0.25": {**_ON_TOP, "rollout.starts": 11, "replay.ratio": 0.25},
    "on_top_ratio_0.8": {**_ON_TOP, "rollout.starts": 40, "replay.ratio": 0.8},
    "on_top_critic_warmup": {**_ON_TOP, "learner.critic_warmup": 10},
    "on_top_positive": {**_ON_TOP, "algorithm.positive_coefficient": 1.0},
    "on_top_adam_epsilon": {**_ON_TOP, "learner.adam_epsilon": 1e-8},
    "on_top_adam": {**_ON_TOP, "learner.adam_epsilon": 1e-8, "learner.adam_beta2": 0.999},
}
"""`learnability_small` with one piece changed, at the medium setting only: with `ratio_0.125`, `ratio_0.25` and
`ratio_0.8` 8 fresh problems and up to 1, 3 and 32 replayed states. `no_model`: the states' own outcomes alone.
`critic_warmup`: the policy learns from the 11th iteration on. `positive`: the language-model loss of the imitating
arms, on correct responses of the batch alone. `adam`: its usual settings, and `adam_epsilon`: its usual epsilon."""

ARMS: Mapping[str, Fields] = {
    "ppo": FROM_ROOT,
    "ppo_small": {**FROM_ROOT, **_SMALL},
    "ppo_growing": {**_GROWING, **_EMPTY},
    "ppo_falling": {**_GROWING, **_EMPTY},
    "ppo_kl": {**_ON_TOP, **_EMPTY},
    "ppo_kl_falling": {**_ON_TOP, **_EMPTY},
    "ppo_imitating": {**_GROWING, **_EMPTY, **_IMITATING},
    "ppo_kl_imitating": {**_ON_TOP, **_EMPTY, **_IMITATING},
    "grpo": {**FROM_ROOT, "algorithm.estimator": "grpo", "learner.policy_lr": 4e-4},
    "grpo_kl": {**_ON_TOP, **_EMPTY, "algorithm.estimator": "grpo"},
    "ppo_resample": _RESAMPLED,
    "grpo_resample": {**_RESAMPLED, "algorithm.estimator": "grpo"},
    "oversampling": {**FROM_ROOT, "task.sampling": "hard"},
    "oversampling_small": {**FROM_ROOT, "task.sampling": "hard", **_SMALL},
    "oversampling_kl": {**_ON_TOP, **_EMPTY, "task.sampling": "hard"},
    "uniform": {"replay.ranking": "uniform"},
    "uniform_small": ranked("uniform"),
    "uniform_filtered_small": ranked("uniform_filtered"),
    "value": {"replay.ranking": "value"},
    "value_small": ranked("value"),
    "success_prefix": {"replay.ranking": OWN["success_prefix"]},
    "success_prefix_small": ranked(OWN["success_prefix"]),
    "posterior": {"replay.ranking": "posterior"},
    "frontier": {"replay.ranking": OWN["frontier"]},
    "frontier_small": ranked(OWN["frontier"]),
    "learnability_small": ranked("learnability"),
    "learnability_imitating": {**ranked("learnability"), **_IMITATING},
    "learnability_falling": ranked("learnability"),
    "defaults": {**SHIPPED, "rollout.starts": 16},
    "gated": {**_ON_TOP, **_EMPTY, **_IMITATING},
    "epochs": {**_ON_TOP, **_EMPTY, "learner.epochs": 4},
    "raft": {
        **_ON_TOP,
        **_EMPTY,
        "algorithm.estimator": "bench.learning.raft:nothing",
        "algorithm.positive_coefficient": 1.0,
    },
    "learnability_grpo": {**ranked("learnability"), "algorithm.estimator": "grpo"},
    "canonical": {"replay.ranking": OWN["canonical"], **CANONICAL},
    "value_canonical": {**ranked("value"), **CANONICAL},
    "learnability_canonical": {**ranked("learnability"), **CANONICAL},
    **ABLATIONS,
}
"""The arms. `_small`: iterations with 8 fresh problems, the batch that was best for PPO; with replay up to 8 states on
top, and the KL of ours. `ppo_growing`: the same growing batch and nothing to replay. `_falling`: with a learning rate
that falls, in the settings that say how fast (`Setting.falling`). `_imitating`: every update also repeats earlier own
successes. `_kl`: the batch, the learning rate and the KL of ours, so that only replay is missing. Those that are given
canonical solutions are reported apart (`with_solutions`). `learnability_grpo` has GRPO's advantages and no critic;
`grpo_kl` is the same without replay. `_resample`: problems whose rewards are all equal are replaced by others, in up to
8 rounds. `defaults`: ours with what recipes of generated tasks leave to the defaults. Two arms tell "earlier successes"
from "more updates": `epochs` takes four passes over every batch and imitates nothing; `raft`
(2504.11343) has the loss on the correct responses of the batch alone, without advantages. `gated` is `ppo_kl_imitating`
with the gate of self-imitation, by a patch (bench/results/learning/gated)."""

PAST = ("posterior", "uniform_filtered_small", "on_top_no_model", "gated")
"""Arms of changed code, or of an earlier version, whose rankings are gone. Their results stay; they cannot be run."""
PAST_TASKS = ("countdown",)
"""The same of tasks."""

REPLAYING = tuple(
    arm
    for arm, fields in ARMS.items()
    if fields.get("replay.ranking") and fields.items() >= _KL.items() and not arm.endswith(("_falling", "_imitating"))
)
"""Arms with the batch and the KL of ours, replayed states, and a learning rate that falls where that of ours does."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A task at one hardness."""

    fields: Fields
    tokens: int  # that a run generates
    falling: Mapping[str, int] = field(default_factory=dict)
    """Arms whose learning rates fall linearly, and the iterations after which these would be 0: about 1.4 times those
    of a run, which so ends at a quarter of its first rates."""

    def schedule(self, arm: str) -> Fields:
        """How the learning rates of an arm change."""
        return {"learner.schedule": "linear", "run.iterations": self.falling[arm]} if arm in self.falling else {}


def falling(rooted: int, replaying: int, **others: int) -> Mapping[str, int]:
    """`Setting.falling`: one number for arms with our batch that replay nothing, or imitate, or do both; and one for
    those that replay alone."""
    one = ("ppo_falling", "ppo_kl", "ppo_imitating", "ppo_kl_imitating", "learnability_imitating", "grpo_kl")
    return {
        **dict.fromkeys((*one, "epochs", "raft", "oversampling_kl"), rooted),
        **dict.fromkeys(REPLAYING, replaying),
        **others,
    }


def beside(without: int, replaying: int) -> Mapping[str, int]:
    """`Setting.falling` where the rates of ours are constant: for arms of their own, without replay and with."""
    return {"ppo_falling": without, "ppo_kl_falling": without, "learnability_falling": replaying}


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


def level(task: str, steps: range, problems: int, held_out: int, prompt: int, response: int) -> Fields:
    """The fields of a generated task at one hardness: its steps, and room for prompts and responses (tokens)."""
    return {
        "task.name": task,
        "task.min_operations": steps.start,
        "task.max_operations": steps.stop - 1,
        "task.problems": problems,
        "task.eval_problems": held_out,
        "rollout.max_prompt_tokens": prompt,
        "rollout.max_response_tokens": response,
    }


def rule(lines: int, problems: int, held_out: int, tokens: int, rate: float, falls: Mapping[str, int]) -> Setting:
    """Task rule: a line is a symbol, a choice and a line break."""
    fields = level("rule", range(lines, lines + 1), problems, held_out, lines + 2, 3 * lines + 3)
    return Setting({**fields, **_guessing(9, 800), "learner.policy_lr": rate}, tokens, falls)


def stories(steps: int, tokens: int, rate: float, falls: Mapping[str, int]) -> Setting:
    """Word problems: a sentence is at most 6 tokens, a line of the response at most 8."""
    fields = level("bench.learning.stories:stories", range(steps, steps + 1), 4096, 64, 10 + 6 * steps, 8 * steps + 6)
    return Setting({**fields, **_guessing(8, 1000), "learner.policy_lr": rate}, tokens, falls)


def lock(presses: int, tokens: int, falls: Mapping[str, int]) -> Setting:
    """The lock, by the presses of its shortest way. Up to 8 presses of 3 tokens are allowed, and a word."""
    fields = level("bench.learning.lock:lock", range(presses, presses + 1), 2048, 64, 12, 30)
    of_task = {**_guessing(6, 1000), "learner.policy_lr": 1.4e-3, "algorithm.kl_coefficient": 0.1}
    return Setting({**fields, **of_task}, tokens, falls)


def countdown(operations: int, tokens: int) -> Setting:
    """Countdown, by its operations."""
    fields = level("countdown", range(operations, operations + 1), 2048, 64, 24, 14 * operations)
    return Setting({**fields, **_guessing(4, 1000)}, tokens)


def arithmetic(steps: range, tokens: int) -> Setting:
    """Chained arithmetic. Its starter has seen right solutions of all lengths, and errs."""
    fields = level("arithmetic", steps, 4096, 64, 2 * steps.stop + 1, 8 * steps.stop + 4)
    starter = {"starter.hidden_size": 128, "starter.layers": 3, "starter.heads": 4}
    of_task = {**starter, "starter.steps": 500, "starter.max_operations": 12, "learner.policy_lr": 1e-4}
    return Setting({**fields, **of_task}, tokens)


def _guessing(longest: int, steps: int) -> Fields:
    """A starter that has seen guesses of up to `longest` steps."""
    return {"starter.guess": 1.0, "starter.lr": 5e-3, "starter.steps": steps, "starter.max_operations": longest}


SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "rule": {
        "easy": rule(2, 116, 12, 80_000, 1e-3, {}),
        "medium": rule(4, 4096, 64, 250_000, 1e-3, beside(290, 260)),
        "hard": rule(7, 4096, 64, 1_000_000, 5e-4, {}),
    },
    "stories": {
        "easy": stories(2, 300_000, 7e-4, falling(290, 220, ppo=105)),
        "medium": stories(4, 700_000, 7e-4, falling(390, 300)),
        "hard": stories(6, 1_000_000, 7e-4, {}),
    },
    "lock": {
        "easy": lock(1, 150_000, {}),
        "medium": lock(4, 600_000, beside(450, 370)),
        "hard": lock(6, 1_000_000, {}),
    },
    "countdown": {"easy": countdown(2, 200_000), "medium": countdown(4, 800_000), "hard": countdown(5, 1_200_000)},
    "arithmetic": {
        "easy": arithmetic(range(5, 7), 200_000),
        "medium": arithmetic(range(8, 10), 1_000_000),
        "hard": arithmetic(range(11, 13), 1_500_000),
    },
}
"""The tasks at their hardnesses. Learning rates were tuned for rule, stories and lock (bench/tuning.md)."""


def configuration(run: Run, folder: Path, changes: Fields) -> Config:
    """The configuration of a run; `changes`: single fields that replace the plan's, for tuning. Raises ConfigError."""
    setting = SETTINGS[run.task][run.hardness]
    arm = {**ARMS[run.arm], **setting.schedule(run.arm)}
    fields = {**COMMON, **setting.fields, **arm, "run.seed": run.seed, "run.root": str(folder), **changes}
    data: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        section, _, field = name.partition(".")
        data.setdefault(section, {})[field] = value
    return parse_config(data, source=f"bench.learning {run.name}")


def matrix(tasks: Sequence[str], hardnesses: Sequence[str], arms: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """All runs, in the order of the earliest answer: every arm of every setting once, then the next seed."""
    return [
        Run(task, hardness, arm, seed)
        for seed in seeds
        for task in tasks
        if task not in PAST_TASKS
        for hardness in hardnesses
        for arm in arms
        if arm not in PAST
        if arm not in ABLATIONS or hardness == "medium"
        if not arm.endswith("_falling") or arm in SETTINGS[task][hardness].falling
    ]
