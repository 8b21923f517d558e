"""Generation by plain `transformers`, for machines that vLLM does not support and for breakpoints inside the model.

Chosen by `rollout.engine: hf`; `actors/engines.py` says what every engine does. It decodes a wave (a batch of samples), one token per step.
Samples of one start share the prefill of their context. Waiting samples begin when the wave has ended or the weights change. Invariant: the
KV cache of a wave was computed by the weights in use.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.jobs import Continuation, Engine, Job
from actors.vllm_setup import stop_tokens
from core.config import Device, RolloutConfig
from core.errors import ModelError, WeightError, first_line
from core.records import Finish, FloatArray, IntArray, Sampling
from core.weights import Acknowledgement, Weights, digest, unpack


@dataclass(slots=True)
class Sample:
    """One continuation that is being generated."""

    job: Job
    number: int
    context: list[int]
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Context and generated tokens."""
        return self.context + self.tokens


@dataclass(slots=True)
class Wave:
    """Samples that are decoded together: rows of one padded batch."""

    samples: list[Sample]
    logits: Tensor  # [B, V] of the next token
    mask: Tensor  # [B, L] 1 where a token was read, 0 for the padding on the left
    cache: Any


class HfEngine(Engine):
    """One `transformers` model and its samples in flight.

    Raises ModelError when the model directory cannot be used.
    """

    def __init__(
        self, model_path: str, config: RolloutConfig, *, dtype: str, device: Device, name: str = "engine"
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.name = name
        self.version = 0
        self._stop = frozenset(stop_tokens(model_path))
        self._sleeps = config.sleep
        self._max_running = config.max_running
        try:
            # in memory of its own: weights that are mapped from a file change when it is written again
            model: Any = AutoModelForCausalLM.from_pretrained(
                model_path, dtype=getattr(torch, dtype), disable_mmap=True
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"model.path = {model_path}: transformers cannot load it: {first_line(error)}") from error
        self._model = model.to(device).eval()
        self._device = torch.device(device)
        self._waiting: deque[Sample] = deque()
        self._wave: Wave | None = None
        self._done: list[Continuation] = []

    @property
    def unfinished(self) -> int:
        """Samples in flight."""
        return len(self._waiting) + (len(self._wave.samples) if self._wave else 0)

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue the samples of `jobs`; see `Engine.add`."""
        for job in jobs:
            context = job.context
            for number in job.samples:
                generator = torch.Generator(self._device).manual_seed(job.seed(number))
                self._waiting.append(Sample(job, number, context, generator))

    def rest(self) -> None:
        """If nothing is in flight, free the GPU's memory for a learner that shares it."""
        if self._sleeps and not self.unfinished:
            self._model.to("cpu")

    @torch.no_grad()
    def step(self) -> None:
        """Draw one token for every sample of the wave."""
        wave = self._wave or self._begin()
        going: list[int] = []
        drawn = draw_tokens(wave.logits, wave.samples)
        for row, (sample, (token, logprob)) in enumerate(zip(wave.samples, drawn, strict=True)):
            sample.tokens.append(token)
            sample.logprobs.append(logprob)
            sample.versions.append(self.version)
            finish = self._finish(sample)
            if finish is None:
                going.append(row)
            else:
                found = sample.tokens, sample.logprobs, sample.versions
                self._done.append(Continuation(sample.job.start.id, sample.number, *found, finish))
        self._wave = self._advance(wave, going) if going else None

    def abort(self) -> None:
        """Drop everything that is in flight."""
        self._waiting.clear()
        self._wave = None
        self._done = []

    @torch.no_grad()
    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps and prefill the samples in flight again. Raises WeightError when a parameter is missing."""
        parameters = dict(self._model.named_parameters())
        given = dict(unpack(weights))
        missing = sorted(parameters.keys() - given.keys())
        if missing:
            raise WeightError(
                f"weights of version {weights.manifest.version} lack {missing[0]} ({len(missing)} parameters)"
            )
        for name, parameter in parameters.items():
            parameter.copy_(given[name])
        self.version = weights.manifest.version
        if self._wave:
            self._waiting.extendleft(reversed(self._wave.samples))
            self._wave = None
        return Acknowledgement(self.name, self.version, digest(weights))

    @torch.no_grad()
    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2."""
        self._model.to(self._device)
        found = []
        for sequence in sequences:
            ids = torch.from_numpy(np.array(sequence, np.int64)).to(self._device)
            table = torch.log_softmax(self._model(input_ids=ids[None, :-1]).logits[0].float(), -1)
            found.append(table.gather(1, ids[1:, None])[:, 0].cpu().numpy())
        return found

    def _finish(self, sample: Sample) -> Finish | None:
        """Why a sample ends with its last token, if it does."""
        if sample.tokens[-1] in self._stop or sample.tokens[-1] in sample.job.calls:
            return Finish.STOP
        if len(sample.tokens) == sample.job.budget:
            return Finish.LENGTH
        return Finish.REPETITION if repeats(sample.tokens, sample.job.sampling) else None

    def _begin(self) -> Wave:
        """Prefill the next samples, each different context once."""
        from transformers import DynamicCache

        self._model.to(self._device)
        samples = [self._waiting.popleft() for _ in range(min(self._max_running, len(self._waiting)))]
        rows: dict[tuple[int, ...], int] = {}
        where = [rows.setdefault(tuple(sample.ids), len(rows)) for sample in samples]
        length = max(map(len, rows))
        ids = torch.tensor([[0] * (length - len(row)) + list(row) for row in rows], device=self._device)
        mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows], device=self._device)
        output = self._read(ids, mask, DynamicCache(config=self._model.config))
        index = torch.tensor(where, device=self._device)
        output.past_key_values.batch_select_indices(index)
        return Wave(samples, output.logits[index, -1].float(), mask[index], output.past_key_values)

    def _advance(self, wave: Wave, going: list[int]) -> Wave:
        """Read the newest token of the samples that continue."""
        samples = [wave.samples[row] for row in going]
        mask = wave.mask
        if len(going) < len(wave.samples):
            index = torch.tensor(going, device=self._device)
            wave.cache.batch_select_indices(index)
            mask = mask[index]
        mask = torch.cat([mask, mask.new_ones(len(going), 1)], 1)
        newest = torch.tensor([[sample.tokens[-1]] for sample in samples], device=self._device)
        output = self._read(newest, mask, wave.cache)
        return Wave(samples, output.logits[:, -1].float(), mask, output.past_key_values)

    def _read(self, ids: Tensor, mask: Tensor, cache: Any) -> Any:
        """Read tokens [B, T] at the end of `mask` [B, L]; positions are counted without the padding."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )


def repeats(tokens: Sequence[int], sampling: Sampling) -> bool:
    """Whether the end repeats a pattern of at most `repetition_tokens` tokens `repetition_times` times, as vLLM's detector decides it."""
    times = sampling.repetition_times
    for size in range(1, min(sampling.repetition_tokens, len(tokens) // times) + 1):
        if all(tokens[-n] == tokens[-n - size] for n in range(1, size * (times - 1) + 1)):
            return True
    return False


def draw_tokens(logits: Tensor, samples: Sequence[Sample]) -> list[tuple[int, float]]:
    """A token and its log-probability for every row [B, V]: from softmax(logits / temperature) cut to `top_p`.

    The largest of p / e, with e exponential, is a draw from p (exponential race); every sample has its own generator. With temperature 0 it
    is the most likely token, with its log-probability at temperature 1.
    """
    from transformers import TopPLogitsWarper

    found: dict[int, tuple[int, float]] = {}
    rows: dict[Sampling, list[int]] = {}
    for row, sample in enumerate(samples):
        rows.setdefault(sample.job.sampling, []).append(row)
    for sampling, members in rows.items():
        part = logits[members]
        if sampling.temperature:
            part = part / sampling.temperature
            if sampling.top_p < 1:
                part = TopPLogitsWarper(sampling.top_p)(torch.empty(0), part)  # type: ignore[arg-type]
            noise = [torch.empty_like(part[0]).exponential_(generator=samples[row].generator) for row in members]
            tokens = (part - torch.stack(noise).log()).argmax(-1)
        else:
            tokens = part.argmax(-1)
        chosen = torch.log_softmax(part, -1).gather(1, tokens[:, None])[:, 0]
        found |= dict(zip(members, zip(tokens.tolist(), chosen.tolist(), strict=True), strict=True))
    return [found[row] for row in range(len(samples))]
