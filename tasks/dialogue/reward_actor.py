"""The reward model as a Ray actor that scores batches during training, and the driver's handle of it. Invariants: every
call has a deadline. An actor that dies or hangs is restarted once per batch; then an ActorError names it."""

from collections.abc import Sequence
from typing import Any

import ray

from core.config import ResolvedRewardModel
from core.errors import ActorError, first_line
from core.startup import in_group
from tasks.dialogue.chat import Messages
from tasks.dialogue.reward_model import RewardScorer

_NAME = "reward-model"
_ATTEMPTS = 2
DEADLINE = 300.0  # seconds that one batch of scores may take before the actor counts as hung


class RewardService:
    """The driver's handle of the actor: a `tasks.dialogue.reward_model.Scorer`."""

    def __init__(self, config: ResolvedRewardModel) -> None:
        self._config = config
        self._actor: Any = None

    def close(self) -> None:
        """End the actor."""
        if self._actor is not None and ray.is_initialized():
            ray.kill(self._actor)
        self._actor = None

    def score(self, dialogues: Sequence[Messages]) -> list[float | None]:
        """See `RewardScorer.score`. Raises ActorError when the actor fails twice."""
        failure = ""
        for _ in range(_ATTEMPTS):
            if self._actor is None:
                self._actor = self._start()
            try:
                scores: list[float | None] = ray.get(self._actor.score.remote(dialogues), timeout=DEADLINE)
            except ray.exceptions.GetTimeoutError:
                failure = f"no answer within {DEADLINE:g} s"
            except ray.exceptions.RayError as error:
                failure = first_line(getattr(error, "cause", None) or error)
            else:
                return scores
            self.close()
        raise ActorError(f"{_NAME}: {failure}, {_ATTEMPTS} times; read its log, then resume from the last checkpoint")

    def _start(self) -> Any:
        config = self._config
        gpus = config.gpus if ray.cluster_resources().get("GPU") else 0.0
        environment = {"OMP_NUM_THREADS": "1"} | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})
        options = {"num_cpus": 0.0, "num_gpus": gpus, "runtime_env": {"env_vars": environment}}
        scorer = ray.remote(RewardScorer).options(**options, **in_group("reward model", -1))  # any free bundle
        device = "cuda" if gpus else "cpu"
        return scorer.remote(config.path, device=device, threads=1, template_date=config.template_date)
