"""Supervised training: warm start (`launch.py sft`) and reward model (`launch.py reward-model`)."""

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
