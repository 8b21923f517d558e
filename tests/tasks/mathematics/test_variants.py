"""Equal forms of real gold answers are judged right, near misses wrong: a fixed sample of `variants.py`."""

import json
import random
from pathlib import Path

from tasks.mathematics.answers import boxed_answer
from tasks.mathematics.equality import same_answer
from tests.tasks.mathematics.near_misses import misses
from tests.tasks.mathematics.variants import equals

SAMPLE = 60


def golds(shared_data: Path) -> list[str]:
    """Different gold answers, few of them plain integers, as in the whole table."""
    rows = [json.loads(line) for line in (shared_data / "math/train.jsonl").open()]
    found = sorted({boxed_answer(row["solution"]) or "" for row in rows})
    return random.Random(0).sample(found, min(SAMPLE, len(found)))


def test_forms_that_a_reader_calls_equal_are_judged_right(shared_data: Path) -> None:
    cases = [(gold, text) for gold in golds(shared_data) for _, text in equals(gold)]
    refused = [(gold, text) for gold, text in cases if not same_answer(gold, text)]
    assert len(cases) > 300
    assert len(refused) <= 0.02 * len(cases), refused  # over the whole data: 0.1 %


def test_near_misses_are_judged_wrong(shared_data: Path) -> None:
    cases = [(gold, text) for gold in golds(shared_data) for _, text in misses(gold)]
    accepted = [(gold, text) for gold, text in cases if same_answer(gold, text)]
    assert len(cases) > 200
    assert len(accepted) <= 0.01 * len(cases), accepted  # over the whole data: 0.03 %
