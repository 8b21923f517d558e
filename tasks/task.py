"""A task: its problems for training and evaluation, and its judges. `build_task` makes one from a config.

The kinds of task are in `tasks/kinds.py`.
"""

import hashlib
import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from core.config import ResolvedRewardModel, RolloutConfig, TaskConfig, evaluation_sets, every_source
from core.errors import DataError
from core.parts.judge import Case, Judge
from core.records import FloatArray, IntArray, Problem, Rollout, Start, Verdict
from tasks.dialogue.chat import anchor_of
from tasks.judging import start_judge
from tasks.kinds import TaskKind, find_kind, task_items
from tasks.limits import AskedLimits, TokenLimits
from tasks.pass_at_k import merge_answers
from tasks.problems import Items, Split, Tokenizer, encode_problems, prompt_digest
from tasks.worlds.problems import with_worlds


@dataclass(frozen=True, slots=True)
class JudgedSource:
    """One data set of a task: its share of the fresh problems, its kind, and its judge."""

    weight: float  # 0: it is only evaluated
    kind: TaskKind
    judge: Judge


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Problems that are evaluated beside the held-out ones."""

    problems: list[Problem]
    samples: int | None  # sampled responses per problem besides the greedy one; none: as for the held-out problems


class Task:
    """Problems and their judges.

    Lifecycle: `build_task` starts the judging processes, `judge` may be called any number of times, `close` ends them.
    """

    def __init__(
        self,
        sources: dict[str, JudgedSource],
        split: Split[Problem],
        limits: TokenLimits,
        tokenizer: Tokenizer,
        fingerprint: str,
        rows: Mapping[tuple[str, str], str],
        samples: Mapping[str, int | None],
    ) -> None:
        """`sources`: by label, which is empty if there is only one data set. `rows`: what `rows_of` kept of them.
        `samples`: of each evaluation set."""
        self.train, self.evaluation, self.left_out = split.train, split.evaluation, split.left_out
        self.sets = {
            label: EvaluationSet([problem for problem in split.sets if problem.source == label], count)
            for label, count in samples.items()
        }
        self.limits = limits
        self.fingerprint = fingerprint
        self.tokenizer, self._anchor = tokenizer, anchor_of(tokenizer)
        self.weights = {label: source.weight for label, source in sources.items() if label and source.weight}
        self._sources, self._rows = sources, rows
        self.evaluated = (*self.evaluation, *split.sets)  # with the evaluation sets
        self._evaluated = {self._asked(problem): problem.id for problem in self.evaluated}
        self._problems = {problem.id: problem for problem in (*self.train, *self.evaluated)}

    def prefix_is_wrong(self, problem_id: str, response: IntArray) -> bool | None:
        """Whether the beginning of a response [R] is wrong already, whatever follows; None if that cannot be told. A
        generated task checks it exactly, against the problem; of others only the text tells."""
        problem = self._problems[problem_id]
        kind = self._sources[problem.source].kind
        if kind.puzzle is not None:
            return not kind.puzzle.prefix_correct(problem.reference, self.decode(response))
        ended = response.size and int(response[-1]) in self.tokenizer.all_special_ids
        return kind.prefix_is_wrong(self.decode(response) + ("\n" if ended else ""))

    def decode(self, ids: IntArray) -> str:
        """The text of response tokens, without end-of-sequence and other special tokens."""
        before = self._anchor
        text = str(self.tokenizer.decode([*before, *ids.tolist()], skip_special_tokens=True))
        return text.removeprefix(str(self.tokenizer.decode(before))) if before else text

    def first_prompt(self, source: str) -> str:
        """The first prompt of a data set, as the model reads it. `source`: its label."""
        ids = next(problem.prompt_ids for problem in self._problems.values() if problem.source == source)
        return str(self.tokenizer.decode(ids.tolist()))

    def check_starts(self, starts: Iterable[Start]) -> None:
        """Raises DataError when a start has the prompt of an evaluation problem, by the hash of its text.

        All training and replay begins with a start, so this keeps evaluation problems out of both.
        """
        for problem_id, start in {start.problem_id: start for start in starts}.items():
            evaluated = self._evaluated.get(self._asked(start))
            if evaluated is not None:
                raise DataError(
                    f"training start of problem {problem_id}: it has the prompt of evaluation problem {evaluated}; "
                    "remove it from task.path or task.eval_path"
                )

    def _asked(self, what: Problem | Start) -> str:
        """Digest of a prompt; of a world's problem, because two worlds may begin with the same words."""
        return prompt_digest(self.decode(what.prompt_ids) if what.world is None else what.world.prompt)

    def judge(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Judge the whole response (prefix and continuation) of every rollout. The order stays the same."""
        texts = [self.decode(rollout.response_ids) for rollout in rollouts]
        problems = [self._problems[rollout.start.problem_id] for rollout in rollouts]
        judged: dict[int, Rollout] = {}
        for label, source in self._sources.items():
            rows = [row for row, problem in enumerate(problems) if problem.source == label]
            if not rows:
                continue
            cases = [self._case(source.judge, problems[row], rollouts[row], texts[row]) for row in rows]
            by_world = source.judge.asks.episode
            for row, verdict in zip(rows, source.judge.judge(cases), strict=True):
                steps = step_rewards(rollouts[row], verdict, self.decode, by_world)
                judged[row] = replace(rollouts[row], verdict=verdict, step_rewards=steps)
        return [judged[row] for row in range(len(rollouts))]

    def _case(self, judge: Judge, problem: Problem, rollout: Rollout, response: str) -> Case:
        """A response, with what the judge asks for."""
        asks = judge.asks
        question = problem.question if problem.world is None else problem.world.prompt
        where, columns = json.loads(self._rows.get((problem.source, question), '["", {}]'))
        ids = rollout.response_ids.tolist() if asks.ids or asks.query else []
        prompt = query = ""
        if asks.query:
            prompt_ids = problem.prompt_ids.tolist()
            prompt, query = self.tokenizer.batch_decode([prompt_ids, prompt_ids + ids])
        size = rollout.tokens.size
        return Case(
            problem.reference, response, where or problem.id, columns, ids, prompt, query, rollout.episode, size
        )

    def votes(self, judged: Sequence[Rollout]) -> dict[str, list[str | None]]:
        """By problem id the final answers of its responses for maj@k, with one text for all that the judge calls equal.

        Problems whose responses have no short answer are left out.
        """
        by_problem: defaultdict[str, list[Rollout]] = defaultdict(list)
        for item in judged:
            by_problem[item.start.problem_id].append(item)
        return {
            name: self._answers(source, items)
            for name, items in by_problem.items()
            if (source := self._sources[self._problems[name].source]).kind.answer is not None
        }

    def _answers(self, source: JudgedSource, judged: Sequence[Rollout]) -> list[str | None]:
        assert source.kind.answer is not None
        texts = [self.decode(item.response_ids) for item in judged]
        answers = [source.kind.answer(text) for text in texts]
        if source.kind.puzzle or source.kind.rows or not source.judge.asks.nothing:
            return answers  # the judge compares with the problem, not with an answer

        def _same(pairs: list[tuple[int, int]]) -> list[bool]:
            cases = [Case(answers[i] or "", texts[j]) for i, j in pairs]
            return [verdict.correct for verdict in source.judge.judge(cases)]

        return merge_answers(answers, [item.verdict.correct for item in judged], _same)

    def close(self) -> None:
        """End the judging processes."""
        for judge in {id(source.judge): source.judge for source in self._sources.values()}.values():
            judge.close()


JUDGING = {"name", "reward", "rewards", "success_reward", "judge_workers", "judge_timeout", "sandbox", "code"}
"""The fields by which the judges of two data sets differ. Those that agree in them share their processes."""


def build_task(
    config: TaskConfig,
    tokenizer: Tokenizer,
    *,
    limits: AskedLimits,
    context: int,
    seed: int,
    reward_model: ResolvedRewardModel | None = None,
    rollout: RolloutConfig | None = None,
    canonical: bool = False,
) -> Task:
    """The task of a config, with its judging processes started. Raises DataError, ConfigError, ModelError.

    `limits`: of prompts and responses, where they do not follow from the data; `context`: tokens that the model can
    read; `reward_model`: judges tasks without a verifier; `rollout`: names the environment; `canonical`: its answers in
    canonical solutions are looked for.
    """
    items = task_items(config, seed)
    if rollout is not None and rollout.environment:
        items = with_worlds(items, config.title, rollout, tokenizer, canonical)
    split, chosen = encode_problems(config, tokenizer, items, limits, context)
    data_sets = every_source(config)
    name = "+".join(f"{label}:{data.name}" if label else data.name for label, weight, data in data_sets if weight)
    samples = {data.label: entry.samples for data, entry in zip(evaluation_sets(config), config.eval_sets, strict=True)}
    with ExitStack() as started:  # a judge that does not start ends the others
        sources: dict[str, JudgedSource] = {}
        judges: dict[str, Judge] = {}
        for label, weight, data in data_sets:
            settings = data.model_dump_json(include=JUDGING)
            if settings not in judges:
                judges[settings] = start_judge(data, reward_model)
                started.callback(judges[settings].close)
            sources[label] = JudgedSource(weight, find_kind(data.name), judges[settings])
        fingerprint = task_fingerprint(name, split.train, tokenizer)
        task = Task(sources, split, chosen, tokenizer, fingerprint, rows_of(sources, items), samples)
        started.pop_all()
    return task


def rows_of(sources: Mapping[str, JudgedSource], items: Items) -> dict[tuple[str, str], str]:
    """By data set and question, as JSON: file and row, and the columns that the user's own rewards ask for."""
    rows = {}
    for item in (*items.train, *items.evaluation, *items.sets):
        columns = item.kept(sources[item.source].judge.asks)
        if columns or item.row is not None:
            rows[item.source, item.prompt] = json.dumps([item.where, columns], default=str)
    return rows


def task_fingerprint(name: str, problems: Iterable[Problem], tokenizer: Tokenizer) -> str:
    """32 hex digits of the task's name, its training problems and the tokenizer's vocabulary.

    The token ids in a replay store or checkpoint with another fingerprint have another meaning.
    """
    state = hashlib.blake2b(name.encode(), digest_size=16)
    state.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    for problem in problems:
        state.update(f"{problem.id}\x00{problem.reference}\x00".encode("utf-8", "surrogatepass"))
        state.update(problem.prompt_ids.tobytes())
    return state.hexdigest()


def step_rewards(
    trajectory: Rollout, verdict: Verdict, decode: Callable[[IntArray], str], by_world: bool = False
) -> FloatArray | None:
    """[C] reward of each continuation token; steps that end in the replayed prefix are context and give none. None
    without steps.

    A step that ends after `end` characters belongs to the first token with which the decoded response has so many, at
    the latest to the last token. If an environment wrote that token, it belongs to the turn before it. A turn's reward
    belongs to its last token; `by_world`: that of the last token is the verdict's already.
    """
    turns = () if trajectory.episode is None else trajectory.episode.rewards
    if not verdict.steps and not any(reward for _, reward in turns):
        return None
    response, context = trajectory.response_ids, trajectory.start.prefix_ids.size
    rewards = np.zeros(trajectory.tokens.size, np.float32)
    for end, reward in verdict.steps:
        length = bisect_left(range(1, response.size), end, key=lambda count: len(decode(response[:count]))) + 1
        if length > context:
            rewards[np.flatnonzero(trajectory.generated[: length - context])[-1]] += reward
    for at, reward in turns:
        rewards[at] += 0.0 if by_world and at == rewards.size - 1 else reward
    return rewards
