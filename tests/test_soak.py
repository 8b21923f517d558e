"""The short version of `bench/soak.py`: engines are killed and stopped while they work.

Plain transformers, which start quickly. vLLM that is killed and stopped: tests/actors/test_pool.py.
"""

from collections import Counter
from pathlib import Path

from bench.soak import CONFIG, SAMPLES, STALENESS, STARTS, Tally, choose, soak


def test_random_faults_lose_and_repeat_nothing(ray_cluster: None, tmp_path: Path) -> None:
    iterations = 8
    config = CONFIG.model_copy(update={"engine": "hf"})
    tally = soak(tmp_path, iterations, share=0.25, seed=26, config=config)  # a kill and a stop
    assert tally.faults > 0
    assert tally.restarts >= 1
    assert (tally.lost, tally.repeated, tally.incomplete) == (0, 0, 0)
    assert len(tally.asked) == iterations * STARTS
    assert tally.oldest <= STALENESS


def test_what_is_lost_or_repeated_is_counted() -> None:
    asked = {start.id for start in choose(1)}
    tally = Tally(asked, trained=Counter(dict.fromkeys(asked, SAMPLES)), handed=Counter(asked))
    assert (tally.lost, tally.repeated, tally.incomplete) == (0, 0, 0)
    tally.trained["1.0"] += 1  # a sample too many
    tally.trained["1.1"] -= 1
    del tally.trained["1.2"]
    tally.handed["1.3"] += 1  # twice with the same id
    tally.handed["9.9"] += 1  # nobody asked for it
    assert (tally.lost, tally.repeated, tally.incomplete) == (1, 3, 1)
