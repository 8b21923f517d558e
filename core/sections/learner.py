"""The DeepSpeed learner."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from core.sections.base import AUTO, AutoCount, AutoPositive, Count, Positive, Section, Whole

Schedule = Literal["constant", "linear", "cosine"]
"""Of a learning rate after its warm-up."""
Critic = Literal["separate", "shared", "none"]


class LearnerConfig(Section):
    """The DeepSpeed learner."""

    ranks: Count = 1
    """Learner processes (data parallel)."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """DeepSpeed ZeRO stage, 0 to 3; with bfloat16 0 and 1 run as 2."""
    offload: bool = False
    """Keep optimizer states and fp32 weights in CPU memory; needs zero_stage >= 1."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    value_model: Critic = "separate"
    """The critic: a separate model, a value head on the policy's trunk (one pass, one loss, half the memory), or none.
    Without an estimator or a ranking that needs values there is none either."""
    value_path: str = ""
    """Hugging Face model that a separate critic starts from, for example a reward model, with the policy's architecture
    and vocabulary; empty: the policy's."""
    value_coefficient: Positive = 0.1
    """Weight of the value loss against the policy's when value_model is 'shared'."""
    lora_rank: Whole = 0
    """Rank of LoRA adapters on all linear layers of policy and critic, which alone are trained. 0: all weights are."""
    lora_alpha: Count = 16
    """LoRA adapters are multiplied by lora_alpha / lora_rank."""
    epochs: Count = 1
    """Passes of policy and critic over an iteration's trajectories."""
    minibatches: Count = 4
    """Optimizer steps per pass; must divide rollout.starts x rollout.samples."""
    micro_batch_tokens: AutoCount = Field(AUTO)
    """Tokens of one forward and backward pass on a rank; what rows of the pass share counts once. auto: as many as an
    eighth of the memory holds activations for (GPU: 8 GiB), at least a whole sequence, at most 16,384."""
    policy_lr: AutoPositive = Field(AUTO)
    """Learning rate of the policy. auto: 1e-6 for a model of 8 B parameters, growing with 1 / sqrt(parameters) to at
    most 1e-5; ten times that for LoRA. Sources: docs/learner.md, Learning rates."""
    value_lr: AutoPositive = Field(AUTO)
    """Learning rate of the critic. auto: 1e-5 for its own model (verl; LoRA: ten times), 3e-4 for a value head."""
    warmup_steps: Whole = 0
    """Optimizer steps of linear learning-rate warm-up."""
    schedule: Schedule = "constant"
    """Learning rates after the warm-up: constant, or falling to 0 at the end of the run."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's decay of the mean squared gradient. After steps without a gradient, one gradient moves every weight by up
    to lr / sqrt(1 - adam_beta2). Measured: docs/method.md, Defaults."""
    adam_epsilon: Positive = 1e-8
    """Added to the root of AdamW's mean squared gradient. Near the size of a usual gradient's entries, steps shrink
    with what a batch says. Measured: docs/method.md, Defaults."""
    max_grad_norm: Positive = 1.0
    """Gradient clipping, by global norm."""
    critic_warmup: Whole = 0
    """First iterations in which only the critic learns, on Monte-Carlo returns (VC-PPO)."""
    transport: Literal["auto", "object_store", "collective", "ipc"] = "auto"
    """How weights reach the engines. object_store: through Ray; collective: one broadcast (NCCL, on CPU Gloo); ipc:
    an engine reads the memory of the rank on its GPU (on CPU: machine). auto: object_store on CPU; on GPUs ipc for
    pairs (cluster.colocate), collective if engines have their own."""
    threads: Count = 2
    """CPU threads per rank (OMP_NUM_THREADS)."""
    deadline: Positive = 1800.0
    """Seconds that one call of the learner may take; then its ranks count as hung."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.offload and self.zero_stage == 0:
            raise ValueError(
                "learner.offload moves what ZeRO partitions, but learner.zero_stage is 0; set it to 1, 2 or 3"
            )
        if self.value_model == "shared" and self.value_path:
            raise ValueError(
                "learner.value_path is the model of a separate critic, but learner.value_model is 'shared'; set it to "
                "separate"
            )
        return self


class ResolvedLearner(LearnerConfig):
    """The section without `auto`."""

    micro_batch_tokens: Count
    policy_lr: Positive
    value_lr: Positive
