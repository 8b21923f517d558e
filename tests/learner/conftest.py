"""A tiny policy in Hugging Face format, and rollouts as the actors and tasks would make them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from core.config import AlgorithmConfig
from core.records import Boundaries, Finish, IntArray, Rollout, Start, Verdict
from learner.batch import Batch
from learner.credit import Algorithm, credit
from learner.state import LearnerState

VOCABULARY = 64
CONTINUATION = ("tokens", "logprobs", "versions")


def make_judged(seed: int, count: int = 12, version: int = 0, prefix: int = 2) -> list[Rollout]:
    """Random rollouts of mixed lengths; every third one continues a prefix, rewards are 0 or 1."""
    rng = np.random.default_rng(seed)

    def ids(n: int) -> IntArray:
        return rng.integers(0, VOCABULARY, n).astype(np.int32)

    out = []
    for i in range(count):
        replayed = i % 3 == 2
        start = Start(
            id=f"s{i}",
            problem_id=f"p{i}",
            prompt_ids=ids(int(rng.integers(1, 6))),
            prefix_ids=ids(prefix if replayed else 0),
            samples=1,
            seed=i,
            state_key=i if replayed else None,
        )
        length = int(rng.integers(1, 9))
        rollout = Rollout(
            start=start,
            sample=0,
            tokens=ids(length),
            logprobs=rng.normal(-4.0, 0.3, length).astype(np.float32),
            versions=np.full(length, version, dtype=np.int32),
            finish=Finish.STOP if i % 4 else Finish.LENGTH,
            verdict=Verdict(float(i % 2), bool(i % 2)),
        )
        out.append(rollout)
    return out


def every_token(response: IntArray) -> IntArray:
    """The boundaries of a response if there is one after every token."""
    return np.arange(1, len(response), dtype=np.int32)


def credited(
    rollouts: list[Rollout],
    config: AlgorithmConfig,
    version: int = 0,
    kl_coefficient: float = 0.0,
    boundaries: Boundaries = every_token,
    longest: int = 0,
) -> Batch:
    """The batch of scored rollouts."""
    state = LearnerState(kl_coefficient, kl_coefficient, version)
    return credit(rollouts, Algorithm(config, longest, boundaries), state)


def forked(judged: list[Rollout]) -> list[Rollout]:
    """The rollouts with shared beginnings: of every three, the first two have the third one's start (with its
    prefix), and the second also half of its continuation."""
    out = list(judged)
    for i in range(len(judged)):
        base = judged[i - i % 3 + 2]
        half = len(base.tokens) // 2 * (i % 3)
        if i % 3 < 2:
            own = judged[i]
            parts = {name: np.concatenate([getattr(base, name)[:half], getattr(own, name)]) for name in CONTINUATION}
            out[i] = replace(own, start=base.start, sample=i % 3, **parts)
    return out


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """tiny_model(tied) -> directory of a 2-layer Qwen2 of width 32 with a tokenizer."""
    return cache(lambda tied: _build(tmp_path_factory.mktemp("model"), tied))


def _build(path: Path, tied: bool) -> Path:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from tests.tiny import save_qwen2

    save_qwen2(
        path,
        VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        attention_dropout=0.1,  # must be switched off by the learner
        initializer_range=0.1,  # far from uniform, so that wrong weights are seen
    )
    vocabulary = {chr(0x4E00 + i): i for i in range(VOCABULARY)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, []))).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def kept_ranks(ray_cluster: None) -> Iterator[None]:
    """Learners of a file share the processes of their ranks, one learner after the other."""
    from tests.learner.groups import keeping

    with keeping("learner.group.Ranks"):
        yield
