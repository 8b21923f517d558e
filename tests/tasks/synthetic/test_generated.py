"""Generated tasks: problems apart and distinct, and the exact prefix checkers against brute force.

The brute force knows the rules only through `verify`: it writes every response there is, line by line, and asks which
are right.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.learning import lock, stories
from bench.learning.lock import LOCK
from bench.learning.stories import STORIES
from bench.tasks import rule
from bench.tasks.calculator import CALCULATOR
from bench.tasks.guesses import GuessedPuzzle
from bench.tasks.rule import RULE
from core.errors import DataError
from core.parts.judge import Case
from core.records import Verdict
from core.sections.registry import names
from tasks.judge_worker import load_verifier
from tasks.kinds import TaskKind, find_kind
from tasks.synthetic.arithmetic import ARITHMETIC
from tasks.synthetic.generated import Puzzle, is_for_evaluation, puzzle_items
from tasks.synthetic.sums import SUMS


def right_locks(text: str) -> Iterator[str]:
    """All responses that open a lock: every sequence of presses, without any look ahead."""
    start = lock.read_lock(text).start
    written = [("", start)]
    for _ in range(lock.PRESSES + 1):
        yield from (found for lines, _ in written if lock.verify_lock(text, found := lines + lock.OPEN).correct)
        written = [
            (f"{lines}{name}{lock.LETTERS[press(position)]}\n", press(position))
            for lines, position in written
            for name, press in lock.BUTTONS.items()
            if press(position) not in lock.read_lock(text).traps
        ]


def right_rules(text: str) -> Iterator[str]:
    """All responses that follow the rule: every choice for every symbol."""
    for choices in itertools.product(rule.CHOICES, repeat=len(text)):
        written = "\n".join(symbol + choice for symbol, choice in zip(text, choices, strict=True))
        if rule.verify_rule(text, written).correct:
            yield written


def right_stories(text: str) -> Iterator[str]:
    """All responses that understand a story: every reading of every sentence, with the answer."""
    begun, sentences = stories.read_story(text)
    for signs in itertools.product(stories.SIGNS, repeat=len(sentences)):
        number, lines = begun, []
        for sign, (verb, change) in zip(signs, sentences, strict=True):
            written, number = stories.line(verb, sign, change, number)
            lines.append(written)
        if stories.verify_stories(text, found := "\n".join([*lines, f"#{number}"])).correct:
            yield found


PUZZLES = (ARITHMETIC, LOCK, RULE, STORIES, CALCULATOR, SUMS)
Right = Callable[[str], Iterator[str]]


@pytest.mark.parametrize(
    ("puzzle", "right", "most"),
    [
        (LOCK, right_locks, 5),
        (RULE, right_rules, 6),
        (STORIES, right_stories, 5),
    ],
    ids=["lock", "rule", "stories"],
)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_a_prefix_is_correct_if_and_only_if_brute_force_finds_a_right_end(
    puzzle: Puzzle, right: Right, most: int, seed: int, data: st.DataObject
) -> None:
    text = puzzle.draw(np.random.default_rng(seed), data.draw(st.integers(1, most)))
    solutions = {found.rstrip("\n") for found in right(text)}
    begun = {found[:n] for found in solutions for n in range(len(found) + 1)} | {found + "\n" for found in solutions}
    sample = sorted(begun)[:: max(1, len(begun) // 200)]
    assert all(puzzle.prefix_correct(text, prefix) for prefix in sample)
    for prefix in sample[:: max(1, len(sample) // 40)]:  # one character further: right or wrong, and told apart
        for further in (prefix + character for character in puzzle.alphabet):
            right_too = further in begun or further.rstrip("\n") in solutions  # line breaks may follow the end
            assert puzzle.prefix_correct(text, further) == right_too


def kind_of(puzzle: Puzzle) -> TaskKind:
    name = puzzle.name
    folder = "learning" if puzzle in (LOCK, STORIES) else "tasks"
    return find_kind(name if name in names("task.name") else f"bench.{folder}.{name}:{name}")


def verifier(puzzle: Puzzle) -> Callable[[str, str], Verdict]:
    reward = load_verifier(kind_of(puzzle).verifier).alone
    assert reward is not None
    return lambda reference, response: cast(Verdict, reward(Case(reference, response)))


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.name)
def test_canonical_solutions_are_right_and_of_the_asked_length(puzzle: Puzzle) -> None:
    verify = verifier(puzzle)
    for item in puzzle_items(puzzle, 0, range(1, 5), 200, evaluation=False):
        assert item.solution is not None
        assert verify(item.reference, item.solution).correct
        extra = {"arithmetic": 1, "lock": 1, "rule": 0, "stories": 1, "calculator": 1, "sums": 1}[
            puzzle.name
        ]  # the answer line, `open`
        assert item.level.startswith(f"{item.solution.count(chr(10)) + 1 - extra} ")
        assert set(item.prompt + item.solution) <= set(puzzle.alphabet)


def test_a_lock_by_hand() -> None:
    # f is 5: 5 + 7 = 12 is m; 3 * 12 = 36, modulo 20 it is 16: q. From f, - leads to 1 (b) and * to 15 (p).
    text = "f>q!bdjors"
    assert lock.verify_lock(text, "+m\n*q\nopen\n").correct
    for response, why in {
        "+n\n*q\nopen": "line 1: + leads to m, written 'n'",
        "-b\nopen": "line 1: b is a trap",
        "+m\nopen": "opened at m, not at q",
        "+m\n*q": "the response does not end with 'open'",
        "+m\nopen\n*q": "line 2: 'open' is no press of a button",
        "m\n*q\nopen": "line 1: 'm' is no press of a button",
    }.items():
        assert lock.verify_lock(text, response).detail == why
    # a is 0, and three times 0 is 0 for ever: the ninth press is one too many, the eighth is not
    assert lock.verify_lock("a>a!bcdefg", "*a\n" * 8 + "open").correct
    assert lock.verify_lock("a>a!bcdefg", "*a\n" * 9 + "open").detail == "9 presses, more than 8"
    assert LOCK.prefix_correct("a>a!bcdefg", "*a\n" * 8)
    assert not LOCK.prefix_correct("a>a!bcdefg", "*a\n" * 8 + "*")


def test_a_rule_by_hand() -> None:
    assert rule.verify_rule("kbk", "k3\nb1\nk3\n").correct
    for response, why in {
        "k3\nb2\nk3": "line 2: 'b2', expected b1",
        "k3\nb1": "2 lines, expected 3",
        "k3\nb1\nk3\nk3": "4 lines, expected 3",
        "b1\nk3\nk3": "line 1: 'b1', expected k3",
        "k4": "line 1: 'k4', expected k3",
        "": "line 1: '', expected k3",
    }.items():
        assert rule.verify_rule("kbk", response).detail == why


def test_a_story_by_hand() -> None:
    # 12 pens, buys 5: 17, counts them: 17, loses 4: 13
    text = "Ann has 12 pens. She buys 5. She counts 3. She loses 4."
    right = "buys +5=17\ncounts =17\nloses -4=13\n#13"
    assert stories.verify_stories(text, right + "\n").correct
    for response, why in {
        "buys -5=7\ncounts =7\nloses -4=3\n#3": "line 1: 'buys -5=7', expected buys +5=17",
        "buys +5=18\ncounts =18\nloses -4=14\n#14": "line 1: 'buys +5=18', expected buys +5=17",
        right.removesuffix("\n#13"): "3 lines, expected 4",
        right + "\n\n#13": "6 lines, expected 4",
        "#13": "line 1: '#13', expected buys +5=17",
    }.items():
        assert stories.verify_stories(text, response).detail == why


@pytest.mark.parametrize("puzzle", [LOCK, RULE, STORIES], ids=lambda puzzle: puzzle.name)
def test_guesses_have_the_right_form_and_are_seldom_right(puzzle: GuessedPuzzle) -> None:
    rng = np.random.default_rng(0)
    verify, right = verifier(puzzle), 0
    for _ in range(200):
        text = puzzle.draw(rng, 3)
        guess = puzzle.guess(text, rng)
        assert set(guess) <= set(puzzle.alphabet)
        verdict = verify(text, guess)
        right += verdict.correct
        assert verdict.correct == puzzle.prefix_correct(text, guess + "\n")
        assert not re.search(r"is no |is not right|leads to|not among", verdict.detail)
    assert 0 < right < 40  # of 200: about 3 with the lock, 7 with the others (200 / 27)


def test_every_generated_task_has_a_checker() -> None:
    assert {find_kind(name).puzzle for name in names("task.name")} == {ARITHMETIC, SUMS, None}
    assert all(kind_of(puzzle).puzzle == puzzle for puzzle in PUZZLES)
    assert all(
        not is_for_evaluation(item.reference) for item in puzzle_items(LOCK, 3, range(1, 4), 50, evaluation=False)
    )


def test_items_are_distinct_seeded_and_evaluation_is_apart_for_every_seed() -> None:
    train = [puzzle_items(ARITHMETIC, seed, range(2, 6), 400, evaluation=False) for seed in (0, 0, 1)]
    evaluation = [puzzle_items(ARITHMETIC, seed, range(2, 6), 100, evaluation=True) for seed in (0, 1)]
    assert train[0] == train[1] != train[2]
    assert evaluation[0] == evaluation[1]
    prompts = [{item.prompt for item in found} for found in (train[0], train[2], evaluation[0])]
    assert [len(found) for found in prompts] == [400, 400, 100]
    assert all(not a & b for a, b in itertools.combinations((prompts[0] | prompts[1], prompts[2]), 2))


def test_lengths_take_turns() -> None:
    levels = [item.level for item in puzzle_items(ARITHMETIC, 0, range(1, 4), 9, evaluation=False)]
    assert {level: levels.count(level) for level in levels} == {"1 operation": 3, "2 operations": 3, "3 operations": 3}


def test_more_problems_than_there_are_is_an_error() -> None:
    with pytest.raises(DataError, match=r"5000 .*1 to 1 operations"):
        puzzle_items(ARITHMETIC, 0, range(1, 2), 5000, evaluation=False)
