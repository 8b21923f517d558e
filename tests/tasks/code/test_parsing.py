"""Programs that can no longer be parsed: the references of MBPP never are, and what follows mends nothing."""

import ast
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.code.parsing import cannot_be_parsed, program_of

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


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "```python\n{}\n```",
        " ```python\n{}\n```\nThis works.",
        "{}\n```\nThis works.",  # opened in the prompt
        "Here is the code: ```python\n{}\n```",
        "```python\n{}\n    ```\nDone.",
        "{}\n```\nTests:\n```python\nimport unittest\nclass T(unittest.TestCase):\n    pass\n```",
    ],
)
def test_programs_between_any_fences(shared_data: Path, form: str) -> None:
    for line in list((shared_data / "mbpp/mbpp.jsonl").open())[::8]:
        row = json.loads(line)
        code = row["code"].replace("\r\n", "\n").strip()
        found = program_of(form.format(code), {"format": "asserts", "tests": row["test_list"]})
        assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(code))


@pytest.mark.parametrize(
    "more", ["```", "```\nThis adds one.\n", "```\n\nUsage:\n```python\nprint(f(1))\n```\n", "  ```\n"]
)
@pytest.mark.parametrize("before", ["", "Sure\n```python\n"])
def test_a_fence_behind_what_continues_the_prompt(before: str, more: str) -> None:
    record = {"format": "check", "entry": "f", "prompt": 'def f(x):\n    """Add one."""'}
    assert program_of(f"{before}    return x + 1\n{more}", record).strip("\n") == "    return x + 1"


def test_of_several_blocks_that_continue_the_prompt_the_last_counts() -> None:
    record = {"format": "check", "entry": "f", "prompt": 'def f(x):\n    """Add one."""'}
    tries = "Try:\n```python\n    return x + 2\n```\nNo:\n```python\n    return x + 1\n```\n"
    assert program_of(tries, record).strip("\n") == "    return x + 1"


def test_prose_behind_a_fence_that_the_prompt_opens_is_no_program() -> None:
    assert cannot_be_parsed("def f(x):\n    return x\n```\nclass methods are fine.\n") is None


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


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("def f(): pass", "def f(): pass"),
        ("Sure:\n```python\ndef f(): pass\n```\nDone.", "def f(): pass\n"),
        ("```\nx = 1\n```\nor\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1", "x = 1"),
        ("```python\ndef f(): pass\n```\nFor example:\n```\nprint(f())\n```", "def f(): pass\n"),
        ("1. So:\n   ```python\n   def f():\n     return '```'\n   ```\nDone.", "def f():\n  return '```'\n"),
        ("```python\ndef f(): pass\n```\nBetter:\n```python\nclass g: pass\n```", "class g: pass\n"),
        ("", ""),
    ],
)
def test_the_program_in_a_response(response: str, program: str) -> None:
    assert program_of(response, {"format": "asserts", "tests": ["assert f() == g()"]}) == program


SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
SCRIPT = {"format": "script"}
CALLS = {"format": "calls", "fn_name": "add"}
ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    "behind",
    [
        "Example run:\n```\n3 4\n7\n```\n",
        "Run it:\n```bash\npython a.py\n```\n",
        "In C++:\n```cpp\nint main(){}\n```\n",
        "In JavaScript:\n```javascript\nconst f = input()\n```\n",
        "Notes:\n```text\nclass of problems: sums\n```\n",
        "Notes:\n```\nIt reads the input() twice.\n```\n",
        "Tests:\n```python\nimport unittest\nclass T(unittest.TestCase):\n    def test(self): pass\n```\n",
        "Tests:\n```python\ndef test_sum():\n    assert run(input()) == 7\n```\n",
        "It prints\n```python\n>>> 7\n```\n",
        "Output:\n~~~\n7\n~~~\n",
        "",
    ],
)
@pytest.mark.parametrize(
    ("mark", "language"),
    [("```", "python"), ("````", "python"), ("~~~", "py"), ("```", ""), ("```", " python3"), ("~~~~", "")],
)
def test_what_follows_a_program_is_left_out(mark: str, language: str, behind: str) -> None:
    script, call = (f"Here:\n{mark}{language}\n{code}{mark}\n{behind}" for code in (SUM, ADD))
    assert program_of(script, SCRIPT) == SUM
    assert program_of(call, CALLS) == ADD


def test_a_block_of_markdown_has_blocks_of_its_own() -> None:
    for language in ("markdown", "md"):
        answer = f"````{language}\n# Sum\n```python\n{SUM}```\nRun it:\n```bash\npython a.py\n```\n````\n"
        assert program_of(answer, SCRIPT) == SUM


def test_a_fence_may_close_behind_the_last_line_of_code() -> None:
    told = 'def add(a, b):\n    """\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b'
    spans = "def add(a, b):\n    # not ```a - b```\n    return a + b"
    for code in (ADD.rstrip(), told, spans):
        assert program_of(f"```python\n{code}```\nIt adds two numbers.\n", CALLS) == code
    assert program_of(f"```python\n{told}\n```\n", CALLS) == f"{told}\n"


def test_the_last_program_that_answers_is_taken() -> None:
    first, second = SUM.replace("+", "-"), SUM
    assert program_of(f"```python\n{first}```\nBetter:\n```python\n{second}```\n", SCRIPT) == second
    # a mended one that does not compile is not better
    assert program_of(f"```python\n{first}```\nBetter:\n```python\n{second})\n```\n", SCRIPT) == first
    inner = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    assert program_of(f"```python\n{inner}```\nUse:\n```python\nprint(Solution().add(1, 2))\n```\n", CALLS) == inner
    named = "def test_distinct(data):\n    return len(data) == len(set(data))\n"
    asked = {"format": "asserts", "tests": ["assert test_distinct([1, 5]) == True"]}
    assert program_of(f"```python\n{named}```\nSo:\n```python\nprint([1, 5])\n```\n", asked) == named
    lambdas = "add = lambda a, b: a + b\n"
    assert program_of(f"```python\n{lambdas}```\n```python\ndef helper(): pass\n```\n", CALLS) == lambdas
    greeting = 'print("hello")\n'  # a problem without input
    assert program_of(f"```python\n{greeting}```\nOutput:\n```\nhello, world\n```\n", SCRIPT) == greeting
