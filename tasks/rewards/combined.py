"""The rewards of a task together: each judges on its own, and the verdict has their weighted sum.

Invariant: whether a response is correct is what the first reward says that applies to it. A failure names its row.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from core.protocols import Asks, Case, Judge
from core.records import Verdict


@dataclass(frozen=True, slots=True)
class Part:
    """One of the rewards of a task."""

    label: str  # its name in metrics
    weight: float
    judge: Judge

    def described(self, solved: Case | None) -> str:
        """Its name, weight and shape, and its value for a canonical solution, if there is one."""
        text = f"reward {self.label}: weight {self.weight:g}, {self.judge.asks.shape}"
        if solved is None:
            return text
        (verdict,) = self.judge.judge([solved])
        value = "does not apply to" if math.isnan(verdict.reward) else f"gives {verdict.reward:g} for"
        return f"{text}, {value} a canonical solution"


class Rewards:
    """The judge of a task with rewards of the user's own, one or several."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._threads = ThreadPoolExecutor(len(parts), thread_name_prefix="reward")
        asks = [part.judge.asks for part in parts]
        self.asks = Asks(
            [name for each in asks for name in each.needed],
            [name for each in asks for name in each.optional],
            every_column=any(each.every_column for each in asks),
            ids=any(each.ids for each in asks),
            query=any(each.query for each in asks),
        )

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.protocols.Judge`."""
        by_part = list(self._threads.map(lambda part: part.judge.judge(cases), self._parts))
        return [self._sum(case, verdicts) for case, verdicts in zip(cases, zip(*by_part, strict=True), strict=True)]

    def describe(self, solved: Case | None) -> list[str]:
        """A line for each reward, which also says whether it decides what is correct. `solved`: with a canonical
        solution as the response."""
        first, *others = (part.described(solved) for part in self._parts)
        decides = "decides what is correct: above 0, or what its Verdict or `acc` says"
        return [f"{first}; {decides}", *(f"{text}; decides only where those before it do not apply" for text in others)]

    def _sum(self, case: Case, verdicts: Sequence[Verdict]) -> Verdict:
        place = f", on {case.where}" if case.where else ""
        applied = [(part, one) for part, one in zip(self._parts, verdicts, strict=True) if not math.isnan(one.reward)]
        if not applied:
            return Verdict(0.0, False, f"no reward applies{place}", judge_failed=True)
        failed = next(((part, one) for part, one in applied if one.judge_failed), None)
        part, told = failed or applied[0]
        detail = f"{part.label}: {told.detail}" if told.detail and len(self._parts) > 1 else told.detail
        return Verdict(
            sum(part.weight * one.reward for part, one in applied),
            applied[0][1].correct,
            detail + (place if failed else ""),
            failed is not None,
            tuple((end, part.weight * paid) for part, one in applied for end, paid in one.steps),
            tuple((part.label, one.reward) for part, one in applied) if len(self._parts) > 1 else (),
            applied[0][1].share,
        )

    def close(self) -> None:
        """End the judges of all parts."""
        for part in self._parts:
            part.judge.close()
        self._threads.shutdown(wait=True)
