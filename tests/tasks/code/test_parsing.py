"""Programs that can no longer be parsed: the references of MBPP never are, and what follows mends nothing."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.code.parsing import cannot_be_parsed

FENCED = "Here is the function:\n```python\n{}\n```\nIt adds.\n"
LINES = [
    "def add(a, b):",
    "    return a + b",
    "    return (a +",
    "        b)",
    "    return a b",
    '    """It adds',
    '    what is given."""',
    "  if a:",
    "        pass",
    "    x = 'open",
    "```",
    "else:",
    "",
]


@pytest.mark.parametrize(
    ("response", "broken"),
    [
        ("def f(x):\n    return (x]\n", True),
        ("def f(x):\n    return (x]", False),  # the line may go on: (x], ...
        ("def f(x):\n    retrun x y\n", True),
        ("def f(x):\n        a = 1\n    b = 2\n", True),  # no such indentation
        ("def f(x):\n    print 'a'\n", True),  # Python 2
        ("import math\n\nI think it is 3.\n", True),
        ("def f(x):\n", False),
        ("def f(x):\n    return '''a [\n", False),
        ("def f(x):\n    return [\n", False),
        ("@cache\n", False),
        ("def f(x):\n    try:\n        pass\n", False),
        ("def f(x):\n    return '\\d'\n", False),
        (FENCED.format("def f(x):\n    return (x]"), True),
        (FENCED.format("def f(x):\n    return x"), False),
        (FENCED.format("5 apples"), None),  # no program
        ("Here is a function: def f(x]\n", None),
        ("    return a + b]\n", None),  # the body of a function in the prompt
        ("", None),
    ],
)
def test_programs_by_hand(response: str, broken: bool | None) -> None:
    assert cannot_be_parsed(response) is broken


def test_no_beginning_of_a_reference_is_broken(shared_data: Path) -> None:
    """Over a quarter of them here; it holds for all 974."""
    for line in list((shared_data / "mbpp/mbpp.jsonl").open())[::4]:
        code = json.loads(line)["code"].replace("\r\n", "\n")
        for text in (code + "\n", FENCED.format(code)):
            ends = [at + 1 for at, sign in enumerate(text) if sign == "\n"]
            assert not any(cannot_be_parsed(text[:end]) for end in ends)


@given(st.lists(st.sampled_from(LINES), max_size=8), st.booleans(), st.integers(0, 200))
def test_what_is_broken_stays_broken(lines: list[str], fenced: bool, cut: int) -> None:
    text = "\n".join(["```python" if fenced else "", "def sub(a, b):", "    pass", *lines, ""])
    if cannot_be_parsed(text[:cut]):
        assert cannot_be_parsed(text) or "```" in lines


@pytest.mark.parametrize(
    "body", ["(" * 40_000, "[(" * 90, "a = " + "{f(" * 60, "-" * 40_000 + "1", "x\0y", "f'{" * 200, "if a:\n " * 9000]
)
def test_hostile_programs_take_no_time(body: str) -> None:
    begun = time.process_time()
    assert cannot_be_parsed(f"def f(a):\n    {body}\n") in (True, False)
    assert time.process_time() - begun < 10
