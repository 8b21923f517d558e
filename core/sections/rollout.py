"""Generation."""

from typing import Literal

from pydantic import Field

from core.sections.base import Options, Section


class RolloutConfig(Section):
    """Generation."""

    engine: Literal["vllm", "hf"] = Field(
        "vllm", description="vllm; or hf: plain transformers generation, slow, for machines that vLLM does not support."
    )
    actors: int = Field(1, ge=1, description="Rollout actors, one engine each.")
    max_actors: int = Field(
        0,
        ge=0,
        description="Most rollout actors. Those beyond rollout.actors ask Ray's autoscaler for room and join during the run; at most rollout.actors: there are none.",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="Weight versions that a token may be behind the learner when it is trained on. 0: synchronous and repeatable; from 1: generation continues during the update.",
    )
    starts: int = Field(128, ge=1, description="Starts per iteration (fresh and replayed).")
    samples: int = Field(4, ge=1, description="Continuations per start.")
    resample: int = Field(
        0,
        ge=0,
        description="Dynamic sampling (DAPO): most extra rounds of an iteration in which starts whose continuations all have the same reward are replaced by new ones; 0: never.",
    )
    max_prompt_tokens: int = Field(32, ge=1, description="Longest prompt, in tokens; longer problems are left out.")
    max_response_tokens: int = Field(
        80, ge=2, description="Budget of a whole response, in tokens; a replayed prefix uses part of it."
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling: probability mass to keep.")
    max_running: int = Field(256, ge=1, description="Sequences that one engine decodes at once.")
    tokens_in_flight: int | None = Field(
        None,
        ge=1,
        description="Most tokens (prompt and whole response budget) of the sequences that one engine has at once; none: limited by 1.25 x max_running sequences only.",
    )
    repetition_tokens: int = Field(
        0,
        ge=0,
        description="Cut a response (it counts as truncated) whose end repeats a pattern of at most this many tokens; 0: never.",
    )
    repetition_times: int = Field(8, ge=2, description="How often in a row that pattern must occur.")
    kv_cache_gib: float = Field(1.0, gt=0, description="CPU: memory of one engine's KV cache, in GiB.")
    gpu_memory_share: float = Field(
        0.85, gt=0, le=1, description="GPU: share of the device's memory that one engine may use."
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs per engine.")
    gpus: float = Field(
        1.0,
        gt=0,
        le=1,
        description="GPU: share that an engine reserves of each of its GPUs; 0.5 leaves room for a learner rank (cluster.learner_gpus 0.5).",
    )
    sleep: bool = Field(
        False,
        description="GPU: move an engine's weights to the host and free its cache while it is idle, for a learner on the same GPU.",
    )
    engine_options: Options = Field(
        {},
        description="More of vLLM's EngineArgs by name, e.g. {scheduling_policy: priority}; JSON on the command line.",
    )
    sampling_options: Options = Field(
        {}, description="More of vLLM's SamplingParams by name, e.g. {top_k: 50}; JSON on the command line."
    )
    tool: str = Field(
        "",
        description="Tool that answers calls inside responses, 'module:name' of a core.tools.Tool (importable from the working directory); empty: the task's own, or none.",
    )
    threads: int = Field(2, ge=1, description="CPU threads per engine (OMP_NUM_THREADS).")
    deadline: float = Field(
        600.0,
        gt=0,
        description="Seconds without an answer after which an actor counts as hung (answers come several times a second); after a quarter of them a warning names it as slow.",
    )
    max_restarts: int = Field(
        3,
        ge=0,
        description="Most losses of rollout actors within restart_window; after one more the run stops with a checkpoint. Several actors lost within a minute count once, and so does a start that makes engines raise.",
    )
    restart_window: float = Field(3600.0, gt=0, description="Seconds that max_restarts is counted over.")
