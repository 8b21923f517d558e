"""Do engines wait for slow environments? `python -m bench.environments [--quick] [--model FOLDER]`.

One engine in this process generates EPISODES episodes at once. A turn ends with each token whose number is divisible by
32, so it has 32 tokens in the mean; an environment answers with 8 tokens after 0, 50 or 500 ms. The figure is the
policy's tokens per second, as a share of the same work with answers that come at once. Each run is compared with such a
run right before it, since other load slows both alike; figures are medians.

`as they come`: asynchronous mode. `in order`: synchronous mode, in which an answer is used `LAG`
steps after its turn, so that a run repeats bit for bit: its tokens are the same after any delay, which is checked.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from statistics import median
from typing import NamedTuple

import numpy as np

from actors.episodes import LAG, EpisodeEngine
from actors.ledger import Ledger
from actors.vllm_engine import VllmEngine
from bench.models import Model, measured_model
from bench.report import Check, check, command_line, device_name, result_name, write
from core.config import Device, ResolvedRollout
from core.environments.protocol import Messages, Step, digest
from core.environments.turns import TurnTokens
from core.environments.workers import Workers
from core.errors import RetrospectError
from core.records import Sampling, Start, World

EPISODES, PROMPT, TOKENS = 64, 32, 192
EVERY, ANSWER = 32, [5] * 8
DELAYS = (0, 50, 500)  # milliseconds
GOAL = 0.95


class Waits:
    """Answers after some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def reset(self, problem: World) -> Messages:
        """There is nothing to prepare."""
        del problem
        return []

    def step(self, action: str) -> Step:
        """An answer, whatever the action is."""
        del action
        time.sleep(self._seconds)
        return [{"role": "user", "content": "go on"}], 0.0, False, {}


class Turns(TurnTokens):
    """Turns of a model without a tokenizer."""

    def __init__(self, vocabulary: int) -> None:
        self.calls = frozenset(range(0, vocabulary, EVERY))

    def text(self, action: Sequence[int]) -> str:
        """The number of tokens stands for the text."""
        return str(len(action))

    def reply(self, last: int, messages: Messages) -> list[int]:
        """Always the same tokens."""
        del last, messages
        return ANSWER


class Setting(NamedTuple):
    """How answers come, and how they are used."""

    milliseconds: int
    lag: int | None  # None: as they come

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.milliseconds} ms, " + ("as they come" if self.lag is None else f"in order, lag {self.lag}")

    def config(self) -> ResolvedRollout:
        """The rollout section."""
        return ResolvedRollout(
            environment="bench.environments:Waits",
            environment_options={"seconds": self.milliseconds / 1000},
            max_staleness=int(self.lag is None),
            max_prompt_tokens=PROMPT,
            max_response_tokens=TOKENS,
            max_running=EPISODES,
            kv_cache_gib=1.0,
        )


def generate(engine: VllmEngine, vocabulary: int, setting: Setting) -> tuple[float, list[list[int]]]:
    """Tokens per second, and the tokens of each episode."""
    random = np.random.default_rng(0)
    starts = [
        Start(
            id=str(index),
            problem_id=str(index),
            prompt_ids=random.integers(1, vocabulary, PROMPT, dtype=np.int32),
            prefix_ids=np.zeros(0, np.int32),
            samples=1,
            seed=index,
            world=World(str(index), "", "", digest([])),
        )
        for index in range(EPISODES)
    ]
    engine._engine.reset_prefix_cache()  # with what earlier settings have read
    config, ledger = setting.config(), Ledger()
    ledger.add(starts, Sampling(1.0, 1.0, TOKENS))
    workers = Workers(config)
    episodes = EpisodeEngine(engine, workers, Turns(vocabulary), config, setting.lag or 0)
    with closing(workers):
        begun = time.perf_counter()
        episodes.add(ledger.take("engine", ledger.open))
        ledger.accept(episodes.run(float("inf")))
        seconds = time.perf_counter() - begun
    found = [one for start in starts for one in ledger.collect(start.id)]
    return sum(int(one.generated.sum()) for one in found) / seconds, [one.tokens.tolist() for one in found]


def measure(model: Model, device: Device, lags: Sequence[int], repeats: int) -> list[Check]:
    """All settings with one engine."""
    first = Setting(0, None)
    engine = VllmEngine(model.path, first.config(), dtype=model.dtype, device=device, seed=0)
    print(f"the engine is loaded on {device}", flush=True)
    settings = [Setting(delay, lag) for lag in (None, lags[0]) for delay in DELAYS]
    settings += [Setting(DELAYS[1], lag) for lag in lags[1:]]
    generate(engine, model.vocabulary, first)  # warms the engine up
    expected: dict[int, list[list[int]]] = {}
    bases: list[float] = []
    shares: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for _ in range(repeats):
        for setting in settings[1:]:
            bases.append(generate(engine, model.vocabulary, first)[0])
            speed, tokens = generate(engine, model.vocabulary, setting)
            shares[setting].append(speed / bases[-1])
            print(f"{setting.name}: {speed:,.0f} tokens/s, {shares[setting][-1]:.2f} of no delay", flush=True)
            if setting.lag is not None:
                assert tokens == expected.setdefault(setting.lag, tokens), "the delay changed the tokens"
    checks = [check(f"{first.name}: tokens", median(bases), "tokens/s")]
    for setting in settings[1:]:
        share = median(shares[setting])
        wanted = setting.milliseconds == DELAYS[1] and setting.lag in (None, lags[0])
        checks.append(check(setting.name, share, "share", ">=" if wanted else None, GOAL if wanted else 0.0))
    return checks


def main(quick: bool, device: Device, folder: str | None) -> None:
    """Measure and write bench/results/environments*.json; `folder`: of a pretrained model. Raises ClusterError."""
    repeats, lag = 1 if quick else 3, LAG
    lags = [lag] if quick else [lag, 1, 4, 8]
    settings: dict[str, object] = {
        "device": device_name(device),
        "episodes at once": EPISODES,
        "tokens of an episode": TOKENS,
        "repeats": repeats,
    }
    with measured_model(folder) as model:
        checks, settings = measure(model, device, lags, repeats), {"model": model.title, **settings}
    write(result_name("environments", device, folder is not None), checks, settings, quick=quick)


if __name__ == "__main__":
    parser = command_line(__doc__, device=True)
    parser.add_argument("--model", help="the folder of a pretrained model, which is measured instead")
    given = parser.parse_args()
    try:
        main(given.quick, given.device, given.model)
    except RetrospectError as error:
        sys.exit(f"error: {error}")
