"""The DeepSpeed learner."""

from typing import Literal

from pydantic import Field

from core.sections.base import Section


class LearnerConfig(Section):
    """The DeepSpeed learner."""

    ranks: int = Field(1, ge=1, description="Learner processes (data parallel).")
    zero_stage: int = Field(0, ge=0, le=3, description="DeepSpeed ZeRO stage, 0 to 3; with bfloat16 0 and 1 run as 2.")
    offload: bool = Field(
        False, description="Keep optimizer states and fp32 weights in CPU memory; needs zero_stage >= 1."
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, about a third more time."
    )
    value_model: Literal["separate", "shared", "none"] = Field(
        "separate",
        description="The critic: a separate model, a value head on the policy's trunk (one pass, one loss, half the memory), or none. Without an estimator or a ranking that reads values there is none either.",
    )
    value_path: str = Field(
        "",
        description="Hugging Face model that a separate critic starts from, for example a reward model, with the policy's architecture and vocabulary; empty: the policy's.",
    )
    value_coefficient: float = Field(
        0.1, gt=0, description="Weight of the value loss against the policy's when value_model is 'shared'."
    )
    lora_rank: int = Field(
        0,
        ge=0,
        description="Rank of LoRA adapters on all linear layers of policy and critic; only the adapters are trained. 0: all weights are trained.",
    )
    lora_alpha: int = Field(16, ge=1, description="LoRA adapters are multiplied by lora_alpha / lora_rank.")
    epochs: int = Field(1, ge=1, description="Passes over an iteration's trajectories.")
    value_epochs: int | None = Field(
        None, ge=1, description="Passes of a separate critic over these trajectories; none: epochs."
    )
    kl_stop: float | None = Field(
        None,
        gt=0,
        description="The policy takes no more steps on a batch after a pass in which it was further than this from where it began (mean KL, nats per token); needs epochs above 1; none: never.",
    )
    minibatches: int = Field(
        4, ge=1, description="Optimizer steps per pass; must divide rollout.starts x rollout.samples."
    )
    micro_batch_tokens: int = Field(
        8192,
        ge=1,
        description="Tokens of one forward and backward pass on a rank; what rows of the pass share counts once.",
    )
    policy_lr: float = Field(1e-4, gt=0, description="Learning rate of the policy.")
    value_lr: float = Field(3e-4, gt=0, description="Learning rate of the critic.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear learning-rate warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rates after the warm-up: constant, or falling to 0 at the end of the run."
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient.")
    adam_beta2: float = Field(
        0.999,
        ge=0,
        lt=1,
        description="AdamW's decay of the mean squared gradient. After steps without a gradient, one gradient moves every weight by up to lr / sqrt(1 - adam_beta2).",
    )
    adam_epsilon: float = Field(
        1e-8,
        gt=0,
        description="Added to the root of AdamW's mean squared gradient. Near the size of a usual gradient's entries, steps shrink with what a batch says.",
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient clipping, by global norm.")
    value_max_grad_norm: float | None = Field(
        None, gt=0, description="The same for a separate critic; none: max_grad_norm."
    )
    critic_warmup: int = Field(
        0, ge=0, description="First iterations in which only the critic learns, on Monte-Carlo returns (VC-PPO)."
    )
    critic_settled: float = Field(
        0.0,
        ge=0,
        description="End critic_warmup early once the critic's explained variance is above this and has changed by less than this over 3 iterations; 0: never.",
    )
    max_restarts: int = Field(
        3,
        ge=0,
        description="Restarts of the ranks after one of them died, from the last checkpoint (before the first: from the beginning); then the run stops.",
    )
    max_skipped_steps: int = Field(
        8, ge=1, description="The run stops after so many optimizer steps in a row were skipped for a NaN or Inf."
    )
    transport: Literal["auto", "object_store", "collective", "ipc"] = Field(
        "auto",
        description="How weights reach the engines. object_store: through Ray; collective: one broadcast (NCCL, on CPU Gloo); ipc: engines on the learner's GPU (on CPU: its machine) read its memory. auto: object_store on CPU; on GPUs ipc if all share one GPU, collective if engines have their own.",
    )
    threads: int = Field(2, ge=1, description="CPU threads per rank (OMP_NUM_THREADS).")
    deadline: float = Field(
        1800.0, gt=0, description="Seconds that one call of the learner may take; then its ranks count as hung."
    )
    max_logprob_gap: float = Field(
        1e-2,
        gt=0,
        description="Largest |log pi_learner - log pi_engine| of the probe batch after a broadcast (nats); above it the run stops.",
    )
    probe_sequences: int = Field(8, ge=1, description="Sequences of the probe batch.")

    @property
    def critic_trains(self) -> bool:
        """Whether there is a critic."""
        return self.value_model != "none"

    @property
    def critic_epochs(self) -> int:
        """Passes of the critic over an iteration's trajectories."""
        return self.value_epochs or self.epochs
