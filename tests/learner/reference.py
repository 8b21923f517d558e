"""The reference values of the PPO maths, worked out apart from the code."""

import json
from pathlib import Path
from typing import Any


def reference_numbers() -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(Path(__file__).with_name("ppo_numbers.json").read_text(encoding="utf-8"))
    return numbers
