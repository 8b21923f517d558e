"""Plain transformers against vLLM on the same tokens, and the pool of one process around it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.engines import build_engine
from actors.hf_engine import HfEngine
from actors.local import LocalPool
from core.errors import ConfigError, ModelError
from core.records import Sampling, Start
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_engine import RANDOM, TOLERANCE, generate, update

HF = CONFIG.model_copy(update={"engine": "hf"})
Get = Callable[[bool], Path]


def build(model: Path, max_running: int = 64) -> HfEngine:
    config = HF.model_copy(update={"max_running": max_running})
    engine = build_engine(str(model), config, dtype="float32", device="cpu", seed=0, name="rollout-0")
    assert isinstance(engine, HfEngine)
    return engine


def test_both_engines_say_the_same_of_the_same_tokens(
    vllm_engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    engine = build(tiny_model(False))
    changed = models.load(models.build(tmp_path, False, seed=5))
    update(vllm_engines[False], changed, 2)
    assert engine.load_weights(models.weights(changed, 2)).version == 2
    found = generate(vllm_engines[False], [models.start(index, prefix=index, samples=2) for index in range(6)])
    sequences = [one.sequence_ids for one in found]
    theirs = ray.get(vllm_engines[False].sequence_logprobs.remote(sequences))
    for one, ours, other in zip(found, engine.sequence_logprobs(sequences), theirs, strict=True):
        np.testing.assert_allclose(ours, other, atol=TOLERANCE)
        np.testing.assert_allclose(ours[-len(one.tokens) :], one.logprobs, atol=TOLERANCE)
    update(vllm_engines[False], models.load(tiny_model(False)), 1)


def test_one_process_gives_what_an_actor_gives(hf_engines: dict[bool, Any], tiny_model: Get) -> None:
    update(hf_engines[True], models.load(tiny_model(True)), 1)
    starts = [models.start(index, prefix=index % 4, samples=3) for index in range(9)]
    pool = LocalPool(build(tiny_model(True), max_running=5), HF)  # waves of 5: samples of a start are parted
    found, expected = pool.generate(starts, RANDOM), generate(hf_engines[True], starts)
    assert [(one.start.id, one.sample) for one in found] == [(s.id, i) for s in starts for i in range(3)]
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]
    weights = models.weights(models.load(tiny_model(True)), 4)
    ((acknowledged),) = pool.load_weights(weights)
    assert (acknowledged.engine, acknowledged.version) == ("rollout-0", 4)
    assert acknowledged.digest == weights.manifest.digest
    assert {int(v) for one in pool.generate(starts[:1], RANDOM) for v in one.versions} == {4}


def test_draws_follow_the_distribution(tiny_model: Get) -> None:
    """2,000 first tokens of one start: frequencies against the probabilities of the model."""
    engine = build(tiny_model(True), max_running=2000)
    start = models.start(1, samples=2000)
    batch = LocalPool(engine, HF).generate([start], Sampling(0.5, 1.0, 1))
    drawn = np.bincount([int(one.tokens[0]) for one in batch], minlength=models.VOCABULARY) / 2000
    reference = models.load(tiny_model(True))
    sequences = [np.append(start.prompt_ids, np.int32(token)) for token in range(models.VOCABULARY)]
    exact = np.exp([models.logprobs(reference, sequence, 0.5)[-1] for sequence in sequences])
    # Half the L1 distance of a sample of n from its distribution is at most about sqrt(support / n): 0.5 sqrt(300 / 2000)
    assert np.abs(drawn - exact).sum() / 2 < 0.2
    assert np.abs(drawn - 1 / models.VOCABULARY).sum() / 2 > 0.4  # a uniform draw would be noticed


def test_what_does_not_fit_or_load_is_named(tiny_model: Get, tmp_path: Path) -> None:
    pool = LocalPool(build(tiny_model(True)), HF)
    long = Start("long", "p", np.ones(49, np.int32), np.empty(0, np.int32), 1, seed=0)
    with pytest.raises(ConfigError, match=r"max_prompt_tokens = 48: the prompt of p has 49"):
        pool.generate([long], RANDOM)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "eos_token_id": 1}')
    with pytest.raises(ModelError, match=r"model\.path = .*transformers cannot load it"):
        build(tmp_path)
