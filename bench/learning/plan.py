"""What is compared: three tasks at two hardnesses, the arms, and the configuration of one run. Invariant: two arms of a
setting differ in nothing but what `ARMS` names: where rollouts start, what is repeated, and the KL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.runs import Fields, Run
from bench.tasks.starters import Settings
from core.config import Config
from core.load import parse_config

COMMON: Fields = {
    "starter.hidden_size": 64,
    "starter.layers": 2,
    "starter.heads": 2,
    "starter.guess": 1.0,  # it has seen guesses: the right form, and every choice in it equally likely
    "starter.lr": 5e-3,
    "task.problems": 256,  # each is visited about ten times in a run
    "task.eval_problems": 64,
    "rollout.starts": 16,  # 8 fresh problems while the root fails; what the others replay is on top
    "rollout.samples": 8,
    "rollout.max_running": 512,
    "rollout.threads": 1,
    "rollout.kv_cache_gib": 0.25,
    "replay.ratio": 0.5,
    "replay.schedule": "unsolved",
    "replay.fill": False,
    "replay.discoveries": 32,
    "replay.start_states": 16,
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
    "learner.value_lr": 1e-3,
    "learner.micro_batch_tokens": 8192,
    "evaluation.samples": 8,
    "cluster.device": "cpu",
    "run.iterations": 10_000,  # the budget of tokens ends a run
}
"""Settings of every run, unless its task has others."""

_EMPTY: Fields = {"replay.start_states": 10**7, "replay.capacity": 10**7}  # the same batch, and nothing replayed
_HELD: Fields = {"algorithm.kl_coefficient": 0.2, "algorithm.kl_schedule": "unsolved"}
"""A KL that holds the root while it fails, and fades to a tenth as it succeeds."""
_IMITATING: Fields = {"replay.imitated": 32, "algorithm.positive_coefficient": 1.0}
ARMS: Mapping[str, Fields] = {
    "ppo": _EMPTY,
    "imitation": {**_EMPTY, **_HELD, **_IMITATING},
    "replay": _HELD,
    "both": {**_HELD, **_IMITATING},
}
"""`ppo` has the KL that is best for it: with that of the others it learns nothing where success is rare. `replay` is
that of the defaults: own states, the bound on visits, and discoveries."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A task at one hardness."""

    title: str
    tokens: int  # that a run generates
    fields: Fields


def setting(
    title: str, tokens: int, task: str, steps: int, longest: int, room: tuple[int, int], rate: float, **more: Any
) -> Setting:
    """A task of this many steps. `longest`: steps that its starter has seen; `room`: tokens of prompt and response;
    `more`: other fields, with `__` for the point."""
    fields = {
        "task.name": task,
        "task.operations": f"{steps},{steps}",
        "rollout.max_prompt_tokens": room[0],
        "rollout.max_response_tokens": room[1],
        "starter.max_operations": longest,
        "starter.steps": 1000,
        "learner.policy_lr": rate,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return Setting(title, tokens, fields)


RULE, STORIES = "bench.tasks.rule:rule", "bench.learning.stories:stories"
LOCK = "bench.learning.lock:lock"
OF_STORIES = {"starter__vocabulary": 2048}
OF_LOCK = {"algorithm__kl_coefficient": 0.1}
SETTINGS: Mapping[str, Setting] = {
    "rule medium": setting("rule, 4 lines", 150_000, RULE, 4, 9, (6, 15), 1e-3, starter__steps=800),
    "stories medium": setting("stories, 4 steps", 200_000, STORIES, 4, 8, (34, 38), 7e-4, **OF_STORIES),
    "lock medium": setting("lock, 4 presses", 200_000, LOCK, 4, 6, (12, 30), 1.4e-3, **OF_LOCK),
    "rule hard": setting("rule, 7 lines", 300_000, RULE, 7, 9, (9, 24), 5e-4, starter__steps=800),
    "stories hard": setting("stories, 6 steps", 400_000, STORIES, 6, 8, (46, 54), 7e-4, **OF_STORIES),
    "lock hard": setting("lock, 6 presses", 400_000, LOCK, 6, 6, (12, 30), 1.4e-3, **OF_LOCK),
}
"""By success from the root before training: about 1 % (medium), and at most 0.1 % (hard)."""


def configuration(run: Run, work: Path, changes: Fields) -> Config:
    """The configuration of a run; `changes`: single fields that replace the plan's. Raises ConfigError."""
    fields = {**_fields(run), "run.seed": run.seed, "run.root": str(work), **changes}
    data: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        section, _, field = name.partition(".")
        data.setdefault(section, {})[field] = value
    del data["starter"]
    return parse_config(data, source=f"bench.learning {run.name}")


def starter_of(run: Run) -> Settings:
    """The model that a run starts from: its fields `starter.`."""
    fields = _fields(run).items()
    return Settings(**{name.removeprefix("starter."): value for name, value in fields if name.startswith("starter.")})


def _fields(run: Run) -> Fields:
    return {**COMMON, **SETTINGS[run.part].fields, **ARMS[run.arm]}


def matrix(settings: Sequence[str], arms: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """All runs, in the order of the earliest answer: every arm of every setting once, then the next seed."""
    return [Run(part, arm, seed) for seed in seeds for part in settings for arm in arms]
