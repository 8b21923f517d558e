"""All gold answers of the real data are judged right; with their last digit changed they are judged wrong.

Over the whole data sets where they are (fixture `shared_data`), else over the rows of tests/data.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

from core.config import Columns
from core.records import Verdict
from tasks.mathematics.answers import read_gsm8k, read_math, verify_gsm8k, verify_math
from tasks.problems import Item


def perturbed(gold: str) -> str | None:
    """The last digit moved by one; None for an answer without digits."""
    found = re.search(r"[0-9](?=[^0-9]*$)", gold)
    if found is None:
        return None
    place = found.start()
    return gold[:place] + str((int(gold[place]) + 1) % 10) + gold[place + 1 :]


def accepted(items: list[Item], verify: Callable[[str, str], Verdict], form: str) -> tuple[int, set[str]]:
    """Number of perturbed golds, and those of them that are judged right."""
    pairs = [(item.reference, changed) for item in items if (changed := perturbed(item.reference)) is not None]
    return len(pairs), {gold for gold, changed in pairs if verify(gold, form.replace("?", changed)).correct}


def test_gsm8k_golds(shared_data: Path, whole_data: bool) -> None:
    columns = Columns(prompt="question", answer="answer", solution="answer")
    lines = [line for name in ("train", "test") for line in (shared_data / f"gsm8k/{name}.jsonl").open()]
    items = [read_gsm8k(json.loads(line), columns, "gsm8k") for line in lines]
    assert len(items) == (7473 + 1319 if whole_data else 10 + 5)
    assert all(verify_gsm8k(item.reference, item.solution or "").correct for item in items)
    assert accepted(items, verify_gsm8k, "#### ?") == (len(items), set())  # all have a digit


def test_math_golds(shared_data: Path, whole_data: bool) -> None:
    columns = Columns(prompt="problem", answer="solution", solution="solution")
    items = [read_math(json.loads(line), columns, "math") for line in (shared_data / "math/train.jsonl").open()]
    assert len(items) == (4500 if whole_data else 16)
    assert all(verify_math(item.reference, item.solution or "").correct for item in items)
    count, right = accepted(items, verify_math, r"\boxed{?}")
    assert count > len(items) * 3 // 4
    assert right == set()
