"""Learner groups on a tiny model, and engines of Hugging Face that receive what they broadcast."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import ray
import torch

from core.config import AlgorithmConfig, LearnerConfig, ResolvedLearner
from core.errors import LearnerError
from core.records import FloatArray, IntArray, Rollout
from core.weights import Acknowledgement, Sender, WeightHandle, resolved, unpack
from learner.batch import Batch
from learner.credit import Algorithm, credit
from learner.distributed.ranks import LocalRanks, Ranks, rank_environment
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup, LearnerSpec
from learner.stats import UpdateStats
from tests.learner.conftest import every_token, make_judged

Tiny = Callable[[bool], Path]
PROBE = [np.arange(1, 12, dtype=np.int32), np.array([7, 7, 3], dtype=np.int32)]


class KeptRanks(Ranks):
    """Ranks whose processes serve the next learner, too: a new process takes 10 s to import its libraries."""

    kept: ClassVar[dict[int, list[Any]]] = {}
    _closing = False

    def __init__(self, config: LearnerConfig, **options: Any) -> None:
        self._deadline = config.deadline
        self._actors = self.kept.pop(config.ranks, [])
        if not self._actors:
            super().__init__(config, **options)

    def close(self) -> None:
        """Keep the processes, unless one of them has failed."""
        if self._actors and not self._closing and len(self._actors) not in self.kept:
            self._closing = True  # a rank that does not answer closes its group
            with suppress(LearnerError):
                self.call_same(RankWorker.close_channel)
                self.kept[len(self._actors)], self._actors = self._actors, []
        super().close()


@contextmanager
def keeping(place: str) -> Iterator[None]:
    """Inside the block `place`, a name of `Ranks`, makes kept ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, KeptRanks)
        yield
    for actors in KeptRanks.kept.values():
        for actor in actors:
            ray.kill(actor)
    KeptRanks.kept.clear()


@contextmanager
def environment_of_a_rank() -> Iterator[None]:
    """For a rank that starts in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "DS_ACCELERATOR"):
            patch.setenv(name, rank_environment("cpu", 1)[name])
        yield


def one_rank() -> RankWorker:
    """A rank without others, in this process."""
    with environment_of_a_rank():
        ranks = LocalRanks()
        ranks.join("cpu", 600.0)
    return ranks._worker


class Learner(LearnerGroup):
    """A learner with an algorithm."""

    def __init__(self, spec: LearnerSpec, algorithm: Algorithm) -> None:
        super().__init__(spec)
        self.algorithm = algorithm

    def credited(self, scored: Sequence[Rollout]) -> Batch:
        return credit(scored, self.algorithm, self.state)

    def learn(self, scored: Sequence[Rollout]) -> UpdateStats:
        return self.update(self.credited(scored))


@contextmanager
def group(
    path: Path,
    algorithm: AlgorithmConfig | None = None,
    dtype: str = "float32",
    sender: type[Sender] | None = None,
    temperature: float = 0.9,
    pairs: bool = False,
    **learner: Any,
) -> Iterator[Learner]:
    """A learner. One rank without a sender is in this process, because another one takes 10 s to import its
    libraries."""
    options = {"micro_batch_tokens": 40, "threads": 1, "policy_lr": 1e-4, "value_lr": 1e-4, "deadline": 600.0} | learner
    config, settings = ResolvedLearner(**options), algorithm or AlgorithmConfig()
    with environment_of_a_rank():
        spec = LearnerSpec(
            path,
            config,
            settings,
            temperature,
            dtype=dtype,
            device="cpu",
            total_steps=24,
            seed=0,
            cpus=0.5,
            sender=sender,
            pairs=pairs,
            local=config.ranks == 1 and sender is None,
        )
        weight = config.value_coefficient if config.value_model == "shared" else 1.0
        made = Learner(spec, Algorithm(settings, 8, every_token, weight, spec.config.critic_warmup))
    with closing(made):
        yield made


def fetched(bucket: Any) -> Any:
    """A bucket that Ray's object store holds, or one of this process."""
    return ray.get(bucket) if isinstance(bucket, ray.ObjectRef) else bucket


class Engines:
    """Two engines that hold what they were sent and compute with Hugging Face; `broken` adds to their
    log-probabilities."""

    def __init__(
        self, path: Path, broken: float = 0.0, digest: str | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
        self.broken, self.digest = broken, digest
        self.names: list[str] = []

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        weights = resolved(handle, fetched)
        state = {name: tensor.clone() for name, tensor in unpack(weights)}
        self.names = list(state)
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert missing in ([], ["lm_head.weight"])
        manifest = weights.manifest
        return [Acknowledgement(f"engine-{i}", manifest.version, self.digest or manifest.digest) for i in range(2)]

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        out = []
        for sequence in sequences:
            ids = torch.from_numpy(sequence.astype(np.int64))[None]
            with torch.no_grad():
                logs = torch.log_softmax(self.model(ids).logits[0].float(), -1)
            out.append(logs[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy())
        return [out, [log + np.float32(self.broken) for log in out]]


def weights_of(learner: LearnerGroup, path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    engines = Engines(path)
    learner.broadcast(engines)
    return {name: tensor.detach().numpy().copy() for name, tensor in engines.model.named_parameters()}


def train(learner: Learner, updates: Sequence[int]) -> list[list[Rollout]]:
    batches = []
    for seed in updates:
        scored = learner.score(on_policy(learner, make_judged(seed)))
        learner.learn(scored)
        batches.append(scored)
    return batches


def on_policy(learner: LearnerGroup, judged: list[Rollout]) -> list[Rollout]:
    """The rollouts with the learner's own log-probabilities as behaviour."""
    own = [s.proximal for s in learner.score(judged)]
    return [replace(j, logprobs=p) for j, p in zip(judged, own, strict=True)]


def with_nan(scored: Rollout, kind: str) -> Rollout:
    """The rollout with one of its numbers out of bounds. Of `policy`, `value` and `critic` only the one model makes
    an Inf."""
    nan, huge = np.float32("nan"), np.float32(1e30)
    if kind in ("reward", "critic"):
        verdict = replace(scored.verdict, reward=float("nan") if kind == "reward" else 2.6e19)
        scored = replace(scored, verdict=verdict)
        # from the values that it is said to have had the critic's squared error is finite (1e38), from its own (6.8e38)
        # not
        return scored if kind == "reward" else replace(scored, values=scored.values + np.float32(1.6e19))
    if kind == "both":
        return with_nan(with_nan(scored, "policy"), "critic")
    if kind == "policy":  # its squared distance to the reference overflows
        return replace(scored, reference=scored.proximal + huge)
    if kind == "value":  # its squared error overflows
        return replace(scored, values=scored.values + huge)
    return replace(scored, **{kind: getattr(scored, kind) * nan})


def weights_start(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {name: tensor.detach().numpy() for name, tensor in Engines(path).model.named_parameters()}


def check_export(directory: Path, weights: dict[str, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    mask = os.umask(0)
    os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.rglob("*.safetensors")}
    assert set(modes.values()) == {0o666 & ~mask}
    exported = dict(AutoModelForCausalLM.from_pretrained(directory).named_parameters())
    assert set(exported) == set(weights)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(exported[name].detach().numpy(), tensor)
    first = chr(0x4E00)  # the tiny tokenizer's token 0
    assert AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids(first) == 0
