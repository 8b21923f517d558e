"""The short version of `bench/soak.py`: engines are killed and stopped while they work."""

from pathlib import Path

from bench.soak import SAMPLES, STALENESS, STARTS, build_model, choose, soak, summarise


def test_random_faults_lose_and_double_nothing(ray_cluster: None, tmp_path: Path) -> None:
    iterations = 8
    result = soak(tmp_path, build_model(tmp_path), iterations, share=0.25, seed=26, deadline=30.0)  # a kill and a stop
    assert result.faults > 0
    assert result.restarts >= 1
    assert (result.lost, result.doubled, result.incomplete) == (0, 0, 0)
    assert result.submitted == iterations * STARTS
    assert result.oldest <= STALENESS


def test_what_is_lost_or_doubled_is_counted() -> None:
    from collections import Counter

    seen = Counter({start.id: SAMPLES for start in choose(1)})
    handed = Counter(seen.keys())
    seen["1.0"] += 1  # a sample too many
    seen["1.1"] -= 1
    del seen["1.2"]
    handed["1.3"] += 1  # twice under the same id
    handed["9.9"] += 1  # nobody has asked for it
    result = summarise(seen, handed, 1, 0, 0, 0, 0, 0.0)
    assert (result.doubled, result.incomplete, result.lost) == (3, 1, 1)
