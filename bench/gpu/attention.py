"""FlexAttention over prefix trees on the GPU against the branches of the CPU: `python -m bench.gpu.attention`."""

import time

import numpy as np
import torch

from learner.models.attention import BlockAttention, line_on
from learner.packing.micro_batches import Row, micro_batch

CASES = [(dtype, window) for dtype in (torch.float32, torch.bfloat16) for window in (None, 64)]
MOST = 2e-2  # relative error: float32 is computed as TF32, and bfloat16 has 8 bits


def errors(dtype: torch.dtype, window: int | None) -> list[float]:
    """Relative errors of the output and of the gradients of queries, keys and values; 4 rows of 220 tokens share their
    first 150."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, 64, 150).astype(np.int32)
    rows = [Row(np.concatenate([prefix, rng.integers(0, 64, 70).astype(np.int32)]), 150) for _ in range(4)]
    batch = micro_batch(rows)
    line, size = line_on(batch, torch.device("cpu")), len(batch.tokens)
    query, key, value = tensors = [torch.randn(1, heads, size, 64, requires_grad=True) for heads in (4, 2, 2)]
    on_gpu = [tensor.detach().to("cuda", dtype).requires_grad_() for tensor in tensors]
    expected = line.attention(query, key, value, 0.125, window)
    found = BlockAttention(batch.depths, torch.device("cuda"))(on_gpu[0], on_gpu[1], on_gpu[2], 0.125, window)
    theirs = [expected, *torch.autograd.grad(expected.square().sum(), tensors)]
    ours = [found, *torch.autograd.grad(found.float().square().sum(), on_gpu)]
    pairs = zip(ours, theirs, strict=True)
    return [float((own.float().cpu() - exact).norm() / exact.norm()) for own, exact in pairs]


def main() -> None:
    """Print the largest error of every case. Ends with status 1 if one is too large."""
    found = []
    for dtype, window in CASES:
        begun = time.perf_counter()
        found.append(max(errors(dtype, window)))
        seconds = time.perf_counter() - begun
        print(f"{str(dtype).removeprefix('torch.')}, window {window}: {found[-1]:.1e}, {seconds:.0f} s", flush=True)
    if not max(found) < MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
