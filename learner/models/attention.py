"""Attention over lines of prefix trees: a token sees its ancestors and itself, as in each of its rows. On CPU torch
reads the branches, each with its path from the root; on GPUs FlexAttention the line under a block mask."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward

from learner.packing.micro_batches import MicroBatch
from learner.packing.trees import IndexArray, branches, subtree_ends

TREE = "prefix_trees"  # the name under which transformers finds the attention of this module
SCORES = 2**22  # attention scores at once (bfloat16: 8 MB), or those of one row


@dataclass(frozen=True, slots=True)
class Line:
    """A `MicroBatch` on a device."""

    tokens: Tensor  # [T]
    depths: Tensor  # [T]
    attention: "Attention"
    state_index: Tensor  # [M]
    targets: Tensor  # [M]
    copies: Tensor  # [N]


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A tensor on the device; copied, because arrays from the object store are read-only."""
    return torch.from_numpy(array.copy()).to(device, non_blocking=True)


def line_on(batch: MicroBatch, device: torch.device) -> Line:
    """The line as a model reads it on this device."""
    columns = (batch.tokens, batch.depths, batch.state_index, batch.targets, batch.copies)
    tokens, depths, states, targets, copies = (to_device(column, device) for column in columns)
    attention = BranchAttention(batch.depths) if device.type == "cpu" else BlockAttention(batch.depths, device)
    return Line(tokens, depths, attention, states, targets, copies)


@dataclass(frozen=True, slots=True)
class _Branches:
    """Branches of like length, filled up with the line's first token: [R, L] tokens, each of which sees some of [R, P]."""

    own: Tensor  # [R, L] places of their tokens in the line
    path: Tensor  # [R, P] places of the tokens from the root on
    depths: Tensor  # [R, L] of their tokens; -1 where filled up
    from_root: bool  # they begin at a root, so that L = P

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """[R, 1, L, P] what is added to the scores; None where a causal mask does it."""
        places = torch.arange(self.path.shape[1])
        if self.from_root and (window is None or len(places) <= window):
            return None
        last = self.depths.clamp(min=0)[:, :, None]
        visible = places <= last
        if window is not None:
            visible &= places > last - window
        return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)[:, None]


class BranchAttention:
    """On CPU. Gathers queries of branches and keys and values of their paths, branches of like length at once."""

    def __init__(self, depths: IndexArray) -> None:
        alike: defaultdict[tuple[bool, int, int], list[tuple[IndexArray, IndexArray]]] = defaultdict(list)
        for own, path in branches(depths):
            alike[len(own) == len(path), len(own).bit_length(), len(path).bit_length()].append((own, path))
        self._groups = [_filled_up(group, depths) for group in alike.values()]
        back, offset = torch.zeros(len(depths), dtype=torch.int64), 0
        for group in self._groups:
            real = (group.depths >= 0).flatten()
            back[group.own.flatten()[real]] = offset + real.nonzero()[:, 0]
            offset += len(real)
        self._back = back  # [T] where each token is in the results of all groups
        self._masks: dict[tuple[int | None, torch.dtype], list[Tensor | None]] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """query [1, heads, T, D], key and value [1, key-value heads, T, D] -> [1, T, heads, D]. `window`: most tokens
        of its row that a token sees, itself included; None: all before it."""
        heads, size = query.shape[1], query.shape[3]
        lines = [tensor[0].transpose(0, 1).flatten(1) for tensor in (query, key, value)]  # [T, heads x D]
        if (window, query.dtype) not in self._masks:  # one for all layers
            self._masks[window, query.dtype] = [group.mask(window, query.dtype) for group in self._groups]
        results = []
        for group, mask in zip(self._groups, self._masks[window, query.dtype], strict=True):
            read = zip((group.own, group.path, group.path), lines, strict=True)
            q, k, v = (F.embedding(index, line).unflatten(2, (-1, size)).transpose(1, 2) for index, line in read)
            results.append(_attended(q, k, v, mask, scale).transpose(1, 2).flatten(0, 1).flatten(1))
        return F.embedding(self._back, torch.cat(results)).view(1, -1, heads, size)


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Scaled dot-product attention [R, heads, L, D]; a `mask` of None is a causal one. In bfloat16 by matrix products:
    torch's kernel takes 2 to 3 times as long for rows of 180 tokens, and as long for 2048. The backward pass computes the
    scores again, so that layers do not keep them."""
    if query.dtype is not torch.bfloat16:
        gqa = key.shape[1] != query.shape[1]
        return F.scaled_dot_product_attention(query, key, value, mask, 0.0, mask is None, scale=scale, enable_gqa=gqa)
    (rows, heads, length, size), reach = query.shape, key.shape[2]
    if mask is None:
        mask = torch.full((length, reach), -torch.inf, dtype=query.dtype).triu_(1).expand(rows, 1, length, reach)
    at_once = max(1, SCORES // (heads * length * reach))
    parts = zip(*(tensor.split(at_once) for tensor in (query, key, value, mask)), strict=True)
    scale = size**-0.5 if scale is None else scale
    return torch.cat([checkpoint(_products, *part, scale, use_reentrant=False) for part in parts])


def _products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    keys, values = key.flatten(0, 1), value.flatten(0, 1)  # [R x key-value heads, P, D]
    queries = query.reshape(len(keys), -1, query.shape[3])  # of all heads that read the same keys
    added = mask.expand(-1, query.shape[1], -1, -1).reshape(len(keys), -1, key.shape[2])
    weights = torch.baddbmm(added, queries, keys.mT, alpha=scale).softmax(-1)
    return torch.bmm(weights, values).view(query.shape)


def _filled_up(group: list[tuple[IndexArray, IndexArray]], depths: IndexArray) -> _Branches:
    length, reach = (max(len(pair[number]) for pair in group) for number in range(2))
    own, path = np.zeros((len(group), length), dtype=np.int64), np.zeros((len(group), reach), dtype=np.int64)
    own_depths = np.full((len(group), length), -1, dtype=np.int64)
    for row, (places, whole) in enumerate(group):
        own[row, : len(places)], path[row, : len(whole)] = places, whole
        own_depths[row, : len(places)] = depths[places]
    from_root = len(group[0][0]) == len(group[0][1])
    return _Branches(torch.from_numpy(own), torch.from_numpy(path), torch.from_numpy(own_depths), from_root)


class BlockAttention:
    """On GPUs. FlexAttention over the line; it skips the blocks in which no token is an ancestor of another."""

    def __init__(self, depths: IndexArray, device: torch.device) -> None:
        self._depths, self._ends = to_device(depths, device), to_device(subtree_ends(depths), device)
        self._masks: dict[int | None, BlockMask] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attention [heads, tokens, width] of one layer."""
        if window not in self._masks:  # one for all layers
            self._masks[window] = self._mask(window)
        module = torch.nn.Module()  # transformers' function takes one and does not read it
        out: Tensor = flex_attention_forward(module, query, key, value, self._masks[window], scaling=scale)[0]
        return out

    def _mask(self, window: int | None) -> BlockMask:
        depths, ends, size = self._depths, self._ends, len(self._depths)

        def _sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
            ancestor = (key <= query) & (query < ends[key])
            return ancestor if window is None else ancestor & (depths[query] - depths[key] < window)

        return create_block_mask(_sees, None, None, size, size, depths.device, _compile=depths.device.type == "cuda")


Attention = BranchAttention | BlockAttention


def _attention(
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,  # noqa: ARG001 (some models pass it by name)
    *,
    tree: Attention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What a layer of transformers calls."""
    if more.get("softcap") is not None or more.get("s_aux") is not None:
        raise ValueError("attention over prefix trees has no soft cap and no sinks; choose another model")
    if tree is None:
        raise ValueError("the model's layers do not tell their attention of prefix trees; choose another model")
    return tree(query, key, value, scaling, sliding_window), None


AttentionInterface.register(TREE, _attention)
