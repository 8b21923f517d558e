"""Word problems: a generated task of reading, whose verbs must be understood.

    Ann has 12 pens. She buys 5. She counts 3. She loses 4.

The response writes one line per sentence after the first, its verb, the change and the new number, then the answer:

    buys +5=17
    counts =17
    loses -4=13
    #13

Four verbs add, four take away and four leave the number alone (`VERBS`). Nothing but the reward tells which does what,
if the starter has only seen guesses; what one problem teaches helps in the others. Invariant: the prefix check is
exact. Every line is judged, so no answer is right by luck.
"""

import re

import numpy as np

from bench.tasks.guesses import GuessedPuzzle
from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.synthetic.generated import begins, same_lines

VERBS = {
    **dict.fromkeys(("buys", "finds", "gets", "wins"), "+"),
    **dict.fromkeys(("loses", "sells", "eats", "drops"), "-"),
    **dict.fromkeys(("counts", "sees", "wants", "draws"), "="),
}
"""What each verb does to the number: adds, takes away, or nothing."""
SIGNS = "+-="
PEOPLE = (("Ann", "She"), ("Ben", "He"), ("Eva", "She"), ("Tom", "He"))
THINGS = ("pens", "nuts", "eggs", "figs")
MOST = 5  # largest change of one sentence

_NEXT = re.compile(r"(?:She|He) (\w+) (\d)\.")


def line(verb: str, sign: str, change: int, number: int) -> tuple[str, int]:
    """The line that writes one sentence, and the number after it.

    >>> line("buys", "+", 5, 12), line("counts", "=", 3, 17)
    (('buys +5=17', 17), ('counts =17', 17))
    """
    after = number + {"+": change, "-": -change, "=": 0}[sign]
    return (f"{verb} ={after}" if sign == "=" else f"{verb} {sign}{change}={after}"), after


def read_story(text: str) -> tuple[int, list[tuple[str, int]]]:
    """The number at the beginning, and the verb and number of every further sentence."""
    return int(text.split()[2]), [(verb, int(change)) for verb, change in _NEXT.findall(text)]


def _written(text: str, signs: list[str]) -> str:
    """The response that reads the sentences with these signs."""
    number, sentences = read_story(text)
    lines = []
    for sign, (verb, change) in zip(signs, sentences, strict=True):
        written, number = line(verb, sign, change, number)
        lines.append(written)
    return "\n".join([*lines, f"#{number}"])


def _solution(text: str) -> str:
    return _written(text, [VERBS[verb] for verb, _ in read_story(text)[1]])


def _guess(text: str, rng: np.random.Generator) -> str:
    return _written(text, [SIGNS[rng.integers(len(SIGNS))] for _ in read_story(text)[1]])


def verify_stories(reference: str, response: str) -> Verdict:
    """Reward 1 if every sentence is read and computed correctly and the last line is `#` and the number at the end."""
    return same_lines(_solution(reference), response)


def _draw(rng: np.random.Generator, operations: int) -> str:
    """A random story of that many sentences after the first. Its first number is large enough for any reading."""
    name, pronoun = PEOPLE[rng.integers(len(PEOPLE))]
    things = THINGS[rng.integers(len(THINGS))]
    verbs = rng.choice(list(VERBS), operations)
    changes = rng.integers(1, MOST + 1, operations)
    begun = int(rng.integers(MOST * operations, MOST * operations + 10))
    rest = "".join(f" {pronoun} {verb} {change}." for verb, change in zip(verbs, changes, strict=True))
    return f"{name} has {begun} {things}.{rest}"


STORIES = GuessedPuzzle(
    "stories",
    "".join(
        sorted({*"".join([*VERBS, *THINGS, "has", *(word for pair in PEOPLE for word in pair)]), *"0123456789 .+-=#\n"})
    ),
    _draw,
    _solution,
    lambda text: len(read_story(text)[1]),
    begins(_solution),
    units=("step", "steps"),
    guess=_guess,
)
stories = TaskKind("bench.learning.stories:verify_stories", STORIES)
"""`task.name: bench.learning.stories:stories`."""
