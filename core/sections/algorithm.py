"""PPO: advantages and losses."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from core.sections.base import NonNegative, Positive, Section, UnitInterval, one_of
from core.sections.registry import names

Normalise = Literal["global", "separate", "none"]
KlEstimator = Literal["k1", "k2", "k3"]
Aggregation = Literal["token-mean", "sequence-mean", "constant"]


class AlgorithmConfig(Section):
    """PPO: advantages and losses (conventions: docs/architecture.md)."""

    estimator: Annotated[str, AfterValidator(one_of(names("algorithm.estimator")))] = Field(
        "gae",
        description=f"The policy's advantages: {', '.join(names('algorithm.estimator'))}, or your own function as "
        "module:function (docs/learner.md says when to use which).",
    )
    policy_loss: Annotated[str, AfterValidator(one_of(names("algorithm.policy_loss")))] = Field(
        "ppo",
        description=f"The policy's loss: {', '.join(names('algorithm.policy_loss'))}, or your own function as "
        "module:function (docs/learner.md).",
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount."""
    policy_lambda: UnitInterval = 0.95
    """GAE lambda of the policy's advantages."""
    value_lambda: UnitInterval = 1.0
    """GAE lambda of the critic's targets."""
    normalise: Normalise = "separate"
    """Whitening (gae, reinforce++, reinforce++_baseline): over the batch, fresh and replayed rows apart, or none."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """PPO clip below: ratio >= 1 - clip_low."""
    clip_high: Positive = 0.2
    """PPO clip above: ratio <= 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] = 3.0
    """Bound on the ratio for negative advantages."""
    value_clip: Positive = 0.5
    """How far a value may move from its old one in one update."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the entropy bonus."""
    kl_coefficient: NonNegative = 0.01
    """Weight of the KL to the reference policy, which keeps the policy near its start, also while it learns replayed
    states; 0: there is no reference policy. 0.01 is OpenRLHF's and NeMo-RL's; models trained from scratch need more
    (docs/method.md, Defaults)."""
    kl_estimator: Literal["auto", KlEstimator] = "auto"
    """Estimator of that KL. auto: the one with the reverse KL's gradient, k2 in the loss and k1 in the reward."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Where that KL is added: to the loss, or (negative) to the reward of every token."""
    kl_target: Annotated[float | None, Field(gt=0)] = None
    """KL to the reference policy (nats per token); kl_coefficient is adapted to reach it; none: as kl_schedule says."""
    kl_schedule: Literal["constant", "unsolved"] = "constant"
    """How that weight changes, unless kl_target is set. constant: not; unsolved: kl_coefficient times the share of the
    iteration's fresh problems of which every sample fails, at least a tenth. Measured: docs/method.md, Defaults."""
    aggregation: Aggregation = "token-mean"
    """Mean of the policy's loss over an optimizer step, on all ranks: over tokens, over sequences, or its sum
    over sequences x rollout.max_response_tokens (constant, Dr. GRPO)."""
    importance: Literal["truncate", "mask", "sequence_truncate", "sequence_mask"] = "truncate"
    """Off-policy weight pi_prox / pi_behaviour: cut at importance_cap (truncate), or 0 outside [0.5,
    importance_cap] (mask, IcePop); of each token, or of the whole sequence (product over its tokens)."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest pi_prox / pi_behaviour."""
    positive_coefficient: NonNegative = 0.0
    """Weight of correct responses, where rewards differ, in the language-model loss: with the estimator gae and the
    aggregation token-mean a token of it counts as one with this advantage. 0: none. Measured: docs/method.md,
    Defaults."""
    overlong: Literal["mask", "penalise", "soft", "keep"] = "keep"
    """Truncated responses: no loss (mask), reward less 0.5 (penalise), the same growing over the last fifth of the
    budget (soft), or unchanged (keep)."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.kl_coefficient > 0 and (self.chosen_kl, self.kl_placement) == ("k1", "loss"):
            raise ValueError(
                "algorithm.kl_estimator 'k1' has no effect as a term of the loss, because its gradient is 0 on "
                "average; set it to k2 or k3, or algorithm.kl_placement to reward"
            )
        if self.kl_target is not None and self.kl_coefficient == 0:
            raise ValueError(
                "algorithm.kl_target adapts algorithm.kl_coefficient, which is 0; set it to a first value such as 0.05"
            )
        return self

    @property
    def unbiased_kl(self) -> Literal["k1", "k2"]:
        """The estimator whose gradient is that of the reverse KL where `kl_placement` puts it (docs/learner.md)."""
        return "k2" if self.kl_placement == "loss" else "k1"

    @property
    def kl_fades(self) -> bool:
        """Whether the weight of the KL follows the unsolved problems."""
        return self.kl_schedule == "unsolved" and self.kl_target is None

    @property
    def chosen_kl(self) -> KlEstimator:
        """`kl_estimator` with auto resolved."""
        return self.unbiased_kl if self.kl_estimator == "auto" else self.kl_estimator
