"""Supervised warm-start of a small model in plain torch: next-token loss on solved problems, AdamW, cosine schedule.
Invariant: the same model, examples and settings give the same weights (on the same machine and number of threads)."""

import itertools
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from tasks.problems import Tokenizer
from tasks.synthetic.corpus import Corpus, Example, StarterSettings

IGNORED = -100
SAVE_EVERY = 100  # steps between two writes of the state: a few megabytes each, and at most seconds of work lost


def warm_start(
    model: Any, corpus: Corpus, tokenizer: Tokenizer, settings: StarterSettings, label: str, partial: Path
) -> None:
    """Train `model` in place for `settings.steps` optimizer steps. The state is written to `partial` every SAVE_EVERY
    steps; a call that finds it there continues from it, with the same result."""
    steps, examples = settings.steps, corpus.examples(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, steps // 20)
    losses: list[float] = []
    if partial.exists():
        saved = torch.load(partial)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        losses = saved["losses"]
    begun, done = time.monotonic(), len(losses)
    model.train()
    todo = itertools.islice(batches(examples, settings.batch_size, corpus.pool), done, steps)
    for step, batch in enumerate(todo, start=done):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        inputs, targets = tensors(batch, tokenizer.pad_token_id)
        logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.item()))
        if (step + 1) % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            torch.save(state, temporary := partial.with_suffix(f".{os.getpid()}.tmp"))  # another run may build it, too
            temporary.replace(partial)
        seconds = time.monotonic() - begun
        _progress(label, step + 1, steps, losses[-1], seconds, seconds / (step + 1 - done) * (steps - step - 1))
    model.eval()


def batches(examples: Iterator[Example], batch_size: int, pool: int) -> Iterator[list[Example]]:
    """Batches in a shuffled (fixed) order; examples for `pool` batches are sorted by length and then cut. A large pool
    needs little padding but separates long examples, which hurts where lengths are few (measured on arithmetic)."""
    rng = np.random.default_rng(0)
    while True:
        drawn = sorted(itertools.islice(examples, pool * batch_size), key=lambda example: len(example.ids))
        for i in rng.permutation(pool):
            yield drawn[i * batch_size : (i + 1) * batch_size]


def tensors(batch: list[Example], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, T] inputs, padded on the right, and [B, T] targets, ignored where there is no loss."""
    inputs = [torch.tensor(example.ids) for example in batch]
    targets = [torch.tensor([IGNORED] * each.loss_from + each.ids[each.loss_from :]) for each in batch]
    return pad_sequence(inputs, True, pad_id), pad_sequence(targets, True, IGNORED)


def _progress(label: str, step: int, steps: int, loss: float, seconds: float, left: float) -> None:
    """One updating line on a terminal, ten lines elsewhere."""
    live = sys.stderr.isatty()
    if step == steps or (step % 5 == 0 if live else step % max(1, steps // 10) == 0):
        text = f"warm-start of the {label}: step {step}/{steps}, loss {loss:.3f}, {seconds:.0f} s, {left:.0f} s left   "
        print(text, end="\r" if live and step < steps else "\n", file=sys.stderr, flush=True)
