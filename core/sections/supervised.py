"""Supervised training: warm start (`launch.py sft`) and reward model (`launch.py reward-model`); a language model as
judge."""

from typing import Annotated, Literal

from pydantic import Field

from core.sections.base import Count, NonNegative, Positive, Section, Whole


class SupervisedConfig(Section):
    """The fields that both share. Ranks, ZeRO stage, tokens per pass and clipping come from the section learner."""

    epochs: Count = 1
    """Passes over the rows."""
    batch_size: Count = 32
    """Rows per optimizer step."""
    lr: Positive = 1e-5
    """Peak learning rate."""
    warmup_steps: Whole = 0
    """Optimizer steps of linear learning-rate warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate after the warm-up."""
    max_tokens: Annotated[int, Field(ge=2)] = 512
    """Longest row in tokens; longer ones are left out, and counted."""
    eval_rows: Count = 128
    """Rows held out of the data to measure on."""
    evaluate_every: Whole = 50
    """Steps between measurements on the held-out rows; 0: only before the first and after the last."""
    checkpoint_every: Count = 200
    """Steps between checkpoints; the last step always has one."""


class SftConfig(SupervisedConfig):
    """Supervised fine-tuning of model.path (`launch.py sft`)."""

    path: str = ""
    """Dialogues: .jsonl, .parquet, directory or hub name, with a column of messages; empty: the task's solutions."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    column: str = "messages"
    """Column of the messages: a list of objects with role and content, or a text of turns."""


class LanguageJudgeConfig(Section):
    """A language model as judge, behind an OpenAI-compatible endpoint: a provider's, or one of your own (`vllm serve
    MODEL`)."""

    # no user and password: the configuration is written into reports
    url: Annotated[str, Field(pattern=r"^[^@\s]*$")] = ""
    """Base URL of the endpoint, such as http://localhost:8000/v1. If set, this model judges the task dialogue instead
    of reward_model.path, and compares the responses of `launch.py evaluate --against`. The key comes from the
    environment variable OPENAI_API_KEY."""
    model: str = ""
    """The model's name at the endpoint."""
    criterion: str = "helpful, honest and harmless"
    """What makes a response good, in words that go into the question."""


class RewardModelConfig(SupervisedConfig):
    """The reward model of the task dialogue: its training (`launch.py reward-model`) and its service."""

    path: str = ""
    """Reward model of the task dialogue: a run of `launch.py reward-model`, or a sequence classifier with one label."""
    threshold: float = 0.0
    """Normalised reward above which a response counts as a success (success rates, replay's outcomes,
    algorithm.kl_schedule unsolved). 0 is the average of the responses that the model was measured on."""
    pairs: str = ""
    """Preference pairs to train on: .jsonl, .parquet, a directory or a hub name."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    chosen: str = "chosen"
    """Column of the preferred dialogue: messages, or a text of turns."""
    rejected: str = "rejected"
    """Column of the other dialogue."""
    gpus: NonNegative = 0.0
    """GPUs (or a share of one) that the reward model's actor reserves on device cuda."""
    judge: LanguageJudgeConfig = LanguageJudgeConfig()
