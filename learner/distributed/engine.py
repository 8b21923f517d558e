"""One model in one DeepSpeed engine: accumulate gradients, step or skip, gather weights, save, restore.

Used by `learner.distributed.actor_critic`, once for both models or once for each, never interleaved. DeepSpeed is imported inside the
functions because its environment must be set first. Invariants: a step whose loss or gradients hold a NaN or Inf on any rank
changes nothing on every rank; the caller weights tokens over the global batch, and any number of backward passes may
precede a step (`managed_gradient_accumulation: false`).
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from core.weights import NamedTensor
from learner.distributed.compiler import sole_compiler

GATHER_BYTES = 2**28
"""ZeRO-3: parameters gathered at once when the weights are read."""


def _always() -> bool:
    return True


def join_ranks(device: str, timeout: float) -> None:
    """Enter DeepSpeed's process group (gloo or nccl) as RANK of WORLD_SIZE."""
    import deepspeed
    from deepspeed.comm.torch import build_shm_op

    if device == "cpu":  # there DeepSpeed compiles its way through shared memory
        with sole_compiler(Path(os.environ["TORCH_EXTENSIONS_DIR"], "deepspeed_shm_comm")):
            build_shm_op()  # the process group asks for it again and finds it loaded
    backend = "nccl" if device == "cuda" else "gloo"
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False, timeout=timedelta(seconds=timeout))


class AskingAdamW(torch.optim.AdamW):
    """AdamW that asks before it steps.

    DeepSpeed's ZeRO optimizers call it (once for every group of parameters) after they have found the gradients of all ranks
    finite: asked there, whoever answers has DeepSpeed's own verdict, and a refused step leaves weights and moments untouched
    while DeepSpeed clears its gradients as after any other.
    """

    def __init__(self, params: Iterable[dict[str, Any]], **options: Any) -> None:
        super().__init__(params, **options)
        self.consent: Callable[[], bool] = _always

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step if there is consent."""
        if self.consent():
            super().step(closure)


class GuardedAdamW(AskingAdamW):
    """An AdamW that clips and refuses non-finite gradients itself, for ZeRO stage 0 in fp32.

    DeepSpeed's ZeRO optimizers clip, report the norm and skip invalid steps; without ZeRO it clips silently and steps into
    NaN. The attributes `overflow` and `_global_grad_norm` are the ones that its engine reads from them.
    """

    def __init__(self, params: Iterable[dict[str, Any]], max_grad_norm: float, **options: Any) -> None:
        super().__init__(params, **options)
        self.overflow = False
        self._global_grad_norm = 0.0
        self._max_grad_norm = max_grad_norm

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip by global norm and step; skip when the norm is not finite, without asking."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
        self._global_grad_norm = float(norm)
        self.overflow = not bool(torch.isfinite(norm))
        if not self.overflow:
            super().step(closure)


def engine_config(zero_stage: int, dtype: torch.dtype, max_grad_norm: float, offload: bool) -> dict[str, Any]:
    """DeepSpeed's configuration. bf16 needs the fp32 master weights of a ZeRO optimizer, so stage 0 runs as 1 there."""
    bf16 = dtype is torch.bfloat16
    stage = 1 if bf16 and zero_stage == 0 else zero_stage
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": bf16, "check_grad_overflow": True} if bf16 else {"enabled": False},
        "gradient_clipping": 0.0 if stage == 0 else max_grad_norm,
        "steps_per_print": 10**9,
    }


class TrainEngine:
    """A module, its AdamW and its gradients over all ranks."""

    def __init__(
        self,
        module: nn.Module,
        groups: Sequence[Sequence[nn.Parameter]],
        *,
        zero_stage: int,
        dtype: torch.dtype,
        max_grad_norm: float,
        weight_decay: float,
        offload: bool,
    ) -> None:
        """Take the module into an engine.

        Args:
            module: on any device; frozen parameters stay as they are.
            groups: parameters that share a learning rate (frozen ones are left out).
            zero_stage: 0 to 3. See `engine_config` for the others.
        """
        import deepspeed

        config = engine_config(zero_stage, dtype, max_grad_norm, offload)
        trained = [{"params": [p for p in group if p.requires_grad]} for group in groups]
        options: dict[str, Any] = {"lr": 0.0, "weight_decay": weight_decay, "fused": True}
        self._stage = int(config["zero_optimization"]["stage"])
        self._optimizer = (
            AskingAdamW(trained, **options) if self._stage else GuardedAdamW(trained, max_grad_norm, **options)
        )
        self._engine, *_ = deepspeed.initialize(
            model=module, optimizer=self._optimizer, config=config, dist_init_required=False
        )
        self._module = module
        self._ranks = torch.distributed.get_world_size()

    @property
    def device(self) -> torch.device:
        """Where inputs must be."""
        return torch.device(self._engine.device)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Forward pass."""
        return self._engine(*args, **options)

    def backward(self, loss: Tensor, outputs: Tensor) -> None:
        """Add the gradients of this rank's part of a global mean.

        DeepSpeed averages over ranks, so the part is multiplied by their number. A non-finite loss poisons the gradients of
        the model's outputs (clipping alone would turn them into zeros): the step is then dropped by the check of the global
        gradient norm, on every rank alike.
        """
        loss = loss * self._ranks if bool(torch.isfinite(loss)) else outputs.sum() * torch.nan
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, rates: Sequence[float | None], consent: Callable[[], bool] = _always) -> tuple[float, bool]:
        """Apply the accumulated gradients: (gradient norm before clipping, whether applied).

        Args:
            rates: learning rate of each group. None: the group has no gradients and does not change, nor does its Adam count
                the step (else its bias correction would be used up before its first gradient).
            consent: asked once, when the gradients of all ranks are known to be finite and nothing has moved yet; without it
                nothing moves. It must answer the same on every rank, and may use another engine.
        """
        for group, rate in zip(self._engine.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate or 0.0
        answers: list[bool] = []

        def once() -> bool:
            if not answers:
                answers.append(consent())
            return answers[0]

        self._optimizer.consent = once
        self._engine.step()
        self._optimizer.consent = _always
        for state in self._idle_states(rates):
            state["step"].zero_()
        return float(self._engine.get_global_grad_norm()), bool(self._engine.was_step_applied()) and all(answers)

    def _idle_states(self, rates: Sequence[float | None]) -> list[dict[str, Tensor]]:
        """Adam's states of the groups without a rate."""
        idle = {number for number, rate in enumerate(rates) if rate is None}
        if not idle:
            return []
        zero = self._engine.optimizer
        if self._stage == 3:  # ZeRO-3 keeps its flat partitions out of the optimizer's groups
            flat = enumerate(zero.fp32_partitioned_groups_flat)
            parameters = [p for number, p in flat if zero.sub_group_to_group_id[number] in idle]
        else:
            parameters = [p for number in idle for p in self._optimizer.param_groups[number]["params"]]
        return [self._optimizer.state[p] for p in parameters if "step" in self._optimizer.state.get(p, {})]

    def named_tensors(self) -> Iterator[NamedTensor]:
        """Whole parameters by their name in the module, tied ones once; ZeRO-3 gathers a bucket at a time.

        All ranks must exhaust the iterator. A tensor of a ZeRO-3 engine is valid until the next one is taken.
        """
        if self._stage != 3:
            yield from self._module.named_parameters()
            return
        import deepspeed

        for bucket in _buckets(self._module):
            with deepspeed.zero.GatheredParameters([p for _, p in bucket]):
                for name, parameter in bucket:
                    yield name, parameter.detach().clone()

    def save(self, directory: Path, tag: str) -> None:
        """Write trained weights, optimizer and partitions of all ranks under directory/tag."""
        self._engine.save_checkpoint(str(directory), tag=tag, save_latest=False, exclude_frozen_parameters=True)

    def restore(self, directory: Path, tag: str) -> bool:
        """Read what `save` wrote with the same number of ranks; False if nothing usable is there."""
        found, _ = self._engine.load_checkpoint(str(directory), tag=tag, load_module_strict=False)
        return found is not None

    def restore_resharded(self, directory: Path, tag: str) -> bool:
        """Read what `save` wrote with another number of ranks, through DeepSpeed's universal checkpoint format.

        Without ZeRO nothing is partitioned and a checkpoint fits any number of ranks.
        """
        if self._stage == 0:
            return self.restore(directory, tag)
        universal = f"{tag}.universal"
        if torch.distributed.get_rank() == 0:
            to_universal(directory / tag, directory / universal)
        torch.distributed.barrier()
        self._engine._config.load_universal_checkpoint = (
            True  # DeepSpeed takes it from the file it was started with only
        )
        try:
            return self.restore(directory, universal)
        finally:
            self._engine._config.load_universal_checkpoint = False
            torch.distributed.barrier()
            if torch.distributed.get_rank() == 0:
                shutil.rmtree(directory / universal)


def to_universal(source: Path, target: Path) -> None:
    """Convert a ZeRO checkpoint folder, whose files belong to ranks, into one whose files belong to parameters."""
    from deepspeed.checkpoint import ds_to_universal

    shutil.rmtree(target, ignore_errors=True)  # of a conversion that was killed
    ds_to_universal.main(
        SimpleNamespace(
            input_folder=str(source),
            output_folder=str(target),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


def _buckets(module: nn.Module) -> Iterator[list[tuple[str, nn.Parameter]]]:
    bucket: list[tuple[str, nn.Parameter]] = []
    size = 0
    for name, parameter in module.named_parameters():
        bucket.append((name, parameter))
        size += int(getattr(parameter, "ds_numel", parameter.numel())) * parameter.element_size()
        if size >= GATHER_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
