"""Rewards as users write them by mistake, for `tests/commands/test_preflight.py`."""

import json
import os
import sys


def raises(reference: str, response: str) -> float:
    return 1 / 0


def raises_below(reference: str, response: str) -> float:
    return float(json.loads("not JSON"))


def not_a_number(reference: str, response: str) -> float:
    return float("nan")


def enormous(reference: str, response: str) -> float:
    return 1e300


def text(reference: str, response: str) -> str:
    return "1.0"


def no_arguments() -> float:
    return 1.0


def exits(reference: str, response: str) -> float:
    sys.exit(3)


def exits_at_once(reference: str, response: str) -> float:
    os._exit(3)


def hangs(reference: str, response: str) -> float:
    while True:
        pass


REWARDS = (
    "raises",
    "raises_below",
    "not_a_number",
    "enormous",
    "text",
    "no_arguments",
    "exits",
    "exits_at_once",
    "hangs",
)
