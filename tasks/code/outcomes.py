"""What comes of each test of a program, and the reward for all of them."""

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, field
from typing import TypeVar

from core.config import CodeConfig
from core.records import Verdict
from tasks.code.sandbox import Ending, Report, Sandbox

Test = TypeVar("Test")
DOES_NOT_COMPILE, RAISES, FAILS = -1.0, -0.6, -0.3  # rewards where `task.code.reward` is graded (CodeRL, 2207.01780)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one test."""

    passed: bool
    why: str = ""  # it has not passed
    raised: bool = False  # the program raised, ended, or used too much, so that there is no answer
    syntax: bool = False  # the program does not compile


@dataclass(frozen=True, slots=True)
class Boxes:
    """Where programs run: the model's, and the data set's own (questions, checkers)."""

    program: Sandbox
    own: Sandbox
    config: CodeConfig = field(default_factory=CodeConfig)


def unanswered(report: Report, ending: Ending, skippable: Set[int] = frozenset()) -> Outcome | None:
    """The outcome of a test if an expression has no value, other than by raising in one of `skippable`."""
    raised = next((why for i, why in report.raised.items() if i not in skippable), "")
    why = report.syntax or report.failed or raised or ending.why
    if not why and len(report.values) + len(report.raised) == report.expected:
        return None
    return Outcome(False, why or f"ended itself with status {ending.status}", raised=True, syntax=bool(report.syntax))


def outcome_of_each(
    tests: Iterable[Test], run: Callable[[int, Test], tuple[Outcome, float]], seconds: float
) -> list[Outcome]:
    """Run the tests in order, until they have used up their seconds together, or the program does not compile. `run`
    returns the outcome of a test, and its seconds of processor time and of doing nothing."""
    outcomes: list[Outcome] = []
    for number, test in enumerate(tests):
        if outcomes and outcomes[0].syntax:
            outcomes.append(outcomes[0])
        elif seconds <= 0:
            why = "not run: the tests before it used up task.code.program_seconds"
            outcomes.append(Outcome(False, why, raised=True))
        else:
            outcome, used = run(number, test)
            outcomes.append(outcome)
            seconds -= used
    return outcomes


def grade(outcomes: list[Outcome], shown: Collection[int], config: CodeConfig) -> Verdict:
    """The verdict over all tests. `shown`: those that the prompt shows; one that passes counts only if it shows all."""
    first = next(((i, one) for i, one in enumerate(outcomes) if not one.passed), None)
    if first is None:
        return Verdict(1.0, True)
    graded = config.reward == "graded"
    if first[1].syntax:
        return Verdict(DOES_NOT_COMPILE if graded else 0.0, False, f"does not compile: {first[1].why}")
    raised = [one for one in outcomes if one.raised]
    if len(raised) == len(outcomes):
        return Verdict(RAISES if graded else 0.0, False, f"run-time error: {raised[0].why}")
    shows_all = len(set(shown)) == len(outcomes)
    counted = [one for i, one in enumerate(outcomes) if shows_all or i not in shown or not one.passed]
    share = 0.0 if config.reward == "all" else sum(one.passed for one in counted) / len(counted)
    passed = sum(one.passed for one in outcomes)
    why = f"passed {passed} of {len(outcomes)} tests; {'error in' if first[1].raised else 'failed'} {first[1].why}"
    return Verdict(FAILS + share * (1.0 - FAILS) if graded else share, False, why, share=share)
