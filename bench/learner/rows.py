"""The trajectories that `bench.learner` trains on. Pure numpy. They are random tokens, which share what
their starts share, and nothing of their continuations."""

import json
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt

from bench.models import DATA
from core.records import Finish, Rollout, Start, Verdict


def gsm8k_rows(count: int, vocabulary: int) -> list[Rollout]:
    """One sample of each start, as long as GSM8K's (characters / 3); every fourth is replayed from the middle."""
    with (DATA / "gsm8k" / "train.jsonl").open(encoding="utf-8") as lines:
        problems = [json.loads(line) for line in islice(lines, count)]
    lengths = [(len(problem["question"]) // 3, max(2, len(problem["answer"]) // 3)) for problem in problems]
    rng = np.random.default_rng(0)
    rows: list[Rollout] = []
    for i, (prompt, response) in enumerate(islice(cycle(lengths), count)):
        context = prompt + (response // 2 if i % 4 == 3 else 0)
        rows.append(_judged(len(rows), i, prompt, rng.integers(0, vocabulary, prompt + response), context))
    return rows


def plain_rows(count: int, vocabulary: int) -> list[Rollout]:
    """Rows of 150 to 210 tokens that share nothing, somewhat more than half of them prompt."""
    rng = np.random.default_rng(0)
    lengths = [150 + 60 * i // max(1, count - 1) for i in range(count)]
    return [_judged(i, i, n * 5 // 9, rng.integers(0, vocabulary, n), n * 5 // 9) for i, n in enumerate(lengths)]


def forked_rows(starts: int, samples: int, prefix: int, continuation: int, vocabulary: int) -> list[Rollout]:
    """`samples` continuations of every start: a prompt of half the prefix, and a replayed state of the other half."""
    rng = np.random.default_rng(0)
    rows: list[Rollout] = []
    for start in range(starts):
        shared = rng.integers(0, vocabulary, prefix)
        for _ in range(samples):
            ids = np.concatenate([shared, rng.integers(0, vocabulary, continuation)])
            rows.append(_judged(len(rows), start, prefix // 2, ids, prefix))
    return rows


def _judged(number: int, start: int, prompt: int, ids: npt.NDArray[np.int64], context: int) -> Rollout:
    """A rollout of these tokens; the context is its prompt and its replayed prefix. Every other one has a reward."""
    sequence = ids.astype(np.int32)
    tokens = sequence[context:]
    key = start if context > prompt else None
    begin = Start(f"s{start}", f"p{start}", sequence[:prompt], sequence[prompt:context], 1, start, key)
    logprobs = np.full(len(tokens), -3.0, dtype=np.float32)
    verdict = Verdict(float(number % 2), bool(number % 2))
    return Rollout(begin, 0, tokens, logprobs, np.zeros(len(tokens), np.int32), Finish.STOP, verdict=verdict)
