"""A rollout with a false equation, from the task to the store: what is stored, imitated and reported."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from core.config import Columns, ReplayConfig, TaskConfig
from core.parts.sources import Progress, roots
from core.records import Finish, Rollout
from replay.boundaries import TokenTable, boundaries
from replay.coverage import Coverage
from replay.cutting import IsWrong
from replay.errors import erroneous_states
from replay.imitation import Imitation, own_successes
from replay.source import Cutting, Replay
from replay.store.store import ReplayStore
from tasks.limits import TokenLimits
from tasks.synthetic.corpus import character_tokenizer
from tasks.task import Task, build_task
from tests.replay.made import sample

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
GOOD = "She sold 48/2 = 24 clips.\nThat makes 48+24 = 72.\n#### 72"
LUCKY = "She sold 48/2 = 24 clips.\nThat makes 48/24 = 72.\nSo it is 72.\n#### 72"
LOST = "She sold 48/2 = 20 clips.\nThat makes 68.\n#### 68"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Task]:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"question": f"How many clips in {year}?", "answer": "#### 72"} for year in range(2000, 2008)]
    file.write_text("\n".join(map(json.dumps, rows)))
    columns = Columns(prompt="question", answer="answer")
    config = TaskConfig(name="gsm8k", path=str(file), columns=columns, eval_problems=2, judge_timeout=60.0)
    limits = TokenLimits(100, 200)
    built = build_task(config, character_tokenizer(CHARACTERS), limits=limits, context=8192, seed=0)
    yield built
    built.close()


def rollouts(task: Task, *texts: str) -> list[Rollout]:
    """Judged rollouts of one problem."""
    start, made = roots(task.train[:1], len(texts), 0)[0], []
    for number, text in enumerate(texts):
        tokens = np.array([*task.tokenizer(text)["input_ids"], task.tokenizer.eos_token_id], np.int32)
        log_p, zeros = np.full(tokens.size, -0.1, np.float32), np.zeros(tokens.size, np.int32)
        values = np.zeros(tokens.size, np.float32)
        made.append(Rollout(start, number, tokens, log_p, zeros, Finish.STOP, values=values))
    return task.judge(made)


def stored(task: Task, judged: list[Rollout], folder: Path, is_wrong: IsWrong | None) -> tuple[list[str], list[str]]:
    """The texts of the states that a store keeps of the rollouts, and of the successes that it has for imitation."""
    config, at = ReplayConfig(ranking="uniform"), Progress(0, 1, 10, 1, version=1)
    problems = {problem.id: problem for problem in task.train}
    store = ReplayStore(config, vocabulary=200, directory=folder, fingerprint="task", local=True)
    ends = partial(boundaries, table=TokenTable.from_tokenizer(task.tokenizer), rule="line", stride=0)
    imitation = Imitation("imitated", 32, own_successes, problems, is_wrong)
    for source in (Replay(config, store, problems, Coverage(1), Cutting(ends, 200, is_wrong), refreshed=0), imitation):
        source.observe(judged, at)
    states = [task.decode(state.prefix_ids) for state in sample(store, 100, seed=0)]
    return sorted(states), [task.decode(each.response_ids) for each in imitation.extra([], at)]


def test_states_end_before_the_false_equation_and_a_lucky_success_is_not_imitated(task: Task, tmp_path: Path) -> None:
    judged = rollouts(task, LUCKY, LOST)
    assert [item.verdict.correct for item in judged] == [True, False]
    assert stored(task, judged, tmp_path, task.prefix_is_wrong) == (["She sold 48/2 = 24 clips.\n"], [])
    states, imitated = stored(task, judged, tmp_path, None)
    assert (len(states), imitated) == (3 + 2, [LUCKY])  # a state after each line but the last


def test_a_success_without_an_error_is_kept_whole(task: Task, tmp_path: Path) -> None:
    judged = rollouts(task, GOOD, LOST)
    states, imitated = stored(task, judged, tmp_path, task.prefix_is_wrong)
    assert (len(states), imitated) == (2, [GOOD])


def test_the_share_of_wrong_states_by_hand(task: Task) -> None:
    ends = partial(boundaries, table=TokenTable.from_tokenizer(task.tokenizer), rule="line", stride=0)
    judged = rollouts(task, GOOD, LUCKY, LOST, "I say\n#### 72")
    # 2 states of the first, none wrong; 3 of the second, 2 wrong; 2 of the third, both wrong; the last states nothing.
    assert erroneous_states(judged, ends, task.prefix_is_wrong) == 4 / 7


def test_only_a_response_that_has_ended_is_judged_to_its_end(task: Task) -> None:
    problem, read = task.train[0].id, task.tokenizer
    open_end = np.array(read("48/2 = 25")["input_ids"], np.int32)
    assert task.prefix_is_wrong(problem, open_end) is None
    assert task.prefix_is_wrong(problem, np.append(open_end, read.eos_token_id).astype(np.int32)) is True
