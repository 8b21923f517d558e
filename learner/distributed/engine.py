"""One model in one DeepSpeed engine: accumulate gradients, step or skip, save, restore. DeepSpeed is imported inside
functions: its environment must be set first. Invariants: a NaN or Inf in a loss or gradient on any rank makes the step
change nothing on all; the caller weights tokens over all ranks; any number of backward passes precede a step."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from core.config import LearnerConfig
from core.weights import NamedTensor

ADAM_BETA1 = 0.9  # AdamW's decay of the mean gradient
BUCKET = 2**25
"""Weights whose gradients ZeRO reduces at once. Its default, 5e8, copies all gradients of a small model into one buffer
first: 5 bytes per weight more memory, and a backward pass of 71 M weights in bf16 spends 0.17 s there, not 0.12 s."""


def join_ranks(store: TCPStore, rank: int, ranks: int, device: str, timeout: float) -> None:
    """Enter DeepSpeed's process group (gloo or nccl) at `store`, or keep one of this size (earlier learner, vLLM)."""
    # DeepSpeed's autotuner would import mlflow: two seconds of every rank. None in its place makes that import fail.
    hidden = sys.modules.setdefault("mlflow", None) is None  # type: ignore[arg-type]
    import deepspeed

    if hidden:
        del sys.modules["mlflow"]
    # No operator is compiled: on CPU `init_distributed` would compile one for a minute, that only tensor-parallel inference uses.
    deepspeed.ops.__compatible_ops__ = {}
    backend, limit = "nccl" if device == "cuda" else "gloo", timedelta(seconds=timeout)
    if not (torch.distributed.is_initialized() and torch.distributed.get_world_size() == ranks):
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False, timeout=limit)


def _always() -> bool:
    return True


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that asks for consent before it steps. ZeRO's optimizers call it per group, once all ranks' gradients are
    finite; without consent neither weights nor moments change. At stage 0 (fp32) DeepSpeed does not check:
    `max_grad_norm` is given, this clips and skips, and the engine reads `overflow` and `_global_grad_norm` here."""

    def __init__(self, params: Iterable[dict[str, Any]], max_grad_norm: float | None = None, **options: Any) -> None:
        super().__init__(params, **options)
        self.consent: Callable[[], bool] = _always
        self.idle: list[dict[str, Any]] = []  # groups without gradients; a step changes none of their moments
        self.overflow = False
        self._global_grad_norm = 0.0
        self._max_grad_norm = max_grad_norm

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step if the gradients are finite and `consent`, which is then called, returns True."""
        if self._max_grad_norm is not None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
            self._global_grad_norm = float(norm)
            self.overflow = not bool(torch.isfinite(norm))
        if not self.overflow and self.consent():
            groups = self.param_groups
            self.param_groups = [group for group in groups if not self._rests(group)]
            super().step(closure)
            self.param_groups = groups

    def _rests(self, group: dict[str, Any]) -> bool:
        """Whether a group is left out of a step. One without moments is not: DeepSpeed reads them after its first step."""
        return any(group is one for one in self.idle) and all(p in self.state for p in group["params"])


def engine_config(options: LearnerConfig, dtype: torch.dtype) -> dict[str, Any]:
    """DeepSpeed's configuration. Gradients are accumulated in fp32 whatever the type of the weights. bf16 needs the
    fp32 master weights of a ZeRO optimizer, and stage 1 has a separate one for fp32 gradients, which neither offloads
    nor checks for overflow in the same way. So stages 0 and 1 run as 2 there."""
    bf16 = dtype is torch.bfloat16
    stage = max(2, options.zero_stage) if bf16 else options.zero_stage
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "reduce_bucket_size": BUCKET}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": bf16, "check_grad_overflow": True} if bf16 else {"enabled": False},
        "data_types": {"grad_accum_dtype": "fp32"},
        "gradient_clipping": 0.0 if stage == 0 else options.max_grad_norm,
        "steps_per_print": 10**9,
    }


class TrainEngine:
    """A module, its AdamW and its gradients over all ranks."""

    def __init__(
        self, module: nn.Module, groups: Sequence[Sequence[nn.Parameter]], options: LearnerConfig, dtype: torch.dtype
    ) -> None:
        """Put the module, on any device, into a DeepSpeed engine. `groups`: parameters that share a learning rate; frozen ones are left out."""
        import deepspeed

        config = engine_config(options, dtype)
        trained = [{"params": [p for p in group if p.requires_grad]} for group in groups]
        adam: dict[str, Any] = {"lr": 0.0, "weight_decay": 0.0, "fused": True}
        adam |= {"betas": (ADAM_BETA1, options.adam_beta2), "eps": options.adam_epsilon}
        self._stage = int(config["zero_optimization"]["stage"])
        self._optimizer = GuardedAdamW(trained, None if self._stage else options.max_grad_norm, **adam)
        self._engine, *_ = deepspeed.initialize(
            model=module, optimizer=self._optimizer, config=config, dist_init_required=False
        )
        self._module = module
        self._ranks = torch.distributed.get_world_size()
        # Stage 0 copies all gradients into a buffer and back to reduce them; one rank has nothing to reduce.
        self._engine.enable_backward_allreduce = self._stage > 0 or self._ranks > 1

    @property
    def device(self) -> torch.device:
        """The device that inputs must be on."""
        return torch.device(self._engine.device)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Forward pass."""
        return self._engine(*args, **options)

    def backward(self, loss: Tensor, outputs: Tensor) -> None:
        """Add the gradients of `loss`, this rank's part of a global mean (DeepSpeed averages, hence the factor). A
        non-finite loss becomes one whose gradients are NaN at `outputs` (PPO's clipping could turn them into zeros);
        then the check of the global norm skips the step on every rank."""
        loss = loss * self._ranks if bool(torch.isfinite(loss)) else outputs.sum() * torch.nan
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, rates: Sequence[float | None], consent: Callable[[], bool] = _always) -> tuple[float, bool]:
        """Apply the accumulated gradients: (gradient norm before clipping, whether applied). `rates`: of each group;
        None: it has no gradients, and neither weights, moments nor step count change, so bias correction begins with
        its first one. `consent`: called once, with finite gradients and before any weight changes; False: nothing
        changes. It must return the same on every rank, and may use another engine."""
        groups = self._engine.optimizer.param_groups
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate or 0.0
        self._optimizer.idle = [group for group, rate in zip(groups, rates, strict=True) if rate is None]
        before = [id(state) for state in self._idle_states(rates)]
        answers: list[bool] = []

        def _once() -> bool:
            if not answers:
                answers.append(consent())
            return answers[0]

        self._optimizer.consent = _once
        self._engine.step()
        self._optimizer.consent = _always
        for state in self._idle_states(rates):
            if id(state) not in before:  # made by this step
                state["step"].zero_()
        return float(self._engine.get_global_grad_norm()), bool(self._engine.was_step_applied()) and all(answers)

    def _idle_states(self, rates: Sequence[float | None]) -> list[dict[str, Tensor]]:
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
        """Whole parameters by their name in the module, tied ones once. All ranks must iterate to the end: ZeRO-3 gathers them."""
        if self._stage != 3:
            yield from self._module.named_parameters()
            return
        import deepspeed

        for name, parameter in self._module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                whole = parameter.detach().clone()
            yield name, whole

    def save(self, directory: Path, tag: str) -> None:
        """Write trained weights, optimizer and partitions of all ranks under directory/tag."""
        self._engine.save_checkpoint(str(directory), tag=tag, save_latest=False, exclude_frozen_parameters=True)

    def restore(self, directory: Path, tag: str, same_ranks: bool = True) -> bool:
        """Read what `save` wrote; False if unusable. Another number of ranks reads DeepSpeed's universal format."""
        if same_ranks or self._stage == 0:
            found, _ = self._engine.load_checkpoint(str(directory), tag=tag, load_module_strict=False)
            return found is not None
        universal = f"{tag}.universal"
        if torch.distributed.get_rank() == 0:
            _to_universal(directory / tag, directory / universal)
        torch.distributed.barrier()
        config = self._engine._config  # `load_checkpoint` has no argument for this option
        config.load_universal_checkpoint = True
        try:
            return self.restore(directory, universal)
        finally:
            config.load_universal_checkpoint = False
            torch.distributed.barrier()
            if torch.distributed.get_rank() == 0:
                shutil.rmtree(directory / universal)


def _to_universal(source: Path, target: Path) -> None:
    """Convert a ZeRO checkpoint folder with one file per rank into one with one file per parameter."""
    from deepspeed.checkpoint import ds_to_universal

    shutil.rmtree(target, ignore_errors=True)  # left by a conversion that was killed
    folders = {"input_folder": str(source), "output_folder": str(target), "keep_temp_folder": False}
    workers = {"num_extract_workers": 1, "num_merge_workers": 1}
    ds_to_universal.main(SimpleNamespace(**folders, **workers, strict=True, inject_missing_state=True))
