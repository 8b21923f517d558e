"""How many trajectories the driver's side of generation can handle: `python -m bench.controller [--quick]`.

The real pool and ledger deal out starts to 1,000 simulated engines, through Ray as always; only behind the calls there is one
process that sleeps for a drawn delay and returns what was asked for, finished. The delays leave the engines idle most of the
time, so that the driver is what is measured. Reported: trajectories per second (median of rounds), the growth of the driver's
memory over the rounds, and where its time goes (cProfile of one more round).
"""

import asyncio
import cProfile
import pstats
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from actors.actor import Process, StepResult
from actors.handle import EngineRecipe
from actors.jobs import Continuation, Job
from actors.pool import RolloutPool
from bench.report import Check, check, median, write
from core.config import RolloutConfig
from core.records import Finish, Start
from core.sampling import Sampling
from core.weights import Acknowledgement

ENGINES = 1000
TOKENS = 16  # per continuation
DELAY = (0.05, 0.25)  # seconds of a request
GOAL = 20_000.0
GROWTH = 0.02
SAMPLING = Sampling(1.0, 1.0, TOKENS)


class Engines:
    """What stands behind all simulated actors: an async Ray actor."""

    async def process(self) -> Process:
        """One process for all, which no failure of one may kill: it is given as that of another node."""
        return Process(0, "simulated", "")

    async def start(self) -> None:
        """At once."""

    async def generate(self, jobs: list[Job], _seconds: float, _refill: int) -> StepResult:
        """All samples, finished, after a while."""
        await asyncio.sleep(random.uniform(*DELAY))
        tokens, logprobs = [1] * TOKENS, [0.0] * TOKENS
        found = [
            Continuation(job.start.id, sample, tokens, logprobs, tokens, Finish.LENGTH)
            for job in jobs
            for sample in job.samples
        ]
        return StepResult(found, 0)

    async def load_weights(self, version: int, _members: Sequence[Process] = ()) -> Acknowledgement:
        """Nothing to load."""
        return Acknowledgement("simulated", version, "")


@dataclass(frozen=True, slots=True)
class SimulatedRecipe(EngineRecipe):
    """Every engine is the same process."""

    def create(self, name: str) -> Any:  # noqa: ARG002 (all names share one process)
        """The handle of that process."""
        import ray

        options = {"name": "engines", "get_if_exists": True, "num_cpus": 0, "max_concurrency": 2 * ENGINES}
        return ray.remote(Engines).options(**options).remote()

    def start(self, actor: Any) -> Any:
        """The reference of its answer."""
        return actor.start.remote()


def starts_of(count: int, samples: int, turn: int) -> list[Start]:
    """Starts with short prompts."""
    prompt, prefix = np.ones(8, np.int32), np.empty(0, np.int32)
    return [Start(f"{turn}-{i}", f"problem-{i}", prompt, prefix, samples, seed=i) for i in range(count)]


def one_round(pool: RolloutPool, starts: Sequence[Start]) -> float:
    """Trajectories per second of one call."""
    begun = time.perf_counter()
    found = pool.generate(starts, SAMPLING)
    return len(found) / (time.perf_counter() - begun)


def measure(pool: RolloutPool, rounds: int, count: int, samples: int) -> tuple[list[Check], str]:
    """Rounds, memory, and the profile as text."""
    process = psutil.Process()
    rates, sizes = [], []
    for turn in range(rounds):
        rates.append(one_round(pool, starts_of(count, samples, turn)))
        sizes.append(process.memory_info().rss / 2**20)
    profile = cProfile.Profile()
    starts = starts_of(count, samples, rounds)
    profile.enable()
    one_round(pool, starts)
    profile.disable()
    middle = len(sizes) // 2
    checks = [
        check(f"trajectories/s, {ENGINES} simulated actors", median(rates[1:]), "trajectories/s", ">=", GOAL),
        check(
            "growth of the driver's memory, second half of the rounds",
            sizes[-1] / sizes[middle] - 1,
            "share",
            "<=",
            GROWTH,
        ),
        check("driver's memory at the end", sizes[-1], "MiB"),
        check("driver's CPU seconds", resource.getrusage(resource.RUSAGE_SELF).ru_utime, "s"),
    ]
    return checks, top(profile)


def top(profile: cProfile.Profile, count: int = 6) -> str:
    """The functions that most of the time went to, with their share of it."""
    stats: Any = pstats.Stats(profile)
    ranked = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:count]
    whole = stats.total_tt
    return "; ".join(
        f"{name.split(' at 0x')[0].strip('<>')} {100 * numbers[2] / whole:.0f} %" for (_, _, name), numbers in ranked
    )


def main(quick: bool) -> None:
    """Measure and write bench/results/controller.json."""
    import ray

    rounds, count, samples = (4, 15_000, 4) if quick else (12, 25_000, 4)
    config = RolloutConfig(actors=ENGINES, max_running=64, max_prompt_tokens=8, max_response_tokens=TOKENS)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    begun = time.perf_counter()
    with patch("actors.pool.EngineRecipe", SimulatedRecipe):
        pool = RolloutPool("none", config, dtype="float32", device="cpu", seed=0, cpus=0.0)
    up = time.perf_counter() - begun
    checks, profile = measure(pool, rounds, count, samples)
    checks.append(check(f"bring up {ENGINES} actors (driver's side)", up, "s"))
    pool.close()
    ray.shutdown()
    settings: dict[str, str | int | float] = {
        "rounds": rounds,
        "trajectories per round": count * samples,
        "profile": profile,
    }
    write("controller", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
