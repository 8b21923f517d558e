"""The typed configuration of a run: every field with its default, unit and bounds.

Read by `launch.py` (help, command-line overrides) and handed section by section to the parts; nobody keeps the whole.
Unknown keys are errors. Checks that need more than one field live in `core/plan.py`.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Device = Literal["cpu", "cuda"]
"""Where engines and learner run."""


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field("", description="Name of the run directory; empty: recipe name and date.")
    root: Path = Field(Path("runs"), description="Folder that holds the run directories.")
    seed: int = Field(0, ge=0, description="The one seed that all randomness is derived from.")
    iterations: int = Field(
        40, ge=1, description="Iterations to train: rollout, reward, score, replay, update, broadcast."
    )
    checkpoint_every: int = Field(
        10, ge=1, description="Iterations between checkpoints; the last iteration always has one."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints to keep.")


class ModelConfig(Section):
    """The policy that training starts from."""

    path: str = Field(
        "starter",
        description="Hugging Face model name or local directory; 'starter': build and warm-start a small model for the task (see `starter`).",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of the weights in learner and engines; float32 on CPU."
    )


class StarterConfig(Section):
    """The small warm-started model that stands in for a pretrained one (used when model.path is 'starter')."""

    hidden_size: int = Field(
        128,
        ge=8,
        description="Width of the model: heads x a head size that the CPU engine has (32, 64, 80, 96, 112, 128).",
    )
    layers: int = Field(3, ge=1, description="Transformer layers.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    vocabulary: int = Field(
        2048, ge=300, description="Tokens of the byte-level BPE (text tasks; synthetic tasks use characters)."
    )
    steps: int = Field(700, ge=1, description="Optimizer steps of supervised warm-start.")
    batch_size: int = Field(64, ge=1, description="Solutions per warm-start step.")
    lr: float = Field(2e-3, gt=0, description="Peak learning rate of the warm-start.")
    max_operations: int = Field(
        8,
        ge=1,
        description="Arithmetic: longest chain (operations) shown during the warm-start; each operation more is 0.6 times as frequent.",
    )
    slip: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Arithmetic: share of warm-start solutions that leave the answer line out, a habit for training to undo.",
    )
    cache: Path = Field(
        Path(".cache/starters"), description="Where built starters are kept, by hash of these settings."
    )


class Columns(Section):
    """Which column of the data set holds what."""

    prompt: str = Field("prompt", description="Column of the question.")
    answer: str = Field("answer", description="Column that the verifier reads the gold answer from.")
    solution: str | None = Field(
        None, description="Column of the canonical solution; none: the task has no canonical solutions."
    )
    level: str | None = Field(None, description="Column of the difficulty level, for reports.")


class TaskConfig(Section):
    """What is trained on."""

    name: Literal["arithmetic", "gsm8k", "math"] = Field(
        "arithmetic", description="Task: how prompts are put and answers are judged."
    )
    path: str = Field(
        "",
        description="Hugging Face data set name, local directory, .jsonl or .parquet file; empty: the task generates its problems (arithmetic).",
    )
    split: str = Field("train", description="Split of a Hugging Face data set to train on.")
    eval_path: str = Field(
        "", description="Data set of the evaluation problems; empty: `eval_problems` are held out of `path`."
    )
    eval_split: str = Field("test", description="Split of a Hugging Face data set to evaluate on.")
    eval_problems: int = Field(
        256, ge=1, description="Evaluation problems; they never enter training or the replay store."
    )
    columns: Columns = Columns()
    template: str = Field(
        "{prompt}",
        description="Text of the prompt, with {prompt} for the question; the tokenizer's chat template is put around it when there is one.",
    )
    min_operations: int = Field(4, ge=1, description="Arithmetic: shortest chain (operations) to train on.")
    max_operations: int = Field(10, ge=1, description="Arithmetic: longest chain (operations) to train on.")
    problems: int = Field(
        4096, ge=1, description="Arithmetic: training problems to generate; others: at most this many rows are used."
    )
    reward: str = Field(
        "",
        description="Your own reward, 'module:function' (importable from the working directory): takes (reference answer, response text), returns a number, a bool or a core.records.Verdict; empty: the task's verifier.",
    )
    judge_workers: int = Field(1, ge=1, description="Processes that judge responses.")
    judge_timeout: float = Field(5.0, gt=0, description="Seconds that one verdict may take before it counts as wrong.")


class RolloutConfig(Section):
    """Generation on vLLM."""

    actors: int = Field(1, ge=1, description="Rollout actors, each with a vLLM engine of its own.")
    starts: int = Field(128, ge=1, description="Starts per iteration (fresh and replayed).")
    samples: int = Field(4, ge=1, description="Continuations per start.")
    max_prompt_tokens: int = Field(32, ge=1, description="Longest prompt, in tokens; longer problems are left out.")
    max_response_tokens: int = Field(
        80, ge=2, description="Budget of a whole response, in tokens; a replayed prefix uses part of it."
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling: probability mass to keep.")
    max_running: int = Field(256, ge=1, description="Sequences that one engine decodes at once.")
    kv_cache_gib: float = Field(1.0, gt=0, description="CPU: memory of one engine's KV cache, in GiB.")
    gpu_memory_share: float = Field(
        0.85, gt=0, le=1, description="GPU: share of the device's memory that one engine may use."
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs per engine.")
    threads: int = Field(2, ge=1, description="CPU threads per engine (OMP_NUM_THREADS).")
    deadline: float = Field(
        600.0,
        gt=0,
        description="Seconds without an answer (they come twice a second) after which an actor counts as hung.",
    )
    max_restarts: int = Field(
        3, ge=0, description="Restarts of rollout actors within restart_window before the run stops with a checkpoint."
    )
    restart_window: float = Field(3600.0, gt=0, description="Seconds that max_restarts is counted over.")


class ReplayConfig(Section):
    """Replayed starts and the store behind them."""

    ratio: float = Field(
        0.5, ge=0, lt=1, description="Share of an iteration's starts that are replayed states, in [0, 1)."
    )
    ranking: Literal["value", "frontier", "posterior", "success_prefix", "canonical", "uniform"] = Field(
        "value", description="By what the store ranks states (docs/architecture.md; formulas in replay/)."
    )
    start_states: int = Field(512, ge=1, description="States the store must hold before replay begins.")
    shards: int = Field(2, ge=1, description="Shard actors; problems are hashed to them.")
    capacity: int = Field(200_000, ge=1, description="States over all shards; the least promising are evicted.")
    per_problem: int = Field(32, ge=1, description="States kept per problem.")
    max_gib: float = Field(
        4.0,
        gt=0,
        description="Memory of the states and tokens over all shards, in GiB; the least promising are evicted.",
    )
    boundary: Literal["line", "sentence", "code", "stride"] = Field(
        "line", description="Where a step ends: states begin only there."
    )
    stride: int = Field(16, ge=1, description="Tokens between boundaries when boundary is 'stride'.")
    temperature: float = Field(
        0.2, gt=0, description="Of the draw over promise: probability ~ exp(promise / temperature)."
    )
    draw: Literal["proportional", "top"] = Field(
        "proportional", description="Whether starts are drawn over promise or are always the most promising states."
    )
    target: float = Field(
        0.3, gt=0, lt=1, description="Ranking frontier: success that a start should still have; it moves to the root."
    )
    explore: float = Field(
        0.25, ge=0, le=1, description="Ranking frontier: largest share of own failures of unsolved problems in a batch."
    )
    decay: float = Field(
        0.95, gt=0, le=1, description="What an outcome counts for after one more weight version (frontier, posterior)."
    )
    canonical: bool = Field(
        False,
        description="Also keep prefixes of canonical solutions of the iteration's problems, where the task has them.",
    )
    refresh: int = Field(
        256, ge=0, description="Most promising states per iteration whose stale values the present critic renews."
    )
    deadline: float = Field(120.0, gt=0, description="Seconds that a shard may take to answer one call.")


class AlgorithmConfig(Section):
    """PPO: advantages and losses (conventions: docs/architecture.md)."""

    estimator: Literal["gae", "grpo", "rloo", "reinforce++"] = Field(
        "gae",
        description="The policy's advantages: GAE with the critic, or critic-free: against the continuations of the same start (grpo, rloo) or the whole batch (reinforce++). The critic is trained in any case: replay ranks by it.",
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
        description="Whitening of the advantages (gae, reinforce++): over the batch, over fresh and replayed rows apart, or not at all.",
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="PPO clip below: ratio >= 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="PPO clip above: ratio <= 1 + clip_high.")
    dual_clip: float = Field(3.0, gt=1, description="Bound on the ratio for negative advantages.")
    value_clip: float = Field(0.5, gt=0, description="How far a value may move from its old one in one update.")
    entropy_coefficient: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    kl_coefficient: float = Field(
        0.0, ge=0, description="Weight of the KL to the reference policy in the loss; 0: no reference policy is kept."
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of that KL.")
    kl_placement: Literal["loss", "reward"] = Field(
        "loss", description="Whether that KL is a term of the loss or is taken from the reward of every token."
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        description="KL to the reference policy (nats per token) that kl_coefficient is adapted to; none: it is kept.",
    )
    kl_horizon: int = Field(10_000, ge=1, description="Trajectories over which that adaptation takes effect.")
    aggregation: Literal["token-mean", "sequence-mean"] = Field(
        "token-mean", description="Mean of the losses over the global batch."
    )
    importance: Literal["truncate", "mask"] = Field(
        "truncate",
        description="Correction by pi_prox / pi_behaviour per token: cut at importance_cap, or no loss outside [importance_floor, importance_cap] (IcePop).",
    )
    importance_cap: float = Field(2.0, ge=1, description="Largest pi_prox / pi_behaviour per token.")
    importance_floor: float = Field(
        0.5, ge=0, le=1, description="Smallest pi_prox / pi_behaviour per token when importance is 'mask'."
    )
    overlong: Literal["mask", "penalise", "keep"] = Field(
        "keep",
        description="Truncated responses: no loss (mask), reward minus overlong_penalty (penalise), or as judged (keep).",
    )
    overlong_penalty: float = Field(
        0.5, ge=0, description="Taken from the reward of a truncated response when overlong is 'penalise'."
    )


class LearnerConfig(Section):
    """The DeepSpeed learner."""

    ranks: int = Field(1, ge=1, description="Learner processes (data parallel).")
    zero_stage: int = Field(0, ge=0, le=3, description="DeepSpeed ZeRO stage, 0 to 3.")
    offload: bool = Field(
        False, description="Keep optimizer states and fp32 weights in the CPU's memory; needs zero_stage >= 1."
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, about a third more time."
    )
    epochs: int = Field(1, ge=1, description="Passes over an iteration's trajectories.")
    minibatches: int = Field(
        4, ge=1, description="Optimizer steps per pass; must divide rollout.starts x rollout.samples."
    )
    micro_batch_tokens: int = Field(
        8192, ge=1, description="Tokens (padding included) of one forward and backward pass on a rank."
    )
    policy_lr: float = Field(1e-4, gt=0, description="Learning rate of the policy.")
    value_lr: float = Field(3e-4, gt=0, description="Learning rate of the critic.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear learning-rate warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rates after the warm-up: kept, or falling to 0 at the end of the run."
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient clipping, by global norm.")
    critic_warmup: int = Field(
        0, ge=0, description="First iterations in which only the critic learns, on Monte-Carlo returns (VC-PPO)."
    )
    critic_settled: float = Field(
        0.0,
        ge=0,
        description="End critic_warmup early once the critic's explained variance has stayed within this over 3 iterations; 0: never.",
    )
    max_skipped_steps: int = Field(
        8, ge=1, description="Optimizer steps skipped in a row for a NaN or Inf after which the run stops."
    )
    threads: int = Field(2, ge=1, description="CPU threads per rank (OMP_NUM_THREADS).")
    deadline: float = Field(
        1800.0, gt=0, description="Seconds that one call of the learner may take before its ranks count as hung."
    )
    max_logprob_gap: float = Field(
        1e-2,
        gt=0,
        description="Largest |log pi_learner - log pi_vllm| of the probe batch after a broadcast (nats); beyond it the run stops.",
    )
    probe_sequences: int = Field(8, ge=1, description="Sequences of the probe batch.")


class ClusterConfig(Section):
    """Resources asked of Ray."""

    address: str = Field(
        "auto",
        description="'auto': the cluster of RAY_ADDRESS, else a head that runs on this machine, else a local one; 'local': always a local one; or host:port.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where engines and learner run; auto: cuda where the cluster has GPUs."
    )
    rollout_cpus: float = Field(1.0, ge=0, description="CPUs that one rollout actor reserves.")
    learner_cpus: float = Field(1.0, ge=0, description="CPUs that one learner rank reserves.")
    learner_gpus: float = Field(1.0, ge=0, description="GPUs that one learner rank reserves (device cuda).")
    wait: float = Field(
        0.0, ge=0, description="Seconds to wait for an autoscaling cluster to bring up the asked resources."
    )


class EvaluationConfig(Section):
    """Evaluation on held-out problems, from the root only."""

    every: int = Field(
        10, ge=0, description="Iterations between evaluations; 0: only before the first and after the last."
    )
    samples: int = Field(1, ge=1, description="Responses per problem.")
    temperature: float = Field(0.0, ge=0, description="Sampling temperature; 0: greedy.")


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    starter: StarterConfig = StarterConfig()
    task: TaskConfig = TaskConfig()
    rollout: RolloutConfig = RolloutConfig()
    replay: ReplayConfig = ReplayConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    cluster: ClusterConfig = ClusterConfig()
