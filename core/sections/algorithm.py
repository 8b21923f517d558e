"""PPO: advantages and losses."""

from typing import Literal

from pydantic import Field

from core.sections.base import Section


class AlgorithmConfig(Section):
    """PPO: advantages and losses (conventions: docs/architecture.md)."""

    estimator: Literal["gae", "grpo", "rloo", "reinforce++"] = Field(
        "gae",
        description="The policy's advantages: by the critic (gae), or relative to the other continuations of the start (grpo, rloo) or to the whole batch (reinforce++). The critic is always trained, because replay ranks by it.",
    )
    gamma: float = Field(1.0, gt=0, le=1, description="Discount.")
    policy_lambda: float = Field(0.95, ge=0, le=1, description="GAE lambda of the policy's advantages.")
    adaptive_lambda: float | None = Field(
        None,
        gt=0,
        description="Length-adaptive policy lambda 1 - 1 / (x l) for a continuation of l tokens (VAPO uses x = 0.05); none: policy_lambda.",
    )
    value_lambda: float = Field(1.0, ge=0, le=1, description="GAE lambda of the critic's targets.")
    normalise: Literal["global", "per_source", "none"] = Field(
        "global",
        description="Whitening of the advantages (gae, reinforce++): over the whole batch, over fresh and replayed rows separately, or none.",
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="PPO clip below: ratio >= 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="PPO clip above: ratio <= 1 + clip_high.")
    dual_clip: float = Field(3.0, gt=1, description="Bound on the ratio for negative advantages.")
    value_clip: float = Field(0.5, gt=0, description="How far a value may move from its old one in one update.")
    entropy_coefficient: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    kl_coefficient: float = Field(
        0.0, ge=0, description="Weight of the KL to the reference policy in the loss; 0: there is no reference policy."
    )
    kl_estimator: Literal["auto", "k1", "k2", "k3"] = Field(
        "auto",
        description="Estimator of that KL. auto: the one whose gradient is that of the reverse KL, k2 in the loss and k1 in the reward.",
    )
    kl_placement: Literal["loss", "reward"] = Field(
        "loss", description="Where that KL is added: to the loss, or (negative) to the reward of every token."
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        description="KL to the reference policy (nats per token); kl_coefficient is adapted to reach it; none: constant.",
    )
    kl_horizon: int = Field(
        10_000,
        ge=1,
        description="Trajectories over which kl_coefficient changes by at most 20 %; at least those of an iteration.",
    )
    aggregation: Literal["token-mean", "sequence-mean"] = Field(
        "token-mean", description="Mean of the losses over the global batch."
    )
    importance: Literal["truncate", "mask"] = Field(
        "truncate",
        description="Off-policy weight pi_prox / pi_behaviour of a token: cut at importance_cap (truncate), or 0 outside [importance_floor, importance_cap] (mask, IcePop).",
    )
    importance_cap: float = Field(2.0, ge=1, description="Largest pi_prox / pi_behaviour per token.")
    importance_floor: float = Field(
        0.5, ge=0, le=1, description="Smallest pi_prox / pi_behaviour per token when importance is 'mask'."
    )
    overlong: Literal["mask", "penalise", "keep"] = Field(
        "keep",
        description="Truncated responses: no loss (mask), reward less overlong_penalty (penalise), or unchanged (keep).",
    )
    overlong_penalty: float = Field(
        0.5, ge=0, description="Subtracted from the reward of a truncated response when overlong is 'penalise'."
    )

    @property
    def unbiased_kl(self) -> Literal["k1", "k2"]:
        """The estimator whose gradient is that of the reverse KL where `kl_placement` puts it (docs/learner.md)."""
        return "k2" if self.kl_placement == "loss" else "k1"

    @property
    def chosen_kl(self) -> Literal["k1", "k2", "k3"]:
        """`kl_estimator` with auto resolved."""
        return self.unbiased_kl if self.kl_estimator == "auto" else self.kl_estimator
