"""The trajectories that `bench.learner` trains on. Pure numpy.

All but the demo's are random tokens: they share what their starts share, and nothing of their continuations.
"""

import json
import operator
import os
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.records import Finish, Judged, Start, Trajectory, Verdict
from tasks.synthetic.arithmetic import ARITHMETIC, MODULUS, steps

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
DATA = Path(os.environ.get("RETROSPECT_DATA", SHARED if SHARED.is_dir() else ROOT / "tests" / "data"))

RULES = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def gsm8k_rows(count: int, vocabulary: int) -> list[Judged]:
    """One sample of each start, as long as GSM8K's problems and solutions (characters / 3); every fourth is replayed from the middle
    of its solution."""
    with (DATA / "gsm8k" / "train.jsonl").open(encoding="utf-8") as lines:
        problems = [json.loads(line) for line in islice(lines, count)]
    lengths = [(len(problem["question"]) // 3, max(2, len(problem["answer"]) // 3)) for problem in problems]
    rng = np.random.default_rng(0)
    rows: list[Judged] = []
    for i, (prompt, response) in enumerate(islice(cycle(lengths), count)):
        context = prompt + (response // 2 if i % 4 == 3 else 0)
        rows.append(_judged(len(rows), i, prompt, rng.integers(0, vocabulary, prompt + response), context))
    return rows


def forked_rows(starts: int, samples: int, prefix: int, continuation: int, vocabulary: int) -> list[Judged]:
    """`samples` continuations of every start, from a prompt of half the prefix and a replayed state of the other half."""
    rng = np.random.default_rng(0)
    rows: list[Judged] = []
    for start in range(starts):
        shared = rng.integers(0, vocabulary, prefix)
        for _ in range(samples):
            ids = np.concatenate([shared, rng.integers(0, vocabulary, continuation)])
            rows.append(_judged(len(rows), start, prefix // 2, ids, prefix))
    return rows


def demo_rows(starts: int, samples: int) -> list[Judged]:
    """The demo's problems and samples, half of the starts replayed, by a solver that makes a mistake in one step of ten."""
    rng = np.random.default_rng(0)
    rows: list[Judged] = []
    for start in range(starts):
        expression = ARITHMETIC.draw(rng, 3 + start % 6)
        prompt = f"{expression}{ARITHMETIC.ending}"
        prefix = ""
        if start % 2:  # a state behind some of its lines
            lines = _solution(expression, rng).splitlines(keepends=True)
            prefix = "".join(lines[: rng.integers(1, len(lines))])
        for _ in range(samples):
            response = _solution(expression, rng, prefix)
            ids = [ARITHMETIC.alphabet.index(letter) for letter in prompt + response]
            rows.append(
                _judged(len(rows), start, len(prompt), np.array(ids, dtype=np.int64), len(prompt) + len(prefix))
            )
    return rows


def _solution(expression: str, rng: np.random.Generator, prefix: str = "") -> str:
    """`prefix` and what the solver writes after it; a wrong result is carried on."""
    done = prefix.splitlines()
    written, value = prefix, int(done[-1].split("=")[1]) if done else int(expression[0])
    for operation, _ in steps(expression)[len(done) :]:
        value = RULES[operation[0]](value, int(operation[1])) % MODULUS
        if rng.random() < 0.1:
            value = int(rng.integers(0, MODULUS))
        written += f"{operation}={value}\n"
    return f"{written}#{value}\n"


def _judged(number: int, start: int, prompt: int, ids: npt.NDArray[np.int64], context: int) -> Judged:
    """A trajectory of these tokens; the context is its prompt and its replayed prefix. Every other one has a reward."""
    sequence = ids.astype(np.int32)
    tokens = sequence[context:]
    begin = Start(
        f"s{start}",
        f"p{start}",
        sequence[:prompt],
        sequence[prompt:context],
        1,
        start,
        start if context > prompt else None,
    )
    logprobs = np.full(len(tokens), -3.0, dtype=np.float32)
    trajectory = Trajectory(begin, 0, tokens, logprobs, np.zeros(len(tokens), dtype=np.int32), Finish.STOP)
    return Judged(trajectory, Verdict(float(number % 2), bool(number % 2)))
