"""The rewards of a task together: each judges on its own, and the verdict has their weighted sum.

Invariant: whether a response is correct is what the first reward says that applies to it. A failure names its row.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from core.parts.judge import Asks, Case, Judge
from core.records import Verdict


@dataclass(frozen=True, slots=True)
class WeightedReward:
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

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self._rewards = rewards
        self._threads = ThreadPoolExecutor(len(rewards), thread_name_prefix="reward")
        asks = [reward.judge.asks for reward in rewards]
        self.asks = Asks(
            [name for each in asks for name in each.needed],
            [name for each in asks for name in each.optional],
            every_column=any(each.every_column for each in asks),
            ids=any(each.ids for each in asks),
            query=any(each.query for each in asks),
        )

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`."""
        by_reward = list(self._threads.map(lambda reward: reward.judge.judge(cases), self._rewards))
        return [self._sum(case, verdicts) for case, verdicts in zip(cases, zip(*by_reward, strict=True), strict=True)]

    def describe(self, solved: Case | None, rule: str) -> list[str]:
        """A line for each reward, which also says whether it decides what is correct, by `rule`. `solved`: with a
        canonical solution as the response."""
        first, *others = (reward.described(solved) for reward in self._rewards)
        decides = f"decides what is correct: {rule}"
        return [f"{first}; {decides}", *(f"{text}; decides only where those before it do not apply" for text in others)]

    def _sum(self, case: Case, verdicts: Sequence[Verdict]) -> Verdict:
        place = f", on {case.where}" if case.where else ""
        applied = [
            (reward, verdict)
            for reward, verdict in zip(self._rewards, verdicts, strict=True)
            if not math.isnan(verdict.reward)
        ]
        if not applied:
            return Verdict(0.0, False, f"no reward applies{place}", judge_failed=True)
        several, (_, deciding) = len(self._rewards) > 1, applied[0]
        failed = next(((reward, verdict) for reward, verdict in applied if verdict.judge_failed), None)
        named, shown = failed or applied[0]
        detail = f"{named.label}: {shown.detail}" if shown.detail and several else shown.detail
        return Verdict(
            sum(reward.weight * verdict.reward for reward, verdict in applied),
            deciding.correct,
            detail + (place if failed else ""),
            failed is not None,
            tuple((end, reward.weight * of_step) for reward, verdict in applied for end, of_step in verdict.steps),
            tuple((reward.label, verdict.reward) for reward, verdict in applied) if several else (),
            deciding.share,
        )

    def close(self) -> None:
        """End the judges of all rewards."""
        for reward in self._rewards:
            reward.judge.close()
        self._threads.shutdown(wait=True)
