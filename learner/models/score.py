"""The reward model in training: a `transformers` sequence classifier with one label, whose number is the score of a dialogue.

Used by `learner/supervised.py`. Invariant: the score is read at the last token that is not padding, by the classifier itself, so
that it is the same number wherever the saved model is loaded.
"""

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from core.errors import ModelError, first_line
from learner.models.policy_value import read_config


class RewardModel(nn.Module):
    """Scores of whole dialogues."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Scores [B] fp32 of the dialogues tokens[b, :lengths[b]] ([B, T], right-padded)."""
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        padded = tokens.masked_fill(~real, self.model.config.pad_token_id)
        scores: Tensor = self.model(input_ids=padded, attention_mask=real.long(), use_cache=False).logits
        return scores[:, 0].float()


def load_reward(path: str, dtype: torch.dtype) -> RewardModel:
    """The classifier from a Hugging Face directory or name; a causal language model gets a new head.

    Raises ModelError when the model cannot be read or has no classifier in transformers.
    """
    config = read_config(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    config.num_labels = 1
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    try:
        return RewardModel(AutoModelForSequenceClassification.from_pretrained(path, config=config, dtype=dtype))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path {path}: cannot be loaded as a sequence classifier: {first_line(error)}"
        ) from error
