"""The extension points: fields of the configuration that name a built-in by a word, or a user's own by its import path
`module:name`. A new built-in needs a line here."""

from collections.abc import Mapping
from typing import Any

from core.imports import imported

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "task.name": {  # a `tasks.kinds.TaskKind`
        "arithmetic": "tasks.synthetic.arithmetic:TASK",
        "sums": "tasks.synthetic.sums:TASK",
        "reasoning_gym": "tasks.synthetic.reasoning_gym:TASK",
        "verifiers": "tasks.worlds.verifiers:TASK",
        "gsm8k": "tasks.mathematics.answers:GSM8K",
        "math": "tasks.mathematics.answers:MATH",
        "mbpp": "tasks.code.formats:MBPP",
        "humaneval": "tasks.code.formats:HUMANEVAL",
        "apps": "tasks.code.formats:APPS",
        "dialogue": "tasks.kinds:DIALOGUE",
        "prompts": "tasks.kinds:PROMPTS",
        "environment": "tasks.kinds:EPISODES",
    },
    "rollout.environment": {  # a class, see `core.environments.protocol.Environment`
        "served": "core.environments.served:Served",  # an agent, the function that `rollout.environment` names
        "textarena": "tasks.worlds.games:TextArena",
        "verifiers": "tasks.worlds.verifiers:Verifiers",  # of the task of this name
    },
    "replay.ranking": {  # a subclass of `replay.rankings.base.Ranking`
        "value": "replay.rankings.value:Value",
        "learnability": "replay.rankings.learnability:Learnability",
        "uniform": "replay.rankings.uniform:Uniform",
    },
    "algorithm.estimator": {  # a `learner.estimators.Estimator`, or a function of `Episodes`
        "gae": "learner.estimators:GAE",
        "grpo": "learner.estimators:GRPO",
        "dr_grpo": "learner.estimators:DR_GRPO",
        "rloo": "learner.estimators:RLOO",
        "opo": "learner.estimators:OPO",
        "reinforce++": "learner.estimators:REINFORCE",
        "reinforce++_baseline": "learner.estimators:REINFORCE_BASELINE",
    },
    "algorithm.policy_loss": {  # a `learner.policy_losses.PolicyLoss`
        "ppo": "learner.policy_losses:ppo",
        "gspo": "learner.policy_losses:gspo",
        "cispo": "learner.policy_losses:cispo",
        "gmpo": "learner.policy_losses:gmpo",
    },
    "monitor.sinks": {  # a subclass of `monitor.trackers.Tracker`, by the name of its package
        "tensorboard": "monitor.trackers:TensorBoard",
        "wandb": "monitor.trackers:WeightsAndBiases",
        "mlflow": "monitor.trackers:MLflow",
    },
}
"""Where the built-in ones are, by field and name."""


def names(field: str) -> tuple[str, ...]:
    """The built-in names of a field."""
    return tuple(BUILT_IN[field])


def find(field: str, name: str) -> Any:
    """What a field names: a built-in, or the object at an import path. Raises ConfigError."""
    return imported(field, BUILT_IN[field].get(name, name))
