"""Supervised training: warm start (`launch.py sft`) and reward model (`launch.py reward-model`); a language model as judge."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from core.sections.base import Section


class SupervisedConfig(Section):
    """The fields that both share. Ranks, ZeRO stage, tokens per pass and clipping come from the section learner."""

    epochs: int = Field(1, ge=1, description="Passes over the rows.")
    batch_size: int = Field(32, ge=1, description="Rows per optimizer step.")
    lr: float = Field(1e-5, gt=0, description="Peak learning rate.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear learning-rate warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field("cosine", description="Learning rate after the warm-up.")
    max_tokens: int = Field(512, ge=2, description="Longest row in tokens; longer ones are left out, and counted.")
    eval_rows: int = Field(128, ge=1, description="Rows held out of the data to measure on.")
    evaluate_every: int = Field(
        50,
        ge=0,
        description="Steps between measurements on the held-out rows; 0: only before the first and after the last.",
    )
    checkpoint_every: int = Field(200, ge=1, description="Steps between checkpoints; the last step always has one.")


class SftConfig(SupervisedConfig):
    """Supervised fine-tuning of model.path (`launch.py sft`)."""

    path: str = Field(
        "",
        description="Dialogues to learn from: .jsonl, .parquet, a directory or a hub name, with a column of messages; empty: the canonical solutions of the task.",
    )
    split: str = Field("train", description="Split of a Hugging Face data set.")
    column: str = Field(
        "messages", description="Column of the messages: a list of objects with role and content, or a text of turns."
    )


class LanguageJudgeConfig(Section):
    """A language model as judge, behind an OpenAI-compatible endpoint: a provider's, or one of your own (`vllm serve MODEL`)."""

    url: str = Field(
        "",
        pattern=r"^[^@\s]*$",  # no user and password: the configuration is written into reports
        description="Base URL of the endpoint, such as http://localhost:8000/v1. If set, this model judges the task dialogue instead of reward_model.path, and compares the responses of `launch.py evaluate --against`.",
    )
    model: str = Field("", description="The model's name at the endpoint.")
    key_variable: str = Field(
        "OPENAI_API_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",  # not the key itself
        description="Environment variable with the API key; if it is not set, none is sent that means anything.",
    )
    criterion: str = Field(
        "helpful, honest and harmless", description="What makes a response good, in words that go into the question."
    )
    max_tokens: int = Field(512, ge=1, description="Longest answer of the judge, in tokens.")
    concurrency: int = Field(8, ge=1, description="Requests at once.")
    timeout: float = Field(60.0, gt=0, description="Seconds that one request may take.")
    retries: int = Field(
        5, ge=0, description="Further tries of a request that failed or was refused for its rate, with growing pauses."
    )
    max_requests: int = Field(
        0,
        ge=0,
        description="Most requests of a run, without those that the cache answers; then it stops with a checkpoint. 0: no limit.",
    )
    cache: Path = Field(
        Path(".cache/judge.sqlite"), description="File of all answers so far: the same question is asked once."
    )


class RewardModelConfig(SupervisedConfig):
    """The reward model of the task dialogue: its training (`launch.py reward-model`) and its service."""

    path: str = Field(
        "",
        description="Reward model that judges the task dialogue: a run of `launch.py reward-model`, or any sequence classifier with one label.",
    )
    threshold: float = Field(
        0.0,
        description="Normalised reward above which a response counts as a success (success rates, replay's outcomes). 0 is the average of the responses that the model was measured on.",
    )
    pairs: str = Field("", description="Preference pairs to train on: .jsonl, .parquet, a directory or a hub name.")
    split: str = Field("train", description="Split of a Hugging Face data set.")
    chosen: str = Field("chosen", description="Column of the preferred dialogue: messages, or a text of turns.")
    rejected: str = Field("rejected", description="Column of the other dialogue.")
    cpus: float = Field(0.0, ge=0, description="CPUs that the reward actor reserves.")
    gpus: float = Field(0.0, ge=0, description="GPUs (or a share of one) that it reserves on device cuda.")
    threads: int = Field(1, ge=1, description="CPU threads of that actor.")
    batch_tokens: int = Field(8192, ge=1, description="Tokens (padding included) of one pass of that actor.")
    deadline: float = Field(
        300.0, gt=0, description="Seconds that one batch of scores may take before the actor counts as hung."
    )
    judge: LanguageJudgeConfig = LanguageJudgeConfig()
