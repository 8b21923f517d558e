"""Sums in words: a generated task for pretrained models, which know the form of a sum and often not its result.

    What is 47 plus 35 minus 18?

The numbers have two digits and no result is negative. The response has a line per sum or difference, then the answer:

    47 + 35 = 82
    82 - 18 = 64
    #### 64

The reward depends only on the final answer. The prefix check accepts the terms in every order and grouping: all in one
line, or `47 - 18 = 29` first. It judges a line once it has ended.
"""

import re
from itertools import product

import numpy as np

from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.mathematics.answers import gsm8k_answer
from tasks.mathematics.equations import states_false_equation
from tasks.synthetic.generated import OPERATIONS, Puzzle, wrong

SIGNS = {"plus": "+", "minus": "-"}
LEAST, MOST = 10, 99  # the range of the numbers

_TERM = re.compile(r"(plus|minus) (\d+)")
_BEFORE, _BEHIND = re.compile(r"(\d+)(?= *[-+*/=])"), re.compile(r"[-+*/=] *(\d+)")  # numbers next to an operator
_ANSWER = re.compile(r"#### *(-?\d+(?:\.\d+)?)")


def steps(text: str) -> list[tuple[str, int]]:
    """The lines of the canonical solution before the answer, each with its result.

    >>> steps("What is 47 plus 35 minus 18?")
    [('47 + 35 = 82', 82), ('82 - 18 = 64', 64)]
    """
    value, done = int(text.split()[2].rstrip("?")), []
    for word, number in _TERM.findall(text):
        after = OPERATIONS[SIGNS[word]](value, int(number))
        done.append((f"{value} {SIGNS[word]} {number} = {after}", after))
        value = after
    return done


def _solution(text: str) -> str:
    done = steps(text)
    return "\n".join([*(line for line, _ in done), f"#### {done[-1][1]}"])


def right_so_far(text: str, response: str) -> bool:
    """Whether the beginning of a response states nothing wrong: the equations of its ended lines are true, each of
    their numbers is a sum of terms of the question, with their signs or all of them turned, and the answer is right.

    >>> lines = ("35 + 47 = 82\\n", "35 - 18 = 17\\n", "47 + 45 = 92\\n", "47 + 35 = 83\\n")
    >>> [right_so_far("What is 47 plus 35 minus 18?", line) for line in lines]
    [True, True, False, False]
    """
    ended = response[: max(response.rfind("\n"), response.rfind("####"), 0)] + "\n"
    equations = "\n".join(line for line in ended.split("\n") if "=" in line)
    numbers = {int(number) for pattern in (_BEFORE, _BEHIND) for number in pattern.findall(equations)}
    expected = str(steps(text)[-1][1])
    answers_right = all(
        expected.startswith(answer[1]) if answer.end() == len(response) else expected == answer[1]  # it may go on
        for answer in _ANSWER.finditer(response)
    )
    return states_false_equation(ended) is not True and numbers <= _partial_sums(text) and answers_right


def _partial_sums(text: str) -> set[int]:
    """The absolute values of the sums of some terms of a question, with their signs."""
    terms = [int(text.split()[2].rstrip("?"))]
    terms += [int(number) if word == "plus" else -int(number) for word, number in _TERM.findall(text)]
    return {abs(sum(chosen)) for chosen in product(*((0, term) for term in terms))}


def verify_sums(reference: str, response: str) -> Verdict:
    """Reward 1 if what follows the last `####` of the response is the right number."""
    expected, found = str(steps(reference)[-1][1]), gsm8k_answer(response)
    if found is None:
        return wrong("no answer found: expected '#### n'")
    return Verdict(1.0, True) if found == expected else wrong(f"answered {found[:20]}, expected {expected}")


def _draw(rng: np.random.Generator, operations: int) -> str:
    """A random question of that many sums and differences; what would be negative is added instead."""
    value = int(rng.integers(LEAST, MOST + 1))
    text = f"What is {value}"
    for number in rng.integers(LEAST, MOST + 1, operations).tolist():
        word = "minus" if rng.integers(2) and number <= value else "plus"
        value = OPERATIONS[SIGNS[word]](value, number)
        text += f" {word} {number}"
    return f"{text}?"


SUMS = Puzzle(
    "sums",
    "".join(sorted({*"What is plus minus?0123456789+-=#\n"})),
    _draw,
    _solution,
    lambda text: len(_TERM.findall(text)),
    right_so_far,
    ending="",
)
TASK = TaskKind("tasks.synthetic.sums:verify_sums", SUMS, answer=gsm8k_answer)
