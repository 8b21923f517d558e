"""Answers that users of this project and of others reported as judged wrongly, and others of their kinds."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.mathematics.answers import prepare_judge, verify_gsm8k, verify_math

ROWS = [
    json.loads(line) for line in Path(__file__).with_name("reported.jsonl").read_text(encoding="utf-8").splitlines()
]
JUDGES = {"math": verify_math, "gsm8k": verify_gsm8k}
SECONDS = 2.0  # of CPU: no answer stalls a judge


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['gold']} {row['response']}" for row in ROWS])
def test_reported_answers(row: dict[str, Any]) -> None:
    prepare_judge()
    begun = time.process_time()
    assert JUDGES[row["task"]](row["gold"], row["response"]).correct == row["correct"]
    assert time.process_time() - begun < SECONDS
