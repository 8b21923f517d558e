"""Generation."""

from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from core.sections.base import (
    AUTO,
    AutoBool,
    AutoCount,
    AutoShare,
    Count,
    Options,
    Positive,
    Section,
    Whole,
    as_names,
    own_path,
)


def _more_than_one(tokens: int | None) -> int | None:
    if tokens == 1:  # the end of the sequence is one of them
        raise ValueError("at least 2")
    return tokens


class RolloutConfig(Section):
    """Generation."""

    actors: Count = 1
    """Rollout actors, one engine each."""
    max_staleness: Whole = 0
    """Weight versions that a token may be behind the learner when it is trained on. 0: synchronous and repeatable; from
    1: generation continues during the update."""
    starts: Count = 64
    """Starts per iteration (fresh and replayed); with 8 samples 512 responses, as in verl's smaller recipes."""
    samples: Count = 8
    """Continuations per start. TRL's and OpenRLHF's default for groups is 8, too."""
    sources: Annotated[tuple[Annotated[str, AfterValidator(own_path)], ...], BeforeValidator(as_names)] = ()
    """Your own start sources, module:Class each (docs/extending.md). Each takes what it wants of `starts` after replay.
    Fresh problems take the rest."""
    resample: Whole = 0
    """Dynamic sampling (DAPO): most extra rounds of an iteration in which starts whose continuations all have the same
    reward are replaced by new ones; 0: never."""
    max_prompt_tokens: AutoCount = Field(AUTO)
    """Longest prompt, in tokens; longer problems are left out. auto: the longest of the data's prompts that have at
    most 2,048 tokens and fill at most half of the model's context."""
    max_response_tokens: Annotated[AutoCount, AfterValidator(_more_than_one)] = Field(AUTO)
    """Budget of a whole response, in tokens; a replayed prefix uses part of it. auto: a quarter more than 99 % of the
    canonical solutions need; 1,024 without canonical solutions."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: probability mass to keep."""
    max_running: AutoCount = Field(AUTO)
    """Sequences that one engine decodes at once. auto: 256 (vLLM's default), on CPU as many as the KV cache holds if
    they use half of their budget."""
    kv_cache_gib: Positive = 1.0
    """CPU: memory of one engine's KV cache, in GiB."""
    gpu_memory_share: AutoShare = Field(AUTO)
    """GPU: share of the device's memory that one engine may use. auto: 0.85; next to a learner rank (cluster.colocate)
    what its models leave, 0.4 where the GPU's memory is not known."""
    tensor_parallel: Count = 1
    """GPUs per engine."""
    sleep: AutoBool = Field(AUTO)
    """GPU: move an engine's weights to the host and free its cache while it is idle (vLLM's sleep, level 1). auto: next
    to a learner rank (cluster.colocate)."""
    engine_options: Options = Field({})
    """More of vLLM's EngineArgs by name, e.g. {scheduling_policy: priority}; JSON on the command line."""
    sampling_options: Options = Field({})
    """More of vLLM's SamplingParams by name, e.g. {top_k: 50}; JSON on the command line."""
    environment: str = ""
    """Environment that answers the policy's turns (docs/environments.md): a built-in's name, 'module:Class', or an
    agent written against the OpenAI interface, 'module:function', whose requests the policy answers; importable from
    the working directory. Empty: the task's own, or none."""
    environment_options: Options = Field({})
    """Arguments of the environment's class by name; JSON on the command line."""
    environment_workers: Count = 2
    """Processes for the environments of one engine; each holds many episodes at once."""
    max_turns: Count = 64
    """Most turns of the policy in an episode; an episode that has more counts as truncated."""
    threads: Count = 2
    """CPU threads per engine (OMP_NUM_THREADS)."""
    max_restarts: Whole = 3
    """Most losses of rollout actors within an hour; after one more the run stops with a checkpoint. Several
    actors lost within a minute count once, and so does a start that makes engines raise."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.resample and self.samples < 2:
            raise ValueError(
                "rollout.resample replaces starts whose continuations have equal rewards, but rollout.samples is 1; "
                "raise it to 2 or more"
            )
        if self.resample and self.max_staleness:
            raise ValueError(
                "rollout.resample waits for the engines again, but rollout.max_staleness is "
                f"{self.max_staleness}; set one of them to 0"
            )
        return self


class ResolvedRollout(RolloutConfig):
    """The section without `auto`."""

    max_prompt_tokens: Count
    max_response_tokens: Annotated[int, Field(ge=2)]
    max_running: Count
    gpu_memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    sleep: bool = False
