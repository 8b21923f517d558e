"""Evaluation on held-out problems, from the root only: a greedy response each for the accuracy, `evaluation.samples`
for pass@k and maj@k. Invariant: intervals take problems, not responses, to be independent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from core.errors import ActorError
from core.parts.sources import roots
from core.records import Problem, Rollout, Sampling
from core.seeds import derive, generator
from tasks.pass_at_k import Estimate, bootstrap, majority, pass_at_k, share

if TYPE_CHECKING:
    from tasks.task import Task
    from trainer.run import Pool


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """How responses are sampled."""

    greedy: Sampling
    sampled: Sampling
    samples: int  # sampled responses per problem besides the greedy one
    seed: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Estimates over problems."""

    success: Estimate  # greedy responses that are correct
    reward: Estimate  # of the greedy responses
    passes: dict[int, Estimate]  # by k = 1, 2, 4, ..., all samples: share of problems that one of k responses solves
    majority: Estimate | None  # share of problems with a right majority; None without samples or short answers


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """The result of a model on the held-out problems."""

    samples: int  # sampled responses per problem
    overall: Scores
    levels: dict[str, Scores]  # by difficulty
    sources: dict[str, Scores]  # by data set of a mixture; empty for a task of one data set
    truncated: float  # share of greedy responses that used up their token budget
    left_out: int  # problems that no engine could generate, or whose environment dropped an episode
    judge_failures: int  # responses, greedy and sampled, on which the judge failed; they count as wrong
    greedy: list[Rollout]  # one per problem
    sampled: list[Rollout]  # `samples` of problem 0, then of problem 1, ...
    sets: dict[str, Evaluation] = field(default_factory=dict)  # of the task's evaluation sets, by label

    def __repr__(self) -> str:
        return f"<Evaluation: {describe_evaluation(self)}>"

    @property
    def success(self) -> float:
        """Greedy accuracy."""
        return self.overall.success.mean


@dataclass(frozen=True, slots=True)
class _Row:
    success: float
    reward: float
    correct: int  # of the sampled responses
    majority: float | None


def evaluate_policy(actors: Pool, task: Task, plan: EvaluationPlan) -> Evaluation:
    """Evaluate the held-out problems, and each evaluation set. Raises ActorError as `evaluate_problems`."""
    result = evaluate_problems(actors, task, task.evaluation, plan)
    sets = {}
    for label, one in task.sets.items():
        own = replace(plan, samples=plan.samples if one.samples is None else one.samples, seed=derive(plan.seed, label))
        sets[label] = evaluate_problems(actors, task, one.problems, own)
    return replace(result, sets=sets)


def evaluate_problems(actors: Pool, task: Task, problems: Sequence[Problem], plan: EvaluationPlan) -> Evaluation:
    """Generate, judge and summarise what engines can generate. Raises ActorError when that is nothing."""
    greedy = actors.generate(roots(problems, 1, plan.seed), plan.greedy)
    answered = {item.start.problem_id for item in greedy}
    sampled: list[Rollout] = []
    if plan.samples:
        starts = roots(problems, plan.samples, derive(plan.seed, "sampled"))
        sampled = actors.generate(starts, plan.sampled)
        counts = Counter(item.start.problem_id for item in sampled)
        answered &= {name for name, count in counts.items() if count == plan.samples}
    if not answered:
        raise ActorError(
            f"evaluation: none of the {len(problems)} problems has all its responses; see the reason above"
        )
    kept = [[item for item in part if item.start.problem_id in answered] for part in (greedy, sampled)]
    judged, judged_samples = (task.judge(part) if part else [] for part in kept)
    answers = task.votes(judged_samples)
    kept_problems = [problem for problem in problems if problem.id in answered]
    left_out = len(problems) - len(kept_problems)
    return score_responses(kept_problems, judged, judged_samples, answers, plan.seed, left_out=left_out)


def score_responses(
    problems: Sequence[Problem],
    greedy: list[Rollout],
    sampled: list[Rollout],
    answers: Mapping[str, Sequence[str | None]],
    seed: int,
    *,
    left_out: int = 0,
) -> Evaluation:
    """Estimates over the answered problems (`left_out` counts the others), by level and data set. `greedy`: one
    response per problem; `sampled`: as many for each, problem 0's first, or none; `answers`: their `Task.votes`."""
    samples = len(sampled) // len(problems)
    rows = []
    for i, (problem, item) in enumerate(zip(problems, greedy, strict=True)):
        correct = [one.verdict.correct for one in sampled[i * samples : (i + 1) * samples]]
        vote = majority(answers[problem.id], correct) if problem.id in answers and samples else None
        rows.append(_Row(float(item.verdict.correct), item.reward, sum(correct), vote))

    def _grouped(name: Callable[[Problem], str]) -> dict[str, Scores]:
        groups: defaultdict[str, list[_Row]] = defaultdict(list)
        for problem, row in zip(problems, rows, strict=True):
            groups[name(problem)].append(row)
        return {group: _scores(groups[group], samples, generator(seed, group)) for group in sorted(groups)}

    by_source = _grouped(lambda problem: problem.source)
    return Evaluation(
        samples=samples,
        overall=_scores(rows, samples, generator(seed, "bootstrap")),
        levels=_grouped(lambda problem: problem.level),
        sources={label: scores for label, scores in by_source.items() if label},
        truncated=float(np.mean([item.finish.truncated for item in greedy])),
        left_out=left_out,
        judge_failures=sum(item.verdict.judge_failed for item in (*greedy, *sampled)),
        greedy=greedy,
        sampled=sampled,
    )


def _scores(rows: Sequence[_Row], samples: int, rng: np.random.Generator) -> Scores:
    votes = [row.majority for row in rows if row.majority is not None]
    return Scores(
        success=share([row.success for row in rows]),
        reward=bootstrap([row.reward for row in rows], rng=rng),
        passes={k: share([pass_at_k(samples, row.correct, k) for row in rows]) for k in powers(samples)},
        majority=share(votes) if votes else None,
    )


def powers(samples: int) -> list[int]:
    """The k of pass@k: powers of two up to the number of samples, and that number.

    >>> powers(6), powers(8), powers(0)
    ([1, 2, 4, 6], [1, 2, 4, 8], [])
    """
    return sorted({k for k in (2**i for i in range(samples.bit_length())) if k <= samples} | ({samples} - {0}))


def percent(estimate: Estimate) -> str:
    """Mean and interval as text."""
    return f"{100 * estimate.mean:.1f} % (95 % interval {100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def describe_evaluation(result: Evaluation) -> str:
    """The result in one line."""
    line = f"success {percent(result.overall.success)} on {result.overall.success.problems} held-out problems"
    parts = [f"pass@{k} {100 * estimate.mean:.1f} %" for k, estimate in result.overall.passes.items()]
    if result.overall.majority is not None:
        parts.append(f"maj@{result.samples} {100 * result.overall.majority.mean:.1f} %")
    parts += [f"{label} {100 * scores.success.mean:.1f} %" for label, scores in result.sources.items()]
    if result.left_out:
        parts.append(f"{result.left_out} problems left out: no engine could generate them")
    if result.judge_failures:
        parts.append(f"{result.judge_failures} verdicts counted as wrong: the judge failed")
    return ", ".join([line, *parts])
