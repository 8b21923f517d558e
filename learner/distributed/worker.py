"""One rank of the learner: policy and critic in their DeepSpeed engines, and a reference policy if there is one.

A Ray actor made by `learner.group`, which sends ready arrays and reads plain results. Invariant: every method is called on
all ranks in the same order with the same number of micro-batches (collectives inside).
"""

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray

from core.config import AlgorithmConfig, Device, LearnerConfig
from core.errors import CheckpointError, LearnerError, RetrospectError, first_line
from core.records import FloatArray
from core.startup import uncollected

with uncollected():  # a rank's process begins here
    import torch
    from transformers.utils import is_flash_attn_2_available

    from core.weights import Bucket, NamedTensor, Sender, SenderHost, Weights, pack
    from learner.distributed import randomness
    from learner.distributed.actor_critic import (
        ActorCritic,
        LossSettings,
        SeparateModels,
        SharedTrunk,
        StepPlan,
        model_inputs,
        places,
    )
    from learner.distributed.engine import join_ranks
    from learner.models.adapters import Lora, adapters_off, merged
    from learner.models.policy_value import (
        PolicyModel,
        attention_kernel,
        load_policy,
        load_shared,
        load_value,
        recompute_activations,
        torch_varlen,
    )
    from learner.objective import PolicyCoefficients
    from learner.packing.batch import MicroBatch
    from learner.stats import StepSums


@dataclass(frozen=True, slots=True)
class ScoreColumns:
    """Scores of one micro-batch, flat over its continuation tokens [N]."""

    values: FloatArray
    proximal: FloatArray
    reference: FloatArray  # zeros without a reference policy


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the driver must know of the models."""

    trained: str  # what a checkpoint's tensors must fit: the policy's class and its number of trained parameters
    packed: bool  # whether rows lie one after the other (variable-length attention) or padded


class RankWorker:
    """See the module. Lifecycle: `address` (rank 0) -> `join` -> `load` -> score / update / export_weights / save ..."""

    def __init__(self, publish: Callable[[Bucket], Any]) -> None:
        """`publish` copies a bucket of weights to where engines find it: `ray.put`, or `core.weights.copied` in one process."""
        self._publish = publish
        self._sender: Sender | None = None

    def address(self) -> tuple[str, int]:
        """Where rank 0 listens: this node's address and a free port."""
        return ray.util.get_node_ip_address(), free_port()

    def join(self, rank: int, ranks: int, address: tuple[str, int], device: Device, timeout: float) -> None:
        """Set the environment that DeepSpeed reads and enter the process group."""
        host, port = address
        os.environ.update(
            MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK="0"
        )
        if device == "cpu":
            os.environ.update(LOCAL_RANK=str(rank))
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._rank = rank
        self._device = torch.device(device)
        join_ranks(device, timeout)

    def load(
        self, path: str, learner: LearnerConfig, algorithm: AlgorithmConfig, dtype: str, temperature: float, seed: int
    ) -> Loaded:
        """Build the engines from the policy's directory, and the reference policy if its KL has a weight."""
        torch.manual_seed(seed)
        kind: torch.dtype = getattr(torch, dtype)
        self._path, self._temperature = path, temperature
        self._lora = Lora(learner.lora_rank, learner.lora_alpha) if learner.lora_rank else None
        fits = partial(torch_varlen, path, self._device.type)
        self._attention = attention_kernel(self._device.type, kind, is_flash_attn_2_available(), fits)
        self._actor_critic = self._build(learner, kind, loss_settings(learner, algorithm, temperature))
        self._reference: PolicyModel | None = None
        self._has_reference = algorithm.kl_coefficient > 0
        if self._has_reference and self._lora is None:  # else: the frozen base without its adapters
            self._reference = load_policy(path, kind, None, self._attention).to(self._device).requires_grad_(False)
        return Loaded(self._trained, packed=self._attention != "sdpa")

    def open_channel(self, sender: type[Sender] | None, seconds: float) -> None:
        """From now on rank 0 also sends weights by this direct way, waiting for engines no longer than `seconds`."""
        if self._rank == 0:
            self.close_channel()
            home = SenderHost(self._device.type, os.environ["MASTER_ADDR"], seconds)
            self._sender = None if sender is None else sender(home)

    def close_channel(self) -> None:
        """End what the last `export_weights` offered beside the published copy."""
        if self._sender is not None:
            self._sender.close()

    def _build(self, learner: LearnerConfig, kind: torch.dtype, losses: LossSettings) -> ActorCritic:
        options: dict[str, Any] = {
            "zero_stage": learner.zero_stage,
            "dtype": kind,
            "max_grad_norm": learner.max_grad_norm,
            "weight_decay": learner.weight_decay,
            "offload": learner.offload,
        }
        if learner.value_model == "shared":
            shared = load_shared(self._path, kind, self._lora, self._attention)
            self._module: PolicyModel = shared
            self._trained = trained(shared)
            if learner.gradient_checkpointing:
                recompute_activations(shared)
            return SharedTrunk(shared, losses, **options)
        self._module = load_policy(self._path, kind, self._lora, self._attention)
        self._trained = trained(self._module)
        value = load_value(learner.value_path or self._path, kind, self._lora, self._attention)
        if learner.gradient_checkpointing:
            recompute_activations(self._module)
            recompute_activations(value)
        return SeparateModels(self._module, value, losses, **options)

    @torch.no_grad()
    def score(self, batches: Sequence[MicroBatch]) -> list[ScoreColumns]:
        """Values, proximal and reference log-probabilities of every micro-batch, one pass per model."""
        scores = self._actor_critic.score(batches)
        references = self._references(batches)
        return [
            ScoreColumns(_numpy(values), _numpy(proximal), _numpy(reference))
            for (proximal, values), reference in zip(scores, references, strict=True)
        ]

    def _references(self, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """The reference policy's log-probabilities; zeros without one."""
        if not self._has_reference:
            return [torch.zeros(len(batch.targets)) for batch in batches]
        if self._reference is None:
            with adapters_off(self._module):
                return [self._actor_critic.logprobs(batch, self._temperature) for batch in batches]
        return [
            self._reference(*model_inputs(b, self._device), self._temperature, **places(b, self._device))[0]
            for b in batches
        ]

    @torch.no_grad()
    def values(self, batches: Sequence[MicroBatch]) -> list[FloatArray]:
        """Values of every micro-batch."""
        return [_numpy(values) for values in self._actor_critic.values(batches)]

    @torch.no_grad()
    def logprobs(self, batches: Sequence[MicroBatch]) -> list[FloatArray]:
        """The policy's log-probabilities at temperature 1 (for the probe after a broadcast)."""
        return [_numpy(self._actor_critic.logprobs(batch, 1.0)) for batch in batches]

    def update(self, steps: Sequence[StepPlan]) -> list[StepSums]:
        """Take the optimizer steps in order."""
        return [self._actor_critic.step(step) for step in steps]

    def export_weights(self, version: int) -> Weights | None:
        """The published weights of the policy from rank 0, nothing from the others."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # an engine that slept on the same GPU wakes up for these weights
        if self._rank == 0:
            self.close_channel()  # of a broadcast that failed
            return pack(self._hf_tensors(), version, self._publish, sender=self._sender)
        for _ in self._actor_critic.policy.named_tensors():
            pass
        return None

    def save(self, directory: str) -> list[str]:
        """Write all engines and this rank's random states; returns the names of the files that this rank sees there now.

        Raises:
            CheckpointError: it cannot be written.
        """
        folder = Path(directory)
        with blamed_on(folder, "written; free space or fix the rights"):
            for tag, engine in self._actor_critic.engines().items():
                engine.save(folder, tag)
            torch.save(randomness.read(self._device), folder / f"rng-{self._rank}.pt")
            return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]

    def restore(self, directory: str, ranks: int) -> None:
        """Read what `save` wrote from `ranks` ranks.

        Raises:
            CheckpointError: something is missing or damaged.
        """
        folder = Path(directory)
        same = ranks == torch.distributed.get_world_size()
        with blamed_on(folder, "read; resume from another one"):
            for tag, engine in self._actor_critic.engines().items():
                if not (engine.restore if same else engine.restore_resharded)(folder, tag):
                    raise CheckpointError(f"{folder / tag}: no complete DeepSpeed checkpoint; resume from another one")
            randomness.write(torch.load(folder / f"rng-{self._rank % ranks}.pt"), self._device)

    def export(self, directory: str) -> None:
        """Write the policy in Hugging Face format with its tokenizer (rank 0)."""
        tensors = {}
        for name, tensor in self._hf_tensors():  # on all ranks, which gather it together
            if self._rank == 0:
                tensors[name] = tensor.detach().cpu().clone()
        if self._rank == 0:
            from transformers import AutoTokenizer

            self._module.model.save_pretrained(directory, state_dict=tensors)
            AutoTokenizer.from_pretrained(self._path).save_pretrained(directory)

    def _hf_tensors(self) -> Iterator[NamedTensor]:
        """The policy's parameters under their Hugging Face names, tied ones once, adapters merged."""
        prefix = "model."  # the value head of a shared trunk stays here
        named = self._actor_critic.policy.named_tensors()
        own = ((name.removeprefix(prefix), tensor) for name, tensor in named if name.startswith(prefix))
        return merged(own, 0.0 if self._lora is None else self._lora.scale)


@contextlib.contextmanager
def blamed_on(folder: Path, what: str) -> Iterator[None]:
    """What fails in the block, in whatever library, as an error of the checkpoint: new ranks would meet it again."""
    try:
        yield
    except RetrospectError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise CheckpointError(f"{folder}: cannot be {what} ({kind}: {first_line(error)})") from error


def free_port() -> int:
    """A free TCP port below those that the kernel hands out unasked: until it is used nobody gets it by chance.

    On a kernel that hands out every port above 20,000 any free one.
    """
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(20_000, given)
    for port in [*random.SystemRandom().sample(candidates, min(100, len(candidates))), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise LearnerError("learner-rank-0: no free TCP port on its node; end what holds them, or allow more open files")


def trained(module: PolicyModel) -> str:
    """The policy's class and its number of trained parameters (before ZeRO takes them apart)."""
    count = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return f"{type(module.model).__name__} with {count:,} trained parameters"


def loss_settings(learner: LearnerConfig, algorithm: AlgorithmConfig, temperature: float) -> LossSettings:
    """The numbers of both losses, from their sections."""
    policy = PolicyCoefficients(
        algorithm.clip_low,
        algorithm.clip_high,
        algorithm.dual_clip,
        algorithm.entropy_coefficient,
        kl=0.0,
        kl_estimator=algorithm.kl_estimator,
    )
    return LossSettings(policy, algorithm.value_clip, learner.value_coefficient, temperature)


def _numpy(tensor: torch.Tensor) -> FloatArray:
    return tensor.float().cpu().numpy()
