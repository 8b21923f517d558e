"""The learner on real DeepSpeed ranks under Ray, on a tiny model in fp32."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config import AlgorithmConfig, LearnerConfig
from core.errors import ActorError, CheckpointError, DivergenceError, WeightError
from core.records import FloatArray, IntArray, Judged, Scored
from core.weights import Acknowledgement, WeightHandle, Weights, unflatten
from learner.group import LearnerGroup
from tests.learner.conftest import make_judged

pytestmark = pytest.mark.usefixtures("ray_cluster")

Tiny = Callable[[bool], Path]
PROBE = [np.arange(1, 12, dtype=np.int32), np.array([7, 7, 3], dtype=np.int32)]


@contextmanager
def group(path: Path, algorithm: AlgorithmConfig | None = None, **learner: Any) -> Iterator[LearnerGroup]:
    options = {"micro_batch_tokens": 40, "threads": 1, "policy_lr": 1e-4, "value_lr": 1e-4, "deadline": 200.0} | learner
    made = LearnerGroup(
        path,
        LearnerConfig(**options),
        algorithm or AlgorithmConfig(),
        dtype="float32",
        device="cpu",
        temperature=0.9,
        total_steps=24,
        seed=0,
        cpus=0.5,
    )
    try:
        yield made
    finally:
        made.close()


class Engines:
    """Two engines that hold what they were sent and compute with Hugging Face; `broken` adds to their log-probabilities."""

    def __init__(self, path: Path, broken: float = 0.0, digest: str | None = None) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path).eval()
        self.broken, self.digest = broken, digest
        self.names: list[str] = []

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        import ray

        weights: Weights = ray.get(handle)
        state = {name: tensor.clone() for name, tensor in unflatten(weights)}
        self.names = list(state)
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert missing in ([], ["lm_head.weight"])
        manifest = weights.manifest
        return [Acknowledgement(f"engine-{i}", manifest.version, self.digest or manifest.digest) for i in range(2)]

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        import torch

        out = []
        for sequence in sequences:
            ids = torch.from_numpy(sequence.astype(np.int64))[None]
            with torch.no_grad():
                logs = torch.log_softmax(self.model(ids).logits[0], -1)
            out.append(logs[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy())
        return [out, [log + np.float32(self.broken) for log in out]]


def weights_of(learner: LearnerGroup, path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    engines = Engines(path)
    learner.broadcast(engines, PROBE)
    return {name: tensor.detach().numpy().copy() for name, tensor in engines.model.named_parameters()}


def train(learner: LearnerGroup, updates: Sequence[int]) -> list[list[Scored]]:
    batches = []
    for seed in updates:
        scored = learner.score(on_policy(learner, make_judged(seed)))
        learner.update(scored)
        batches.append(scored)
    return batches


def on_policy(learner: LearnerGroup, judged: list[Judged]) -> list[Judged]:
    """The trajectories with the learner's own log-probabilities as behaviour."""
    own = [s.proximal for s in learner.score(judged)]
    return [replace(j, trajectory=replace(j.trajectory, logprobs=p)) for j, p in zip(judged, own, strict=True)]


def test_ranks_zero_stages_and_cuts_give_the_same_weights(tiny_model: Tiny) -> None:
    path = tiny_model(True)
    results = []
    cases: list[dict[str, Any]] = [
        {"ranks": 1, "zero_stage": 0},
        {"ranks": 1, "zero_stage": 0, "micro_batch_tokens": 10_000},
        {"ranks": 2, "zero_stage": 0},
        {"ranks": 2, "zero_stage": 2, "offload": True},
        {"ranks": 2, "zero_stage": 3, "gradient_checkpointing": True},
    ]
    for options in cases:
        with group(path, **options) as learner:
            batches = train(learner, [1, 2])
            results.append((weights_of(learner, path), np.concatenate([s.values for b in batches for s in b])))
    start = weights_start(path)
    moved = max(float(np.abs(results[0][0][name] - start[name]).max()) for name in start)
    assert moved > 2e-4  # 8 steps of Adam at 1e-4
    for weights, values in results[1:]:
        for name, expected in results[0][0].items():
            np.testing.assert_allclose(weights[name], expected, atol=1e-6, rtol=0, err_msg=name)
        np.testing.assert_allclose(values, results[0][1], atol=1e-6)


def weights_start(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {name: tensor.detach().numpy() for name, tensor in Engines(path).model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
def test_first_update_after_a_broadcast_is_on_policy_and_log_probabilities_agree(tiny_model: Tiny, tied: bool) -> None:
    path = tiny_model(tied)
    with group(path, AlgorithmConfig(kl_coefficient=0.1)) as learner:
        judged = on_policy(learner, make_judged(5))
        scored = learner.score(judged)
        stats = learner.update(scored)
        assert stats.first_kl == pytest.approx(0.0, abs=1e-7)
        assert stats.policy_kl > 1e-6  # later minibatches have moved
        assert stats.importance_mean == pytest.approx(1.0, abs=1e-6)
        assert stats.engine_gap_max == pytest.approx(0.0, abs=1e-6)
        assert stats.reference_kl == pytest.approx(0.0, abs=1e-7)
        assert stats.kl_coefficient == 0.1
        assert scored[0].reference is not None
        np.testing.assert_allclose(scored[0].reference, scored[0].proximal, atol=1e-6)  # nothing had moved yet
        assert (stats.steps, stats.skipped_steps, stats.tokens) == (4, 0, sum(len(s.values) for s in scored))
        engines = Engines(path)
        report = learner.broadcast(engines, PROBE)
        assert (report.version, learner.version) == (1, 1)
        assert report.logprob_gap < 1e-5
        assert len(engines.names) == len(set(engines.names))
        assert ("lm_head.weight" in engines.names) is not tied
        with pytest.raises(WeightError, match="engine 1: log-probabilities of the probe differ by 5"):
            learner.broadcast(Engines(path, broken=0.5), PROBE)
        with pytest.raises(WeightError, match="engine-0 acknowledged version 3 \\(0bad\\)"):
            learner.broadcast(Engines(path, digest="0bad"), PROBE)


def test_critic_warmup_leaves_the_policy_as_it_is_and_teaches_the_critic(tiny_model: Tiny) -> None:
    path = tiny_model(True)
    with group(path, critic_warmup=8, minibatches=2, value_lr=3e-3) as learner:
        batch = on_policy(learner, make_judged(7))
        variances = []
        for _ in range(8):
            stats = learner.update(learner.score(batch))
            variances.append(stats.explained_variance)
            assert not stats.policy_trained
        assert variances[0] == 0.0  # the head starts at zero
        assert variances[-1] > 0.5
        for name, tensor in weights_of(learner, path).items():
            np.testing.assert_array_equal(tensor, weights_start(path)[name])
        assert learner.update(learner.score(batch)).policy_trained


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_a_restored_learner_goes_on_bit_for_bit(tiny_model: Tiny, tmp_path: Path, zero_stage: int) -> None:
    path = tiny_model(True)
    options: dict[str, Any] = {"zero_stage": zero_stage, "schedule": "cosine", "warmup_steps": 3, "epochs": 2}
    with group(path, **options) as learner:
        train(learner, [1])
        learner.save(tmp_path / "checkpoint")
        first = train(learner, [2, 3])
        straight = weights_of(learner, path)
    with group(path, **options) as learner:
        learner.restore(tmp_path / "checkpoint")
        second = train(learner, [2, 3])
        resumed = weights_of(learner, path)
        learner.export(tmp_path / "export")
    for name, tensor in straight.items():
        np.testing.assert_array_equal(resumed[name], tensor)
    for a, b in zip((s for batch in first for s in batch), (s for batch in second for s in batch), strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.proximal, b.proximal)
    check_export(tmp_path / "export", resumed)
    with group(path, ranks=2) as learner, pytest.raises(CheckpointError, match=r"written by 1 learner ranks"):
        learner.restore(tmp_path / "checkpoint")


def check_export(directory: Path, weights: dict[str, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported = dict(AutoModelForCausalLM.from_pretrained(directory).named_parameters())
    assert set(exported) == set(weights)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(exported[name].detach().numpy(), tensor)
    first = chr(0x4E00)  # the tiny tokenizer's token 0
    assert AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids(first) == 0


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_a_nan_skips_the_step_on_all_ranks_and_is_counted(tiny_model: Tiny, zero_stage: int) -> None:
    path = tiny_model(True)
    with group(path, ranks=2, zero_stage=zero_stage, minibatches=3) as learner:
        scored = learner.score(on_policy(learner, make_judged(9)))
        before = weights_start(path)
        for spoilt in (
            [
                replace(s, judged=replace(s.judged, verdict=replace(s.judged.verdict, reward=float("nan"))))
                for s in scored
            ],
            [replace(s, proximal=s.proximal * np.float32("nan")) for s in scored],
        ):
            stats = learner.update(spoilt)
            assert (stats.steps, stats.skipped_steps) == (3, 3)
        with pytest.raises(DivergenceError, match=r"9 optimizer steps in a row .* on 1 problems \(p3") as error:
            learner.update(
                [replace(s, values=s.values * np.float32("nan")) if i == 3 else s for i, s in enumerate(scored)]
            )
        assert error.value.problem_ids == ("p3",)
        for name, tensor in weights_of(learner, path).items():
            np.testing.assert_array_equal(tensor, before[name])
        # one bad trajectory spoils only the step that it is in
        one = [replace(s, proximal=s.proximal * np.float32("nan")) if i == 0 else s for i, s in enumerate(scored)]
        stats = learner.update(one)
        assert (stats.steps, stats.skipped_steps) == (3, 1)
        assert np.isfinite([stats.policy_loss, stats.value_loss, stats.policy_grad_norm, stats.first_kl]).all()
        after = weights_of(learner, path)
        assert all(np.isfinite(tensor).all() for tensor in after.values())
        assert max(float(np.abs(after[name] - before[name]).max()) for name in after) > 1e-5


def test_a_dead_rank_is_named(tiny_model: Tiny) -> None:
    import ray

    with group(tiny_model(True), ranks=2) as learner:
        ray.kill(ray.get_actor("learner-rank-1"))
        with pytest.raises(ActorError, match=r"learner-rank-1 died during score"):
            learner.score(make_judged(0))
