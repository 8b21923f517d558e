"""Generation."""

from typing import Annotated

from pydantic import Field

from core.sections.base import Count, Options, Positive, Section, Whole


class RolloutConfig(Section):
    """Generation."""

    actors: Count = 1
    """Rollout actors, one engine each."""
    max_staleness: Whole = 0
    """Weight versions that a token may be behind the learner when it is trained on. 0: synchronous and repeatable; from 1: generation continues during the update."""
    starts: Count = 128
    """Starts per iteration (fresh and replayed)."""
    samples: Count = 4
    """Continuations per start."""
    resample: Whole = 0
    """Dynamic sampling (DAPO): most extra rounds of an iteration in which starts whose continuations all have the same reward are replaced by new ones; 0: never."""
    max_prompt_tokens: Count = 32
    """Longest prompt, in tokens; longer problems are left out."""
    max_response_tokens: Annotated[int, Field(ge=2)] = 80
    """Budget of a whole response, in tokens; a replayed prefix uses part of it."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: probability mass to keep."""
    max_running: Count = 256
    """Sequences that one engine decodes at once."""
    tokens_in_flight: Annotated[int | None, Field(ge=1)] = None
    """Most tokens (prompt and whole response budget) of the sequences that one engine has at once; none: limited by 1.25 x max_running sequences only."""
    repetition_tokens: Whole = 0
    """Cut a response (it counts as truncated) whose end repeats a pattern of at most this many tokens; 0: never."""
    repetition_times: Annotated[int, Field(ge=2)] = 8
    """How often in a row that pattern must occur."""
    kv_cache_gib: Positive = 1.0
    """CPU: memory of one engine's KV cache, in GiB."""
    gpu_memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """GPU: share of the device's memory that one engine may use."""
    tensor_parallel: Count = 1
    """GPUs per engine."""
    gpus: Annotated[float, Field(gt=0, le=1)] = 1.0
    """GPU: share that an engine reserves of each of its GPUs; 0.5 leaves room for a learner rank (cluster.learner_gpus 0.5)."""
    sleep: bool = False
    """GPU: move an engine's weights to the host and free its cache while it is idle, for a learner on the same GPU."""
    engine_options: Options = Field({})
    """More of vLLM's EngineArgs by name, e.g. {scheduling_policy: priority}; JSON on the command line."""
    sampling_options: Options = Field({})
    """More of vLLM's SamplingParams by name, e.g. {top_k: 50}; JSON on the command line."""
    tool: str = ""
    """Tool that answers calls inside responses, 'module:name' of a core.tools.Tool (importable from the working directory); empty: the task's own, or none."""
    threads: Count = 2
    """CPU threads per engine (OMP_NUM_THREADS)."""
    deadline: Positive = 600.0
    """Seconds without an answer after which an actor counts as hung (answers come several times a second); after a quarter of them a warning names it as slow."""
    max_restarts: Whole = 3
    """Most losses of rollout actors within restart_window; after one more the run stops with a checkpoint. Several actors lost within a minute count once, and so does a start that makes engines raise."""
    restart_window: Positive = 3600.0
    """Seconds that max_restarts is counted over."""
