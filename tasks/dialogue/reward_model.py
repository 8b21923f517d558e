"""The reward model: scores dialogues in batches and turns the scores into rewards. Invariant: a dialogue's score does
not depend on its batch (beyond rounding), nor on the process that loads the model."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from core.config import ResolvedRewardModel
from core.errors import ModelError, first_line
from core.parts.judge import Asks, Case
from core.records import Verdict
from tasks.dialogue import chat
from tasks.dialogue.chat import Message, Messages

FILE = "reward.json"  # file in the model's folder: how its scores are normalised, and its accuracy


@dataclass(frozen=True, slots=True)
class Scale:
    """Statistics of the model's scores on held-out dialogues; reward = (score - mean) / deviation."""

    mean: float = 0.0
    deviation: float = 1.0
    lowest: float | None = None  # lowest of those scores; None for a model without a scale file

    def save(self, directory: Path, accuracy: dict[str, float]) -> None:
        """Write the scale and the accuracy into the model's folder."""
        (directory / FILE).write_text(json.dumps({**asdict(self), "accuracy": accuracy}, indent=1) + "\n")


def read_scale(path: str) -> Scale:
    """The scale of a model; one that leaves scores unchanged if the model has none."""
    file = Path(path) / FILE
    if not file.is_file():
        return Scale()
    saved = json.loads(file.read_text(encoding="utf-8"))
    return Scale(saved["mean"], saved["deviation"], saved.get("lowest"))


def check_reward_model(path: str) -> Any:
    """The model's configuration. Raises ModelError unless it is a sequence classifier with one label."""
    from transformers import AutoConfig

    if not path:
        raise ModelError(
            "reward_model.path is empty: the task dialogue is judged by a reward model; train one with `launch.py "
            "reward-model` and name its run"
        )
    try:
        config: Any = AutoConfig.from_pretrained(path)
    except Exception as error:  # whatever a wrong field raises
        raise ModelError(
            f"reward_model.path = {path}: neither a model here nor one on the hub ({first_line(error)}); train one "
            "with `launch.py reward-model --run.name NAME` and give runs/NAME"
        ) from None
    kind = (getattr(config, "architectures", None) or ["unknown architecture"])[0]
    if "SequenceClassification" not in kind or config.num_labels != 1:
        raise ModelError(
            f"reward_model.path = {path}: {kind} with {config.num_labels} labels is no reward model; name a sequence "
            "classifier with one label, such as a run of `launch.py reward-model`"
        )
    return config


def check_reward_context(path: str, tokens: int) -> int:
    """The tokens that a reward model can read. Raises ModelError when they are fewer than `tokens`."""
    context = int(check_reward_model(path).get_text_config().max_position_embeddings)
    if tokens > context:
        raise ModelError(
            f"reward_model.path = {path}: its context is {context} tokens, a dialogue may have "
            f"rollout.max_prompt_tokens + rollout.max_response_tokens = {tokens}; lower these or name a model with more"
        )
    return context


BATCH_TOKENS = 8192


class RewardScorer:
    """A reward model and its tokenizer in this process."""

    def __init__(
        self,
        path: str,
        *,
        device: str,
        batch_tokens: int = BATCH_TOKENS,
        threads: int | None = None,
        template_date: date | None = None,
    ) -> None:
        """`batch_tokens`: of one forward pass, with padding. `threads`: of torch here; None: unchanged.
        `template_date`: what a chat template with a date writes; None: today's."""
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        if threads is not None:
            torch.set_num_threads(threads)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self._tokenizer.template_date = template_date
        config: Any = AutoConfig.from_pretrained(path)
        if config.pad_token_id is None:  # the classifier needs it to find the last token; many hub models have none
            pad, end = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
            config.pad_token_id = end if pad is None else pad
        # in memory of its own: weights that are mapped from a file change when it is written again
        model = AutoModelForSequenceClassification.from_pretrained(path, config=config, disable_mmap=True)
        self._model = model.to(device).eval()
        self._context = config.get_text_config().max_position_embeddings
        self._batch_tokens = batch_tokens
        self._torch = torch

    def score(self, dialogues: Sequence[Messages]) -> list[float | None]:
        """Score of each dialogue (it ends with the assistant's turn); None if it is longer than the model's context."""
        return self.score_tokens(
            [chat.encode_dialogue(self._tokenizer, messages, "reward model").ids for messages in dialogues]
        )

    def score_tokens(self, rows: Sequence[Sequence[int]]) -> list[float | None]:
        """As `score`, of dialogues as `chat.encode_dialogue` tokenizes them."""
        scores: list[float | None] = [None] * len(rows)
        fitting = sorted((i for i, ids in enumerate(rows) if len(ids) <= self._context), key=lambda i: len(rows[i]))
        while fitting:
            width = len(rows[fitting[-1]])
            batch = fitting[-max(1, self._batch_tokens // width) :]
            del fitting[-len(batch) :]
            for i, score in zip(batch, self._pass([rows[i] for i in batch]), strict=True):
                scores[i] = score
        return scores

    def _pass(self, rows: Sequence[Sequence[int]]) -> list[float]:
        torch, pad, width = self._torch, self._model.config.pad_token_id, max(map(len, rows))
        tokens = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._model.device)
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self._model.device)
        with torch.inference_mode():
            scores: list[float] = self._model(input_ids=tokens, attention_mask=real).logits[:, 0].float().tolist()
        return scores

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class Scorer(Protocol):
    """A reward model in this process or in another."""

    def score(self, dialogues: Sequence[Messages]) -> list[float | None]:
        """Score of each dialogue; None for one that cannot be scored."""
        ...

    def close(self) -> None:
        """End its process."""
        ...


def local_scorer(config: ResolvedRewardModel) -> Scorer:
    """The scorer in this process, without Ray."""
    return RewardScorer(config.path, device="cpu", template_date=config.template_date)


class RewardJudge:
    """Judges responses by a reward model, which starts with the first batch. Raises ModelError for another model."""

    asks = Asks()

    def __init__(self, config: ResolvedRewardModel, start: Callable[[ResolvedRewardModel], Scorer]) -> None:
        check_reward_model(config.path)
        self._config, self._scale, self._start = config, read_scale(config.path), start
        self._scorer: Scorer | None = None

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`. Raises ActorError when the model's actor fails twice."""
        if self._scorer is None:
            self._scorer = self._start(self._config)
        replies = [(chat.load_messages(case.reference), Message("assistant", case.response.strip())) for case in cases]
        scores = self._scorer.score([(*messages, reply) for messages, reply in replies])
        finite = [score for score in (*scores, self._scale.lowest) if score is not None and math.isfinite(score)]
        lowest = min(finite, default=self._scale.mean)
        return [score_verdict(score, self._scale, lowest) for score in scores]

    def close(self) -> None:
        """End the model's process."""
        if self._scorer is not None:
            self._scorer.close()


def score_verdict(score: float | None, scale: Scale, lowest: float) -> Verdict:
    """The normalised score as reward; correct when above 0, the average. A dialogue that cannot be scored gets the
    reward of `lowest`, so a response that is too long to be judged gains nothing."""
    least = (lowest - scale.mean) / scale.deviation
    if score is None:
        return Verdict(least, False, "the dialogue is longer than the reward model's context", judge_failed=True)
    if not math.isfinite(score):
        return Verdict(least, False, f"the reward model returned {score}", judge_failed=True)
    reward = (score - scale.mean) / scale.deviation
    return Verdict(reward, reward > 0.0, f"score {score:.3f}")
