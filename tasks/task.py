"""A task: problems to train and evaluate on, and the judging of responses to them. `build_task` makes one from a config.

Called by `trainer` and `launch.py`. A task is a value plus its judging processes: `close` ends them. New tasks are added to
`BUILDERS`: what to train on, how a response is verified, and (where it can be known) whether a prefix is still correct.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Protocol

from core.config import RewardModelConfig, TaskConfig
from core.errors import ConfigError, DataError
from core.records import IntArray, Judged, Problem, Start, Trajectory, Verdict
from tasks.code.programs import limits_of, read_mbpp
from tasks.code.sandbox import START_LIMIT, check_sandbox
from tasks.dialogue.reward_model import RewardJudge, in_an_actor, in_this_process
from tasks.dialogue.rows import read_dialogue
from tasks.judge import JudgePool
from tasks.judge_local import LocalJudge
from tasks.mathematics.answers import gsm8k_answer, math_answer, read_gsm8k, read_math
from tasks.problems import Item, LeftOut, Read, Tokenizer, digest, encode, load_items, split_items
from tasks.synthetic import arithmetic, countdown, lock
from tasks.synthetic.generated import Puzzle, items

PrefixCheck = Callable[[Problem, str], bool]
"""Whether a prefix of a response (text) is still correct: exact, also for prefixes cut inside a line."""

Answer = Callable[[str], str | None]
"""The final answer in a response, written so that equal answers are equal texts; None where there is none."""


class Judges(Protocol):
    """Whoever judges responses, outside the driver or in it."""

    def judge(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (reference, response) pairs, in order."""
        ...

    def wait_until_ready(self) -> None:
        """Raises ConfigError when they cannot judge."""
        ...

    def close(self) -> None:
        """End their processes."""
        ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a kind of task needs: its items (train, evaluation, duplicates dropped), verifier and prefix checker."""

    items: Callable[[TaskConfig, int], tuple[list[Item], list[Item], int]]
    verifier: str  # import path of a `tasks.judge_worker.Verify`; of what makes one, when the verifier runs programs; empty: the reward model judges
    prefix_correct: PrefixCheck | None = None
    answer: Answer | None = None  # where responses end in short answers that can be voted on
    runs_programs: bool = False  # of the model, in a sandbox


class Task:
    """Problems and their judge.

    Lifecycle: `build_task` starts the judging processes, `judge` may be called any number of times, `close` ends them.
    """

    def __init__(
        self,
        train: list[Problem],
        evaluation: list[Problem],
        *,
        left_out: LeftOut,
        prefix_correct: PrefixCheck | None,
        answer: Answer | None,
        tokenizer: Tokenizer,
        judges: Judges,
        fingerprint: str,
    ) -> None:
        self.train = train
        self.evaluation = evaluation
        self.left_out = left_out
        self.prefix_correct = prefix_correct
        self.answer = answer
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        self._judges = judges
        self._held_out = {digest(self.decode(problem.prompt_ids)): problem.id for problem in evaluation}
        self._references = {problem.id: problem.reference for problem in (*train, *evaluation)}

    def decode(self, ids: IntArray) -> str:
        """The text of response tokens, without end-of-sequence and other special tokens."""
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def check_starts(self, starts: Iterable[Start]) -> None:
        """Raises DataError when a training rollout would begin from an evaluation problem, by the hash of its prompt's text.

        Everything that is trained on or replayed begins with such a start, so this keeps evaluation problems out of both.
        """
        fresh = {start.problem_id: start.prompt_ids for start in starts}
        for problem_id, prompt in fresh.items():
            held = self._held_out.get(digest(self.decode(prompt)))
            if held is not None:
                raise DataError(
                    f"training start of problem {problem_id}: its prompt is that of evaluation problem {held}; remove it from "
                    f"task.path or task.eval_path"
                )

    def judge(self, trajectories: Sequence[Trajectory]) -> list[Judged]:
        """A verdict for every trajectory, in the same order, on its whole response (prefix and continuation)."""
        texts = self.tokenizer.batch_decode(
            [trajectory.response_ids.tolist() for trajectory in trajectories], skip_special_tokens=True
        )
        references = [self._references[trajectory.start.problem_id] for trajectory in trajectories]
        verdicts = self._judges.judge(list(zip(references, texts, strict=True)))
        return [Judged(trajectory, verdict) for trajectory, verdict in zip(trajectories, verdicts, strict=True)]

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

    `reward_model` judges tasks that have no verifier (default: none is named).
    """
    recipe = BUILDERS[config.name]
    train, evaluation, duplicates = task_items(config, seed)
    split = encode(
        config,
        tokenizer,
        train,
        evaluation,
        duplicates=duplicates,
        max_prompt_tokens=max_prompt_tokens,
        max_response_tokens=max_response_tokens,
    )
    judges = start_judges(config, reward_model)
    return Task(
        split.train,
        split.evaluation,
        left_out=split.left_out,
        prefix_correct=recipe.prefix_correct,
        answer=recipe.answer,
        tokenizer=tokenizer,
        judges=judges,
        fingerprint=fingerprint(config.name, split.train, tokenizer),
    )


def task_items(config: TaskConfig, seed: int) -> tuple[list[Item], list[Item], int]:
    """Training and evaluation items of any task, and the number of duplicates dropped. Raises DataError."""
    return BUILDERS[config.name].items(config, seed)


PROBED = 4
"""Problems that `check_judges` has judged with nothing for a response: the shortest, which pass the length filters."""
SLOW = 256
"""Canonical solutions that it has judged where a verdict takes long: programs, and rewards of the user's own."""


def check_judges(config: TaskConfig, items: Sequence[Item], reward_model: RewardModelConfig | None = None) -> str:
    """Have the shortest problems judged, with their canonical solution and with nothing for a response, then all canonical solutions.

    Returns how many of these are wrong, in a line. Raises ConfigError when the judge has no verdict of the shortest: it raises,
    hangs, crashes or returns no finite number; DataError when a verifier of ours finds all canonical solutions wrong.
    """
    judges = start_judges(config, reward_model, check=True)
    try:
        shortest = nsmallest(PROBED, items, key=lambda item: len(item.prompt) + len(item.solution or ""))
        probes = [(item.reference, text) for item in shortest for text in {item.solution or "", ""}]
        verdicts = (judges.judge([probe])[0] for probe in probes)  # one by one: the first failure is enough
        failed = next((verdict for verdict in verdicts if verdict.judge_failed), None)
        if failed is not None:
            name = f"task.reward = {config.reward}" if config.reward else f"task {config.name}"
            raise ConfigError(f"{name}: {failed.detail} (on one of the shortest problems); mend the reward function")
        return _check_solutions(config, items, judges)
    finally:
        judges.close()


def _check_solutions(config: TaskConfig, items: Sequence[Item], judges: Judges) -> str:
    recipe = BUILDERS[config.name]
    solved = [item for item in items if item.solution is not None]
    if not solved:
        return "canonical solutions: none"
    if judged_by_model(config):  # its score of one is neither right nor wrong
        return f"canonical solutions: {len(solved)}"
    if config.reward or recipe.runs_programs:
        solved = solved[:: -(-len(solved) // SLOW)]
    verdicts = judges.judge([(item.reference, item.solution or "") for item in solved])
    wrong = [(item, verdict) for item, verdict in zip(solved, verdicts, strict=True) if not verdict.correct]
    if not wrong:
        return f"canonical solutions: {len(solved)} judged, all correct"
    first, why = wrong[0]
    told = f"{first.where or repr(first.prompt[:60])}: {why.detail or f'reward {why.reward:g}'}"
    if len(wrong) == len(solved) and not config.reward:
        raise DataError(
            f"all {len(solved)} canonical solutions are judged wrong, the first of {told}; name the right task and columns, or "
            f"mend the data set"
        )
    return f"canonical solutions: {len(wrong)} of {len(solved)} judged wrong, the first of {told}"


def judged_by_model(config: TaskConfig) -> bool:
    """Whether the task's responses are scored by a reward model."""
    return not config.reward and not BUILDERS[config.name].verifier


def start_judges(config: TaskConfig, reward_model: RewardModelConfig | None = None, *, check: bool = False) -> Judges:
    """The judges of a task; `check`: without Ray. Raises ConfigError when the user's reward cannot be imported or no sandbox can be made."""
    recipe = BUILDERS[config.name]
    if config.reward:
        try:  # the user's code: find out now, not after the first rollouts
            return _ready(_judges(config, config.reward, config.judge_timeout))
        except ConfigError as error:
            raise ConfigError(f"task.reward: {error}") from None
    if judged_by_model(config):
        local = check or not config.judge_workers
        return RewardJudge(reward_model or RewardModelConfig(), in_this_process if local else in_an_actor)
    if not recipe.runs_programs:
        return _judges(config, recipe.verifier, config.judge_timeout)
    limits = limits_of(config)
    check_sandbox(config.sandbox, limits)
    patience = 2 * (limits.wall + START_LIMIT)  # a program and its questions; the sandbox keeps the true limits
    return _judges(config, recipe.verifier, patience, config.code.worst, config.model_dump_json())


def _judges(
    config: TaskConfig, verifier: str, limit: float, failed_reward: float = 0.0, settings: str | None = None
) -> Judges:
    if not config.judge_workers:
        return LocalJudge(verifier, failed_reward, settings)
    return JudgePool(
        verifier,
        workers=config.judge_workers,
        limit=limit,
        memory_gib=config.judge_memory_gib,
        failed_reward=failed_reward,
        settings=settings,
    )


def _ready(judges: Judges) -> Judges:
    try:
        judges.wait_until_ready()
    except ConfigError:
        judges.close()
        raise
    return judges


def fingerprint(name: str, problems: Iterable[Problem], tokenizer: Tokenizer) -> str:
    """32 hex digits of the task's name, its training problems and the tokenizer's vocabulary.

    A replay store or checkpoint made under another fingerprint holds token ids that mean something else.
    """
    state = hashlib.blake2b(name.encode(), digest_size=16)
    state.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    for problem in problems:
        state.update(f"{problem.id}\x00{problem.reference}\x00".encode("utf-8", "surrogatepass"))
        state.update(problem.prompt_ids.tobytes())
    return state.hexdigest()


def text_items(config: TaskConfig) -> tuple[list[Item], list[Item], int]:
    """Training and evaluation items of a task whose problems are in files or on the hub. Raises DataError."""
    read = READERS[config.name]
    if not config.path:
        raise DataError(
            f"task.path is empty: task {config.name} needs a data set; name a file, directory or hub data set"
        )
    answers = config.name not in UNANSWERED
    evaluation = None
    if config.eval_path:
        evaluation = load_items(config, read, config.eval_path, config.eval_split, answers=answers)
    return split_items(config, load_items(config, read, config.path, config.split, answers=answers), evaluation)


def _synthetic_items(config: TaskConfig, seed: int) -> tuple[list[Item], list[Item], int]:
    puzzle = PUZZLES[config.name]
    lengths = range(config.min_operations, config.max_operations + 1)
    train = items(puzzle, seed, lengths, config.problems, evaluation=False)
    return train, items(puzzle, seed, lengths, config.eval_problems, evaluation=True), 0


def _text_items(config: TaskConfig, _seed: int) -> tuple[list[Item], list[Item], int]:
    return text_items(config)


def _prefix_check(prefix_correct: Callable[[str, str], bool]) -> PrefixCheck:
    return lambda problem, text: prefix_correct(problem.reference, text)


PUZZLES: Mapping[str, Puzzle] = {puzzle.name: puzzle for puzzle in (arithmetic.PUZZLE, lock.PUZZLE, countdown.PUZZLE)}

READERS: Mapping[str, Read] = {"gsm8k": read_gsm8k, "math": read_math, "mbpp": read_mbpp, "dialogue": read_dialogue}
UNANSWERED = ("dialogue",)
"""Tasks whose rows have no gold answer."""

BUILDERS: Mapping[str, Recipe] = {
    "arithmetic": Recipe(
        _synthetic_items,
        "tasks.synthetic.arithmetic:verify",
        _prefix_check(arithmetic.prefix_correct),
        arithmetic.answer,
    ),
    "lock": Recipe(_synthetic_items, "tasks.synthetic.lock:verify", _prefix_check(lock.prefix_correct)),
    "countdown": Recipe(_synthetic_items, "tasks.synthetic.countdown:verify", _prefix_check(countdown.prefix_correct)),
    "gsm8k": Recipe(_text_items, "tasks.mathematics.answers:verify_gsm8k", answer=gsm8k_answer),
    "math": Recipe(_text_items, "tasks.mathematics.answers:verify_math", answer=math_answer),
    "mbpp": Recipe(_text_items, "tasks.code.programs:verifier", runs_programs=True),
    "dialogue": Recipe(_text_items, ""),
}
