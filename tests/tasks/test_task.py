"""A whole task: built from a config, judged through its processes, identified by its fingerprint."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.config import Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.records import Finish, Problem, Rollout, Start
from tasks.judging import check_judge
from tasks.kinds import task_items
from tasks.limits import TokenLimits
from tasks.problems import Tokenizer
from tasks.synthetic.arithmetic import ARITHMETIC
from tasks.synthetic.corpus import character_tokenizer
from tasks.task import Task, build_task, task_fingerprint

SMALL = TaskConfig(problems=40, eval_problems=14, judge_timeout=60.0)  # the machine may be busy


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return character_tokenizer(ARITHMETIC.alphabet)


@pytest.fixture(scope="module")
def task(tokenizer: Tokenizer) -> Iterator[Task]:
    built = build_task(SMALL, tokenizer, limits=TokenLimits(32, 80), context=8192, seed=0)
    yield built
    built.close()


def trajectory(problem: Problem, prefix: list[int], tokens: list[int]) -> Rollout:
    start = Start("s", problem.id, problem.prompt_ids, np.array(prefix, np.int32), 1, 0)
    zeros = np.zeros(len(tokens))
    return Rollout(start, 0, np.array(tokens, np.int32), zeros.astype(np.float32), zeros.astype(np.int32), Finish.STOP)


def test_the_default_task_fits_the_default_budgets(tokenizer: Tokenizer) -> None:
    built = build_task(TaskConfig(), tokenizer, limits=TokenLimits(32, 80), context=8192, seed=0)
    built.close()
    assert (len(built.train), len(built.evaluation)) == (4096, 256)
    assert all(problem.solution_ids is not None for problem in built.train)
    assert not {problem.id for problem in built.train} & {problem.id for problem in built.evaluation}
    assert str(built.left_out).startswith("0 duplicate prompts and 0 prompts over")


def test_whole_responses_are_judged_in_order(task: Task, tokenizer: Tokenizer) -> None:
    rows, want = [], []
    for i, problem in enumerate((*task.train, *task.evaluation)):
        assert problem.solution_ids is not None
        ids = problem.solution_ids.tolist()
        cut = i % len(ids)
        rows.append(trajectory(problem, ids[:cut], ids[cut:]))
        rows.append(trajectory(problem, ids[:cut], [tokenizer("#")["input_ids"][0], tokenizer.eos_token_id]))
        want += [1.0, 0.0]
    judged = task.judge(rows)
    assert [one.tokens for one in judged] == [row.tokens for row in rows]
    assert [one.verdict.reward for one in judged] == want


def test_prefixes_are_checked_exactly(task: Task) -> None:
    problem = task.train[0]
    assert problem.solution_ids is not None
    begun = problem.solution_ids[:7]
    assert task.prefix_is_wrong(problem.id, begun) is False
    wrong = np.append(begun, problem.solution_ids[:1])  # an operator twice, or a digit too many
    assert task.prefix_is_wrong(problem.id, wrong) is True


def test_the_fingerprint_names_task_data_and_vocabulary(task: Task, tokenizer: Tokenizer) -> None:
    same = build_task(SMALL, tokenizer, limits=TokenLimits(32, 80), context=8192, seed=0)
    other = build_task(SMALL, tokenizer, limits=TokenLimits(32, 80), context=8192, seed=1)
    same.close()
    other.close()
    assert same.fingerprint == task.fingerprint != other.fingerprint
    assert task_fingerprint("x", task.train, tokenizer) != task.fingerprint
    assert (
        task_fingerprint("arithmetic", task.train, character_tokenizer("#" + ARITHMETIC.alphabet)) != task.fingerprint
    )


def test_gsm8k_comes_from_its_files(shared_data: Path, whole_data: bool) -> None:
    folder = shared_data / "gsm8k"
    rows, evaluated = (7473, 100) if whole_data else (10, 5)
    config = TaskConfig(
        name="gsm8k",
        path=str(folder),
        eval_path=str(folder),
        eval_problems=evaluated,
        problems=10_000,
        columns=Columns(prompt="question", answer="answer", solution="answer"),
        template="Question: {prompt}\nAnswer: ",
        judge_timeout=60.0,
    )
    printable = character_tokenizer("".join(chr(code) for code in range(32, 127)) + "\n")
    built = build_task(config, printable, limits=TokenLimits(600, 400), context=8192, seed=0)
    problem = built.train[0]
    assert built.decode(problem.prompt_ids).startswith("Question: Natalia sold clips to 48 of her friends")
    assert problem.reference == "72"
    assert problem.solution_ids is not None
    good = trajectory(problem, [], problem.solution_ids.tolist())
    assert [one.verdict.correct for one in built.judge([good, trajectory(problem, [], [5])])] == [True, False]
    built.close()
    out = built.left_out
    assert len(built.train) + len(built.evaluation) + out.long_prompts + out.duplicates == rows + evaluated


def test_a_text_task_without_data_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"task\.path"):
        build_task(TaskConfig(name="math"), tokenizer, limits=TokenLimits(9, 9), context=8192, seed=0)


def test_a_reward_of_the_users_own_is_called_in_the_judging_processes(tokenizer: Tokenizer) -> None:
    def judged(limit: float, *texts: str) -> list[tuple[float, str]]:
        update = {"reward": "tests.tasks.verifiers:half_for_the_digit", "judge_timeout": limit}
        built = build_task(SMALL.model_copy(update=update), tokenizer, limits=TokenLimits(32, 80), context=8192, seed=0)
        rows = [trajectory(built.train[0], [], tokenizer(text)["input_ids"]) for text in texts]
        verdicts = [one.verdict for one in built.judge(rows)]
        built.close()
        return [(verdict.reward, verdict.detail.replace(built.train[0].id, "ID")) for verdict in verdicts]

    assert judged(60.0, "7", "9") == [(0.5, ""), (0.0, "judge raised ValueError: nine (verifiers.py, line 30), on ID")]
    assert judged(0.2, "8") == [(0.0, "judge timed out after 2 s, on ID")]  # it sleeps: 10 x its processor time


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raising", "judge raised KeyError: 'weights'"),
        ("not_a_number", "judge returned a reward of nan"),
        ("tensor", "judge raised RuntimeError: a Tensor with 2 elements"),
        ("nothing_returned", "judge returned NoneType, expected a number or a Verdict"),
        ("hanging", "judge timed out after 2 s"),
        ("much_memory", "judge raised MemoryError"),
    ],
)
def test_a_reward_that_gives_no_number_is_found_by_check(name: str, why: str) -> None:
    limit = 0.2 if name == "hanging" else 60.0  # others import torch on a machine that may be busy
    config = SMALL.model_copy(update={"reward": f"tests.tasks.verifiers:{name}", "judge_timeout": limit})
    train = task_items(config, 0).train
    with pytest.raises(ConfigError, match=rf"task\.reward = tests\.tasks\.verifiers:{name}: {why}"):
        check_judge(config, train)


def test_a_reward_that_gives_numbers_passes_the_check() -> None:
    config = SMALL.model_copy(update={"reward": "tests.tasks.verifiers:half_for_the_digit"})
    check_judge(config, task_items(config, 0)[0])


def gsm8k_rows(folder: Path, answers: list[str]) -> TaskConfig:
    file = folder / "rows.jsonl"
    rows = [{"question": f"{i}?", "answer": str(i), "solution": answer} for i, answer in enumerate(answers)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(prompt="question", solution="solution")
    return TaskConfig(name="gsm8k", path=str(file), eval_problems=1, columns=columns, judge_timeout=60.0)


def test_canonical_solutions_that_are_judged_wrong_are_counted_by_check(tmp_path: Path) -> None:
    def told(config: TaskConfig) -> str:
        train, evaluation, *_ = task_items(config, 0)
        assert len(train) + len(evaluation) == 9
        return check_judge(config, sorted([*train, *evaluation], key=lambda item: item.prompt))

    answers = [f"#### {i}" for i in range(9)]
    config = gsm8k_rows(tmp_path, answers)
    assert told(config) == "canonical solutions: 9 judged, all correct"
    gsm8k_rows(tmp_path, [*answers[:7], "7", "#### 9"])
    why = r"no answer found: expected '#### n' or '\boxed{n}'"
    got = "judged were the reference '7' and the response '7'"
    assert (
        told(config)
        == f"warning: canonical solutions: 2 of 9 judged wrong, the first of {config.path}: row 8: {why}; {got}"
    )
    gsm8k_rows(tmp_path, ["#### 10"] * 9)
    with pytest.raises(DataError, match=r"all 9 .*row 1: .*'10'"):
        told(config)
    task = {"name": "task", "weight": 0.5}
    several = [{"name": "tests.tasks.verifiers:half_for_the_digit"}, task]
    first, second, wrong = told(TaskConfig.model_validate(config.model_dump() | {"rewards": several})).splitlines()
    assert first.startswith(
        "reward half_for_the_digit: weight 1, shape (reference, response), gives 0 for a canonical "
    )
    assert first.endswith("; decides what is correct: above 0, or what its Verdict or `acc` says")
    assert second.startswith("reward task: weight 0.5, shape (reference, response), gives 0 for a canonical solution; ")
    assert second.endswith("decides only where those before it do not apply")
    assert wrong.startswith("warning: canonical solutions: 9 of 9 judged wrong")  # a user's reward may mean something
    assert wrong.endswith("judged were the reference '0' and the response '#### 10'")  # else by it


def test_a_reward_that_is_not_there_is_found_when_the_task_is_built(tokenizer: Tokenizer) -> None:
    config = SMALL.model_copy(update={"reward": "no_such_module:reward"})
    with pytest.raises(ConfigError, match=r"task\.reward: .*'no_such_module:reward'"):
        build_task(config, tokenizer, limits=TokenLimits(32, 80), context=8192, seed=0)


def test_a_start_from_an_evaluation_problem_is_refused_by_its_text(task: Task, tokenizer: Tokenizer) -> None:
    def start(problem_id: str, text: str) -> Start:
        return Start("1.f0", problem_id, np.array(tokenizer(text)["input_ids"], np.int32), np.zeros(0, np.int32), 1, 0)

    task.check_starts([start(problem.id, task.decode(problem.prompt_ids)) for problem in task.train])
    text = task.decode(task.evaluation[0].prompt_ids)
    for leaked in (text, f"\n{text}\n"):  # another id and other white space: the same question
        with pytest.raises(DataError, match="arithmetic-"):
            task.check_starts([start("harmless", leaked)])


def test_equal_answers_to_one_problem_have_one_vote(tmp_path: Path) -> None:
    """`2x` is right; the wrong `\\frac{\\pi}{2}` and `\\dfrac{\\pi}{2}` are one answer by the judge's own equality."""
    rows = [{"prompt": f"{i}?", "answer": "2x"} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    letters = character_tokenizer("".join(map(chr, range(32, 127))))
    config = TaskConfig(name="math", path=str(tmp_path / "rows.jsonl"), eval_problems=1, judge_workers=0)
    built = build_task(config, letters, limits=TokenLimits(32, 80), context=8192, seed=0)
    said = [r"\frac{\pi}{2}", r"\dfrac{\pi}{2}", "2x", "x+x", "nothing"]
    texts = [rf"\boxed{{{text}}}" for text in said[:4]] + said[4:]
    judged = built.judge([trajectory(built.train[0], [], letters(text)["input_ids"]) for text in texts])
    assert [one.verdict.correct for one in judged] == [False, False, True, True, False]
    assert list(built.votes(judged).values()) == [[said[0], said[0], "2x", "2x", None]]
    built.close()
