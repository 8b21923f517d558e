"""Supervised training: warm start (`launch.py sft`) and reward model (`launch.py reward-model`); a language model as
judge."""

from datetime import date
from typing import Annotated

from pydantic import Field

from core.sections.base import NonNegative, Options, Section


class SftConfig(Section):
    """Supervised fine-tuning of model.path (`launch.py sft`) by TRL's SFTTrainer."""

    path: str = ""
    """Dialogues: .jsonl, .parquet, directory or hub name, with a column of messages; empty: the task's solutions."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    column: str = "messages"
    """Column of the messages: a list of objects with role and content, or a text of turns."""
    arguments: Options = Field({})
    """Arguments of TRL's SFTConfig by name: learning_rate, num_train_epochs, per_device_train_batch_size, max_length
    (longer rows are left out, and counted), ..."""


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


class RewardModelConfig(Section):
    """The reward model of the task dialogue: its training (`launch.py reward-model`, by TRL's RewardTrainer) and its
    service."""

    path: str = ""
    """Reward model of the task dialogue: a run of `launch.py reward-model`, or a sequence classifier with one label."""
    pairs: str = ""
    """Preference pairs to train on: .jsonl, .parquet, a directory or a hub name, with TRL's columns: `chosen`, the
    preferred dialogue, and `rejected`, each messages or a text of turns."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    arguments: Options = Field({})
    """Arguments of TRL's RewardConfig by name, as in sft.arguments."""
    gpus: NonNegative = 0.0
    """GPUs (or a share of one) that the reward model's actor reserves on device cuda."""
    judge: LanguageJudgeConfig = LanguageJudgeConfig()


class ResolvedRewardModel(RewardModelConfig):
    """The section as a run's processes need it: `path` is a directory."""

    template_date: date | None = None
    """The run's `model.template_date`: a chat template with a date gives the same scores on every day of a run."""
