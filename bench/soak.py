"""Does a long run with random faults lose or repeat a trajectory? `python -m bench.soak [--quick]`.

Two engines generate for an asynchronous pipeline, whose "learner" only sends new weights. At random one or all engines are
killed or stopped while they work. The learner must get every start exactly once, with all its samples, and no token that is
older than the pipeline allows. `tests/test_soak.py` runs a short version.
"""

import os
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import ray

from actors.handle import EngineRecipe
from actors.pool import RolloutPool
from actors.stream import Finished, RolloutStream
from bench.models import Shape, build_model
from bench.report import check, command_line, write
from core.config import RolloutConfig
from core.records import Sampling, Start
from core.seeds import derive
from core.startup import set_environment
from core.weights import pack
from trainer.asynchronous import Pipeline

SHAPE = Shape(300, hidden=64, intermediate=128, layers=2, heads=2, key_value_heads=1)
PROMPT, RESPONSE = 10, 40
STARTS, SAMPLES, STALENESS = 16, 2, 2
CONFIG = RolloutConfig(
    actors=2,
    max_prompt_tokens=PROMPT,
    max_response_tokens=RESPONSE,
    max_running=16,  # fewer than are submitted, so that there is a queue
    tokens_in_flight=1000,
    kv_cache_gib=0.05,
    threads=1,
    deadline=15.0,
    max_restarts=1000,
)
FAULTS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)


@dataclass(slots=True)
class Tally:
    """Counts of submitted and received starts and samples, by start id."""

    asked: set[str]
    trained: Counter[str] = field(default_factory=Counter)  # samples that the learner got from the pipeline
    handed: Counter[str] = field(default_factory=Counter)  # times that the pipeline got the start from the stream
    oldest: int = 0  # most versions that a token was behind
    mixed: int = 0  # trajectories with tokens of several versions
    faults: int = 0  # engines killed or stopped
    restarts: int = 0

    @property
    def lost(self) -> int:
        """Starts that never arrived."""
        return len(self.asked - self.trained.keys())

    @property
    def repeated(self) -> int:
        """Starts that have too many samples, arrived more than once, or were not submitted."""
        unknown = self.handed.keys() - self.asked
        return len(unknown) + sum(self.trained[one] > SAMPLES or self.handed[one] > 1 for one in self.asked)

    @property
    def incomplete(self) -> int:
        """Starts with too few samples."""
        return sum(count < SAMPLES for count in self.trained.values())


class CountingStream(RolloutStream):
    """Counts the starts that it returns, because the pipeline counts two with one id as one."""

    def __init__(self, pool: RolloutPool) -> None:
        super().__init__(pool)
        self.handed: Counter[str] = Counter()

    def finished(self) -> list[Finished]:
        """See `RolloutStream.finished`; also counts the starts."""
        found = super().finished()
        self.handed.update(start_id for start_id, _ in found)
        return found


def choose(number: int) -> list[Start]:
    """The starts of iteration `number`: random contexts, every second with a prefix."""
    rows = np.random.default_rng(number).integers(2, SHAPE.vocabulary, (STARTS, PROMPT + 8), dtype=np.int32)
    starts = []
    for i, row in enumerate(rows):
        prompt, prefix = row[:PROMPT], row[PROMPT : PROMPT + 8 * (i % 2)]
        starts.append(Start(f"{number}.{i}", f"problem {i}", prompt, prefix, SAMPLES, derive(number, i)))
    return starts


def strike(pool: RolloutPool, dice: random.Random) -> int:
    """Kill or stop one engine, or all. Returns the number of engines."""
    pids = pool.pids()
    victims = pids if dice.random() < 0.1 else dice.sample(pids, min(1, len(pids)))
    for pid in victims:
        with suppress(ProcessLookupError):  # the engine is already being replaced
            os.kill(pid, dice.choice(FAULTS))
    return len(victims)


def soak(folder: Path, iterations: int, share: float, seed: int, config: RolloutConfig = CONFIG) -> Tally:
    """Run `iterations` with faults in about `share` of them. Ray must be connected; the model is saved in `folder`."""
    weights = pack(build_model(folder, SHAPE).named_parameters(), 0)
    dice = random.Random(seed)
    tally = Tally({start.id for number in range(1, iterations + 1) for start in choose(number)})
    pool = RolloutPool(EngineRecipe(str(folder), config, "float32", "cpu", seed=0, cpus=0.5))
    with closing(pool), closing(CountingStream(pool)) as stream:
        sampling = Sampling(1.0, 1.0, RESPONSE)
        pipeline = Pipeline(stream, sampling, starts=STARTS, max_staleness=STALENESS, iterations=iterations)
        for number in range(1, iterations + 1):
            pipeline.feed(choose, number, number - 1)
            tally.faults += strike(pool, dice) if dice.random() < share else 0
            for one in pipeline.take(number - 1):
                tally.trained[one.start.id] += 1
                tally.oldest = max(tally.oldest, number - 1 - int(one.versions.min()))
                tally.mixed += bool(np.ptp(one.versions))
            stream.load_weights(ray.put(replace(weights, manifest=replace(weights.manifest, version=number))))
        tally.handed, tally.restarts = stream.handed, pool.restarts
    return tally


def main(quick: bool) -> None:
    """Soak and write bench/results/soak.json."""
    set_environment()
    iterations, share = (8, 0.25) if quick else (200, 0.12)
    begun = time.monotonic()
    with (
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False),
        tempfile.TemporaryDirectory() as folder,
    ):
        tally = soak(Path(folder), iterations, share, seed=1)
    checks = [
        check("starts lost", tally.lost, "starts", "<=", 0),
        check("starts trained on twice", tally.repeated, "starts", "<=", 0),
        check("starts without all their samples", tally.incomplete, "starts", "<=", 0),
        check("oldest token", tally.oldest, "versions", "<=", STALENESS),
        check("starts", len(tally.asked), "starts"),
        check("trajectories that continued with newer weights", tally.mixed, "trajectories"),
        check("engines killed or stopped", tally.faults, "engines"),
        check("restarts", tally.restarts, "engines"),
        check("duration", time.monotonic() - begun, "s"),
    ]
    settings: dict[str, str | int | float] = {
        "iterations": iterations,
        "starts per iteration": STARTS,
        "samples": SAMPLES,
        "max_staleness": STALENESS,
    }
    write("soak", checks, settings, quick=quick)


if __name__ == "__main__":
    main(command_line(__doc__).parse_args().quick)
