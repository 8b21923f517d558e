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
    of reward_model.path, and compares the responses of `launch.py evaluate --against`."""
    model: str = ""
    """The model's name at the endpoint."""
    key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "OPENAI_API_KEY"  # not the key itself
    """Environment variable with the API key; if it is not set, none is sent that means anything."""
    criterion: str = "helpful, honest and harmless"
    """What makes a response good, in words that go into the question."""
    max_tokens: Count = 512
    """Longest answer of the judge, in tokens."""
    concurrency: Count = 8
    """Requests at once."""
    timeout: Positive = 60.0
    """Seconds that one request may take."""
    retries: Whole = 5
    """Further tries of a request that failed or was refused for its rate, with growing pauses."""
    max_requests: Whole = 0
    """Most requests of a run, without those that the cache answers; then it stops with a checkpoint. 0: no limit."""


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
    cpus: NonNegative = 0.0
    """CPUs that the reward actor reserves."""
    gpus: NonNegative = 0.0
    """GPUs (or a share of one) that it reserves on device cuda."""
    threads: Count = 1
    """CPU threads of that actor."""
    batch_tokens: Count = 8192
    """Tokens (padding included) of one pass of that actor."""
    deadline: Positive = 300.0
    """Seconds that one batch of scores may take before the actor counts as hung."""
    judge: LanguageJudgeConfig = LanguageJudgeConfig()
