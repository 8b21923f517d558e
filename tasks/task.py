"""A task: its problems for training and evaluation, and its judges. `build_task` makes one from a config.

Called by `trainer`. The kinds of task are in `tasks/kinds.py`.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from core.config import RewardModelConfig, TaskConfig
from core.errors import DataError
from core.records import IntArray, Judged, Problem, Start, Trajectory
from tasks.estimators import merge_answers
from tasks.judging import Judges, start_judges
from tasks.kinds import KINDS, TaskKind, task_items
from tasks.problems import Split, Tokenizer, encode_problems, prompt_digest
from tasks.steps import judged_of


class Task:
    """Problems and their judge.

    Lifecycle: `build_task` starts the judging processes, `judge` may be called any number of times, `close` ends them.
    """

    def __init__(self, kind: TaskKind, split: Split, tokenizer: Tokenizer, judges: Judges, fingerprint: str) -> None:
        self.train, self.evaluation, self.left_out = split.train, split.evaluation, split.left_out
        self.answer = kind.answer
        self._answer_is_reference = kind.answer_is_reference
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        # problem, prefix of a response (text) -> whether it is still correct; exact, also inside a line
        self.prefix_correct: Callable[[Problem, str], bool] | None = None
        if (puzzle := kind.puzzle) is not None:
            self.prefix_correct = lambda problem, text: puzzle.prefix_correct(problem.reference, text)
        self._judges = judges
        self._evaluated = {prompt_digest(self.decode(problem.prompt_ids)): problem.id for problem in self.evaluation}
        self._references = {problem.id: problem.reference for problem in (*self.train, *self.evaluation)}

    def decode(self, ids: IntArray) -> str:
        """The text of response tokens, without end-of-sequence and other special tokens."""
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def check_starts(self, starts: Iterable[Start]) -> None:
        """Raises DataError when a start has the prompt of an evaluation problem, by the hash of its text.

        All training and replay begins with a start, so this keeps evaluation problems out of both.
        """
        prompts = {start.problem_id: start.prompt_ids for start in starts}
        for problem_id, prompt in prompts.items():
            evaluated = self._evaluated.get(prompt_digest(self.decode(prompt)))
            if evaluated is not None:
                raise DataError(
                    f"training start of problem {problem_id}: it has the prompt of evaluation problem {evaluated}; remove it "
                    f"from task.path or task.eval_path"
                )

    def judge(self, trajectories: Sequence[Trajectory]) -> list[Judged]:
        """Judge the whole response (prefix and continuation) of every trajectory. The order stays the same."""
        texts = self.tokenizer.batch_decode(
            [trajectory.response_ids.tolist() for trajectory in trajectories], skip_special_tokens=True
        )
        references = [self._references[trajectory.start.problem_id] for trajectory in trajectories]
        verdicts = self._judges.judge(list(zip(references, texts, strict=True)))
        pairs = zip(trajectories, verdicts, strict=True)
        return [judged_of(trajectory, verdict, self.decode) for trajectory, verdict in pairs]

    def votes(self, judged: Sequence[Judged]) -> list[str | None]:
        """The final answer of each response for maj@k; one text for all answers to a problem that the judge calls equal."""
        assert self.answer is not None
        texts = [self.decode(item.trajectory.response_ids) for item in judged]
        answers = [self.answer(text) for text in texts]
        if not self._answer_is_reference:
            return answers
        by_problem: defaultdict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(judged):
            by_problem[item.trajectory.start.problem_id].append(place)
        for places in by_problem.values():

            def _same(pairs: list[tuple[int, int]], places: list[int] = places) -> list[bool]:
                asked = [(answers[places[i]] or "", texts[places[j]]) for i, j in pairs]
                return [verdict.correct for verdict in self._judges.judge(asked)]

            correct = [judged[place].verdict.correct for place in places]
            for place, answer in zip(places, merge_answers([answers[i] for i in places], correct, _same), strict=True):
                answers[place] = answer
        return answers

    def close(self) -> None:
        """End the judging processes."""
        self._judges.close()


def build_task(
    config: TaskConfig,
    tokenizer: Tokenizer,
    *,
    max_prompt_tokens: int,
    max_response_tokens: int,
    seed: int,
    reward_model: RewardModelConfig | None = None,
) -> Task:
    """The task of a config, with its judging processes started. Raises DataError, ConfigError, ModelError.

    `reward_model`: judges tasks without a verifier.
    """
    items = task_items(config, seed)
    split = encode_problems(
        config, tokenizer, items, max_prompt_tokens=max_prompt_tokens, max_response_tokens=max_response_tokens
    )
    judges = start_judges(config, reward_model)
    return Task(KINDS[config.name], split, tokenizer, judges, task_fingerprint(config.name, split.train, tokenizer))


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
