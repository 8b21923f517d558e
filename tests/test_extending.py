"""Every block of docs/extending.md, as a user's own module in the folder that the program was started from."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.config import ReplayConfig, TaskConfig
from core.errors import ConfigError
from core.interruption import Interruption
from core.load import parse_config
from core.parts.judge import Case
from core.records import Provenance
from core.run_directory import RunDirectory
from learner.estimators import find_estimator
from learner.methods import check_estimator, check_policy_loss
from monitor.trackers import check_trackers, open_trackers
from replay.cutting import States
from replay.rankings.find import check_ranking
from replay.store.store import ReplayStore
from tasks.judging import start_judge
from tasks.kinds import task_items
from tasks.sampling import Fresh, UniformSampler
from tests.replay.made import sample, states
from tests.trainer.examples import iteration
from tests.trainer.fakes import PROBLEMS, FakeEngines, FakeLearner, fake_run
from trainer.build import own_source
from trainer.loop import iterate
from trainer.metrics import PhaseClock
from trainer.run import Sources

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = {
    name: block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for name in re.findall(r"^# (\w+)\.py", block)
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The blocks as files of the working directory."""
    for name, block in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in BLOCKS:
        sys.modules.pop(name, None)


def test_each_kind_is_shown_in_at_most_40_lines() -> None:
    assert set(BLOCKS) == {
        "my_estimator",
        "my_loss",
        "my_ranking",
        "my_source",
        "my_task",
        "my_reward",
        "my_rewards",
        "my_tracker",
    }
    assert {name: block.count("\n") for name, block in BLOCKS.items() if block.count("\n") > 40} == {}


def test_an_estimator_and_a_policy_loss() -> None:
    check_estimator("my_estimator:best_of_group")
    assert find_estimator("my_estimator:best_of_group").needs_groups
    check_policy_loss("my_loss:plain", 0.2, 0.2, 3.0)


def test_a_start_source(tmp_path: Path) -> None:
    """Four problems fail in the first iteration; in the second one of four starts is a hint, which is solved."""
    solutions = {name: replace(one, solution_ids=np.array([7, 8, 9, 1], np.int32)) for name, one in PROBLEMS.items()}
    hints = own_source("my_source:Hints")(solutions, None)
    engines = FakeEngines(lambda start, _: ([1] if start.from_root else [9, 1], not start.from_root))
    run = fake_run(engines, FakeLearner(), Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {"hints": hints}))
    reports = [iterate(run, run.at(number), PhaseClock(), Interruption()) for number in (1, 2)]
    assert engines.asked == [["1.f0", "1.f1", "1.f2", "1.f3"], ["2.f0", "2.f1", "2.f2", "2.h0"]]
    hinted = [one for one in reports[1].trained if not one.start.from_root]
    assert [one.response_ids.tolist() for one in hinted] == [[7, 8, 9, 1]] * 2
    (tmp_path / "saved").mkdir()
    hints.save(tmp_path / "saved")
    again = own_source("my_source:Hints")(solutions, None)
    again.restore(tmp_path / "saved")
    assert [start.problem_id for start in again.propose(99, run.at(3))] == [
        s.problem_id for s in hints.propose(99, run.at(3))
    ]
    with pytest.raises(ConfigError, match=r"rollout\.sources 'my_loss:plain'"):
        own_source("my_loss:plain")


def cut(problem: str, provenance: Provenance, tokens: list[int]) -> States:
    """A response of ten tokens with a state after two and one after five."""
    return states(problem, tokens, [2, 5], [0.0, 0.0], provenance)


def test_a_ranking(tmp_path: Path) -> None:
    config = ReplayConfig(ranking="my_ranking:SuccessPrefix")
    check_ranking(config)
    with closing(ReplayStore(config, vocabulary=99, directory=tmp_path, fingerprint="", local=True)) as store:
        failed = [
            cut("won", Provenance.OWN_FAILED, [number, *range(9)]) for number in (90, 91)
        ]  # the root does not solve it
        store.add([cut("won", Provenance.OWN_SUCCESSFUL, [*range(10)]), *failed], version=0)
        drawn = sample(store, 9, seed=0)
    assert sorted(state.prefix_ids.tolist() for state in drawn) == [[0, 1], [0, 1, 2, 3, 4]]


def test_a_task(tmp_path: Path) -> None:
    rows = tmp_path / "words.jsonl"
    rows.write_text("".join(json.dumps({"word": word}) + "\n" for word in ("abc", "tea", "sun")), encoding="utf-8")
    fields = {
        "name": "my_task:BACKWARDS",
        "path": str(rows),
        "columns": {"prompt": "word", "answer": "word"},
        "eval_problems": 1,
    }
    config = TaskConfig.model_validate(fields | {"judge_workers": 0})
    items = task_items(config, seed=0)
    assert {item.prompt: item.solution for item in (*items.train, *items.evaluation)}["Spell tea backwards."] == "aet"
    with closing(start_judge(config)) as judges:
        right, wrong = judges.judge([Case("aet", " aet\n"), Case("aet", "tea")])
    assert (right.correct, wrong.correct) == (True, False)


def test_a_reward() -> None:
    config = TaskConfig(name="gsm8k", reward="my_reward:short", judge_workers=0)
    with closing(start_judge(config)) as judges:
        right, wrong = judges.judge([Case("7", "3 + 4 = 7\n#### 7"), Case("7", "#### 8")])
    assert (right.reward, right.correct) == (1 - 0.007, True)  # seven words
    assert (wrong.reward, wrong.correct) == (0.0, False)


def test_several_rewards() -> None:
    """The option of the block's first line, as a command line gives it."""
    option = BLOCKS["my_rewards"].partition("--task.rewards '")[2].partition("'\n")[0]
    config = parse_config({"task": {"name": "gsm8k", "rewards": option, "judge_timeout": 60.0}}, "test").task
    hard = {"prompt": "1+1?", "level": "hard"}
    cases = [Case("2", r"\boxed{2}", columns=hard), Case("2", "3", columns={"prompt": "Prove it.", "level": "easy"})]
    with closing(start_judge(config)) as judges:
        right, wrong = judges.judge(cases)
    assert (right.reward, right.correct, right.parts) == (2.2, True, (("right", 2.0), ("boxed", 1.0)))  # 2 + 0.2 x 1
    assert (wrong.reward, wrong.correct, wrong.parts) == (0.0, False, (("right", 0.0),))


def test_a_tracker(tmp_path: Path) -> None:
    config = parse_config({"monitor": {"sinks": ["my_tracker:Lines"]}}, "test")
    check_trackers(config)
    run = RunDirectory.create(tmp_path, "run", "test")
    (sink,) = open_trackers(config, run, last=0)
    with closing(sink):
        sink.write(iteration(1))
    assert (run.path / "lines.txt").read_text() == f"1 {iteration(1).root_success}\n"
