"""Whether a long run with random faults loses or doubles a trajectory: `python -m bench.soak [--quick]`.

Two engines generate for an asynchronous pipeline whose "learner" only sends new weights. Again and again an engine is killed
or stopped while it works (sometimes both); every start must be trained on once, whole, and by tokens that are young enough.
`tests/test_soak.py` runs the short version.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actors.stream import Finished, RolloutStream
from bench.report import check, write
from core.config import RolloutConfig
from core.records import Start
from core.sampling import Sampling
from core.seeds import derive
from core.weights import Weights, pack
from trainer.asynchronous import Pipeline

if TYPE_CHECKING:
    from actors.pool import RolloutPool

VOCABULARY, PROMPT, RESPONSE = 300, 10, 40
STARTS, SAMPLES, STALENESS = 16, 2, 2
CONFIG = RolloutConfig(
    actors=2,
    max_prompt_tokens=PROMPT,
    max_response_tokens=RESPONSE,
    max_running=16,  # less than is open: there is a queue
    tokens_in_flight=1000,
    kv_cache_gib=0.05,
    threads=1,
    deadline=15.0,
    max_restarts=1000,
)
FAULTS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class Result:
    """What was counted."""

    submitted: int  # starts
    lost: int  # starts that never came
    doubled: int  # starts that came more than once
    incomplete: int  # starts with another number of samples than asked for
    oldest: int  # versions that a token was behind, at most
    mixed: int  # trajectories that went on with newer weights
    faults: int  # engines killed or stopped
    restarts: int
    seconds: float


class CountingStream(RolloutStream):
    """Counts the starts that it hands out: of two under one id the pipeline would know one."""

    def __init__(self, pool: "RolloutPool") -> None:
        super().__init__(pool)
        self.handed: Counter[str] = Counter()

    def finished(self) -> list[Finished]:
        """As `RolloutStream.finished`."""
        found = super().finished()
        self.handed.update(start_id for start_id, _ in found)
        return found


def build_model(directory: Path) -> Weights:
    """Save a tiny random Qwen2 and return its weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=True,
        eos_token_id=1,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(directory)
    return pack(model.named_parameters(), 0)


def choose(number: int) -> list[Start]:
    """The starts of batch `number`: random contexts, every second with a prefix."""
    random_numbers = np.random.default_rng(number)
    rows = random_numbers.integers(2, VOCABULARY, (STARTS, PROMPT + 8), dtype=np.int32)
    return [
        Start(
            f"{number}.{i}",
            f"problem {i}",
            row[:PROMPT],
            row[PROMPT : PROMPT + 8 * (i % 2)],
            SAMPLES,
            derive(number, i),
        )
        for i, row in enumerate(rows)
    ]


def strike(pool: "RolloutPool", dice: random.Random) -> int:
    """Kill or stop one engine, or all; returns how many."""
    pids = pool.pids()
    victims = pids if dice.random() < 0.1 else dice.sample(pids, min(1, len(pids)))
    for pid in victims:
        with suppress(ProcessLookupError):  # it is being replaced
            os.kill(pid, dice.choice(FAULTS))
    return len(victims)


def soak(
    model: Path, weights: Weights, iterations: int, share: float, seed: int, deadline: float = CONFIG.deadline
) -> Result:
    """Run `iterations`; in about `share` of them engines are struck. Ray must be connected."""
    import ray

    from actors.pool import RolloutPool

    dice, begun = random.Random(seed), time.monotonic()
    config = CONFIG.model_copy(update={"deadline": deadline})
    pool = RolloutPool(str(model), config, dtype="float32", device="cpu", seed=0, cpus=0.5)
    sampling = Sampling(1.0, 1.0, RESPONSE)
    seen: Counter[str] = Counter()
    oldest = mixed = faults = 0
    try:
        with closing(CountingStream(pool)) as stream:
            pipeline = Pipeline(stream, sampling, starts=STARTS, max_staleness=STALENESS, iterations=iterations)
            for number in range(1, iterations + 1):
                pipeline.feed(choose, number, number - 1)
                faults += strike(pool, dice) if dice.random() < share else 0
                for one in pipeline.take(number - 1):
                    seen[one.start.id] += 1
                    oldest = max(oldest, number - 1 - int(one.versions.min()))
                    mixed += bool(np.ptp(one.versions))
                stream.load_weights(ray.put(renamed(weights, number)))
    finally:
        pool.close()
    return summarise(seen, stream.handed, iterations, oldest, mixed, faults, pool.restarts, time.monotonic() - begun)


def renamed(weights: Weights, version: int) -> Weights:
    """The same weights as another version."""
    return replace(weights, manifest=replace(weights.manifest, version=version))


def summarise(
    seen: Counter[str],
    handed: Counter[str],
    iterations: int,
    oldest: int,
    mixed: int,
    faults: int,
    restarts: int,
    seconds: float,
) -> Result:
    """Compare the samples `seen` per start, and how often each was `handed` out, with what was asked for."""
    asked = {start.id for number in range(1, iterations + 1) for start in choose(number)}
    return Result(
        submitted=len(asked),
        lost=len(asked - seen.keys()),
        doubled=sum(seen[start] > SAMPLES or handed[start] > 1 for start in asked) + len(handed.keys() - asked),
        incomplete=sum(count < SAMPLES for count in seen.values()),
        oldest=oldest,
        mixed=mixed,
        faults=faults,
        restarts=restarts,
        seconds=seconds,
    )


def main(quick: bool) -> None:
    """Soak and write bench/results/soak.json."""
    import ray

    iterations, share = (12, 0.25) if quick else (200, 0.12)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        weights = build_model(Path(folder))
        result = soak(Path(folder), weights, iterations, share, seed=1)
    ray.shutdown()
    checks = [
        check("starts lost", result.lost, "starts", "<=", 0),
        check("starts trained on twice", result.doubled, "starts", "<=", 0),
        check("starts without all their samples", result.incomplete, "starts", "<=", 0),
        check("oldest token", result.oldest, "versions", "<=", STALENESS),
        check("starts", result.submitted, "starts"),
        check("trajectories that went on with newer weights", result.mixed, "trajectories"),
        check("engines killed or stopped", result.faults, "engines"),
        check("restarts", result.restarts, "engines"),
        check("duration", result.seconds, "s"),
    ]
    settings: dict[str, str | int | float] = {
        "iterations": iterations,
        "starts per iteration": STARTS,
        "samples": SAMPLES,
        "max_staleness": STALENESS,
    }
    write("soak", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
