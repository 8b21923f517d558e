"""One rank of the learner: policy and critic in their DeepSpeed engines, and a reference policy if there is one.
Invariant: every method is called on all ranks in the same order with the same number of micro-batches (collectives)."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray

from core.config import AlgorithmConfig, Device, LearnerConfig
from core.errors import CheckpointError, RetrospectError, first_line
from core.machine import Memory, memory_is_short, peak_memory, return_freed_memory
from core.records import FloatArray
from core.run_directory import open_to_readers
from core.startup import without_gc

with without_gc():  # a rank's process begins here
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from core.transport import serve_store
    from core.weights import Bucket, DirectTransfer, NamedTensor, Sender, SenderHost, Weights, pack, stage
    from learner.distributed.actor_critic import (
        ActorCritic,
        PolicyAlone,
        SeparateModels,
        SharedTrunk,
        StepPlan,
        engines_of,
    )
    from learner.distributed.engine import join_ranks
    from learner.models.adapters import Lora, adapters_off, merged, save_adapters
    from learner.models.attention import line_on
    from learner.models.pretrained import PolicyModel, load_policy, load_shared, load_value, recompute_activations
    from learner.packing.micro_batches import MicroBatch
    from learner.policy_losses import find_policy_loss
    from learner.stats import StepSums

KINDS: dict[str, type[ActorCritic]] = {"separate": SeparateModels, "shared": SharedTrunk, "none": PolicyAlone}
"""The models of a rank by `learner.value_model`."""


class RankWorker:
    """One rank's process. Lifecycle: `listen` -> `join` -> `load` -> score / update / export_weights / save ..."""

    def __init__(self, publish: Callable[[Bucket], Any]) -> None:
        """`publish` copies a bucket of weights for the engines: `ray.put`, or `core.weights.copied` in one process."""
        self._publish = publish
        self._sender: Sender | None = None

    def listen(self, timeout: float) -> tuple[str, int]:
        """Serve a store where the ranks can meet, on this node's address alone; returns address and port. That of rank 0 is used."""
        host = ray.util.get_node_ip_address() if ray.is_initialized() else "127.0.0.1"
        self._store = serve_store(host, timeout)
        return host, int(self._store.port)

    def join(self, rank: int, ranks: int, address: tuple[str, int], device: Device, timeout: float) -> None:
        """Set the environment that DeepSpeed reads and enter the process group."""
        host, port = address
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
        os.environ["LOCAL_RANK"] = str(rank) if device == "cpu" else "0"
        if device == "cpu":
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._rank = rank
        self._device = torch.device(device)
        if rank:
            self._store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout))
        join_ranks(self._store, rank, ranks, device, timeout)

    def sees(self, file: str) -> bool:
        """Whether this rank's machine has the file."""
        return Path(file).exists()

    def load(
        self, path: str, learner: LearnerConfig, algorithm: AlgorithmConfig, temperature: float, dtype: str, seed: int
    ) -> str:
        """Build the engines from the policy's directory, and a reference policy for a KL. `temperature`: of the
        rollouts. Returns the policy's class and its number of trained parameters, which a checkpoint must match."""
        torch.manual_seed(seed)
        kind: torch.dtype = getattr(torch, dtype)
        find_policy_loss(algorithm.policy_loss)  # raises here if this node lacks a user's module
        self._path, self._temperature = path, temperature
        self._lora = Lora(learner.lora_rank, learner.lora_alpha) if learner.lora_rank else None
        load = load_shared if learner.value_model == "shared" else load_policy
        self._module: PolicyModel = load(path, kind, self._lora)
        separate = learner.value_model == "separate"
        value = load_value(learner.value_path or path, kind, self._lora) if separate else None
        if learner.gradient_checkpointing:
            for module in (self._module, value) if value is not None else (self._module,):
                recompute_activations(module)
        trained = sum(p.numel() for p in self._module.parameters() if p.requires_grad)  # before ZeRO partitions them
        self._engines = engines_of(self._module, value, learner, kind)
        self._engine = self._engines["policy"]  # of the model that is exported
        self._actor_critic = KINDS[learner.value_model](self._engines, algorithm, temperature)
        self._reference: PolicyModel | None = None
        self._has_reference = algorithm.kl_coefficient > 0
        if self._has_reference and self._lora is None:  # with LoRA the reference is the base without adapters
            self._reference = load_policy(path, kind).to(self._device).requires_grad_(False)
        self._leave_gpu()
        return f"{type(self._module.model).__name__} with {trained:,} trained parameters"

    def open_channel(self, sender: type[Sender] | None, pairs: bool, seconds: float) -> None:
        """Let rank 0 (`pairs`: every rank) also send weights directly; it waits for engines at most `seconds`."""
        self.close_channel()
        home = SenderHost(self._device.type, os.environ["MASTER_ADDR"], seconds)
        self._sender = sender(home) if sender is not None and (pairs or self._rank == 0) else None

    def close_channel(self) -> None:
        """End the direct transfer that the last `export_weights` offered."""
        if self._sender is not None:
            self._sender.close()
        self._leave_gpu()

    def _leave_gpu(self) -> None:
        """Free the GPU memory that torch keeps for later: an engine on the same GPU wakes up next."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def score(self, batches: Sequence[MicroBatch], untrained: bool) -> list[list[FloatArray]]:
        """Values, proximal and reference log-probabilities [N]; an `untrained` policy is the reference: one pass."""
        proximal, values = self._actor_critic.score(batches)
        one_pass = untrained or not self._has_reference
        reference = proximal if one_pass else self._references(batches)
        return [[_numpy(tensor) for tensor in column] for column in (values, proximal, reference)]

    def _references(self, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        if self._reference is None:
            with adapters_off(self._module):
                return [self._actor_critic.logprobs(batch, self._temperature) for batch in batches]
        lines = (line_on(batch, self._device) for batch in batches)
        return [self._reference(line, self._temperature)[0] for line in lines]

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
        sums = [self._actor_critic.step(step) for step in steps]
        if self._device.type == "cpu" and memory_is_short():
            return_freed_memory()  # the engines work next; taking it again costs a fifth of an update
        return sums

    def export_weights(self, version: int) -> tuple[Weights | None, DirectTransfer | None]:
        """Publish the policy's weights: rank 0 returns them. Each rank that sends directly also returns its offer."""
        self.close_channel()  # left open by a broadcast that failed
        if self._rank == 0:
            weights = pack(self._hf_tensors(), version, self._publish, sender=self._sender)
            return weights, weights.direct
        if self._sender is not None:
            return None, stage(self._hf_tensors(), self._sender)
        for _ in self._engine.named_tensors():
            pass
        return None, None

    def peak_memory(self) -> Memory:
        """Of this rank's process."""
        return peak_memory()

    def save(self, directory: str) -> list[str]:
        """Write all engines and this rank's random states; returns the names of the files that this rank sees there now. Raises CheckpointError."""
        folder = Path(directory)
        with as_checkpoint_error(folder, "written; free space or fix the rights"):
            for tag, engine in self._engines.items():
                engine.save(folder, tag)
            torch.save(random_states(self._device), folder / f"rng-{self._rank}.pt")
            return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]

    def restore(self, directory: str, ranks: int) -> None:
        """Read what `save` wrote from `ranks` ranks. Raises CheckpointError."""
        folder = Path(directory)
        same = ranks == torch.distributed.get_world_size()
        with as_checkpoint_error(folder, "read; resume from another one"):
            for tag, engine in self._engines.items():
                if not engine.restore(folder, tag, same):
                    raise CheckpointError(f"{folder / tag}: no complete DeepSpeed checkpoint; resume from another one")
            set_random_states(torch.load(folder / f"rng-{self._rank % ranks}.pt"), self._device)

    def export(self, directory: str) -> None:
        """Write the model in Hugging Face format with its tokenizer, and its adapters in PEFT's to `adapter` (rank
        0)."""
        tensors: dict[str, torch.Tensor] = {}
        adapters: dict[str, torch.Tensor] = {}
        for name, tensor in self._hf_tensors(adapters):  # on all ranks: they gather each tensor together
            if self._rank == 0:
                tensors[name] = tensor.detach().cpu().clone()
        if self._rank == 0:
            from transformers import AutoTokenizer

            self._module.model.save_pretrained(directory, state_dict=tensors)
            AutoTokenizer.from_pretrained(self._path).save_pretrained(directory)
            if self._lora is not None:
                save_adapters(adapters, self._lora, self._path, Path(directory) / "adapter")
            open_to_readers(Path(directory))

    def _hf_tensors(self, adapters: dict[str, torch.Tensor] | None = None) -> Iterator[NamedTensor]:
        """The model's parameters under their Hugging Face names, tied ones once, adapters merged. `adapters` gets
        copies of these."""
        prefix = "model."  # leaves out the value head of a shared trunk
        named = self._engine.named_tensors()
        own = ((name.removeprefix(prefix), tensor) for name, tensor in named if name.startswith(prefix))
        return merged(own, 0.0 if self._lora is None else self._lora.scale, adapters)


@contextlib.contextmanager
def as_checkpoint_error(folder: Path, what: str) -> Iterator[None]:
    """Turn any error in the block into a CheckpointError: a restart of the ranks would not help."""
    try:
        yield
    except RetrospectError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise CheckpointError(f"{folder}: cannot be {what} ({kind}: {first_line(error)})") from error


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """States of torch's generators, for models that draw random numbers in their forward pass; `torch.load` reads them."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Set the states that `random_states` returned; ignores those of another kind of device."""
    torch.set_rng_state(states["cpu"])
    if device.type in states and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type], device)


def _numpy(tensor: torch.Tensor) -> FloatArray:
    return tensor.float().cpu().numpy()
