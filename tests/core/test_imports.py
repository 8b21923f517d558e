"""A user's modules, also those with the names of ours. Each test is a process of its own in a folder of the user's."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import ROOT
from core.imports import imported

REWARD = """
import tasks.helpers
import tasks.helpers as by_name
from tasks import helpers
from tasks.helpers import BONUS
from . import helpers as relative
from core.config import LIMIT
from core.records import Verdict  # ours: the user's core has no such module
from tasks.problems import OF_THE_USER
assert tasks.helpers is by_name is helpers is relative

def reward(reference, response):
    from tasks.deep.inner import twice  # when it is called
    return Verdict(twice() + BONUS, response == reference, f"{LIMIT} {OF_THE_USER}")
"""
PROJECT = {
    "core/__init__.py": "",
    "core/config.py": "LIMIT = 3",
    "tasks/mine.py": REWARD,  # no __init__.py
    "tasks/helpers.py": "BONUS = 0.25",
    "tasks/problems.py": "OF_THE_USER = True",
    "tasks/deep/inner.py": "from ..helpers import BONUS\ndef twice(): return 2 * BONUS",
    "other.py": "from tasks.mine import reward",
    "launch.py": "raise RuntimeError('the launcher of the user')",
}
JUDGE = """
import retrospect
from core.parts.judge import Case
from tasks.judge_pool import JudgePool, LocalJudge

if __name__ == "__main__":
    judge = JudgePool("{reward}", workers=1, limit=5.0, memory_gib=0)
    judge.wait_until_ready()
    for each in (judge, LocalJudge("{reward}")):
        print(*((one.reward, one.correct, one.detail) for one in each.judge([Case("a", "a"), Case("a", "b")])))
    judge.close()
"""
VERDICTS = "(0.75, True, '3 True') (0.75, False, '3 True')\n"


def run(folder: Path, files: Mapping[str, str], code: str) -> "subprocess.CompletedProcess[str]":
    """Run a script beside these files, with our folder behind it on sys.path."""
    for name, text in {**files, "script.py": code}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("reward", ["tasks.mine:reward", "other:reward"])
def test_judges_find_a_reward_whose_modules_have_the_names_of_ours(tmp_path: Path, reward: str) -> None:
    done = run(tmp_path, PROJECT, JUDGE.format(reward=reward))
    assert done.stdout == VERDICTS * 2, done.stderr


@pytest.mark.parametrize("name", ["tasks", "core", "replay"])
def test_single_files_with_the_names_of_ours(tmp_path: Path, name: str) -> None:
    """A worker ends when it finds the user's `tasks.py` in the place of our package."""
    reward = f"import {name} as itself\ndef reward(reference, response): return float(itself.reward is reward)"
    done = run(tmp_path, {f"{name}.py": reward}, JUDGE.format(reward=f"{name}:reward"))
    assert done.stdout == "(1.0, True, '') (1.0, True, '')\n" * 2, done.stderr


def test_a_missing_module_or_name_is_named(tmp_path: Path) -> None:
    files = {"tasks/mine.py": "import tasks.nowhere", "tasks/other.py": "def reward(): pass"}
    code = """
import retrospect
from core.errors import ConfigError
from core.imports import imported

for path in ("tasks.mine:reward", "tasks.other:rewards", "tasks.absent:reward"):
    try:
        imported("field", path)
    except ConfigError as error:
        print(error)
"""
    lines = run(tmp_path, files, code).stdout.splitlines()
    assert [name in line for name, line in zip(("tasks.nowhere", "reward", "tasks.absent"), lines, strict=True)]


def test_a_script_imports_its_own_modules_after_ours(tmp_path: Path) -> None:
    code = "import retrospect, core.config\nfrom tasks.mine import reward\nprint(core.config.LIMIT, reward('a', 'a'))"
    done = run(tmp_path, PROJECT, code)
    assert done.stdout.startswith("3 Verdict(reward=0.75"), done.stderr


@pytest.mark.parametrize("first", ["core.config", "tasks.helpers"])
def test_a_script_that_imports_its_own_modules_first_is_told(tmp_path: Path, first: str) -> None:
    done = run(tmp_path, {**PROJECT, "tasks/__init__.py": ""}, f"import {first}\nimport retrospect")
    assert done.stderr.splitlines()[-1].endswith("import retrospect before it")
    assert first.partition(".")[0] in done.stderr.splitlines()[-1]


def test_processes_of_environments_find_a_user_s(tmp_path: Path) -> None:
    world = """
from core.mine import LIMIT
from core.environments.protocol import Step

class World:
    ends = str(LIMIT)
    def reset(self, problem): return []
    def step(self, action): return [], 1.0, True, {}
"""
    code = """
import retrospect
from core.config import RolloutConfig
from core.environments.workers import _Process

if __name__ == "__main__":
    process = _Process(RolloutConfig(environment="core.world:World"))
    print(process.begin()["ends"])
    process.kill()
"""
    done = run(tmp_path, {"core/mine.py": "LIMIT = 3", "core/world.py": world}, code)
    assert done.stdout == "3\n", done.stderr


def test_where_no_names_clash_imports_are_python_s_own() -> None:
    code = "import builtins; own = builtins.__import__; import retrospect; print(builtins.__import__ is own)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert imported("field", "core.imports:imported") is imported
