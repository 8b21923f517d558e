"""The installed package: `pip install .`, its metadata and its console script, far from the checkout."""

import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PARTS = ("actors", "commands", "configs", "core", "learner", "monitor", "replay", "tasks", "trainer")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages that holds the installed copy alone."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(target), str(ROOT)], check=True)
    return target


def run(installed: Path, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in `folder` with the installed copy among the packages."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_lies_in_one_package(installed: Path) -> None:
    assert {path.name.split("-")[0] for path in installed.iterdir()} == {"retrospect", "bin"}
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "actors",
            "commands",
            "configs",
            "core",
            "learner",
            "monitor",
            "replay",
            "tasks",
            "trainer",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(tracked) > 150
    assert [name for name in tracked if not (installed / "retrospect" / name).is_file()] == []


def test_the_console_script_finds_the_recipes(installed: Path, tmp_path: Path) -> None:
    script = str(installed / "bin" / "retrospect")
    done = run(
        installed, tmp_path, script, "check", "--offline", "--config", "configs/arithmetic.yaml", "--run.iterations=3"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"iterations\W+3\b", done.stdout)
    assert "retrospect train" in run(installed, tmp_path, script, "--help").stdout
    assert list(tmp_path.iterdir()) == []


def test_the_version_names_the_packages(installed: Path, tmp_path: Path) -> None:
    lines = run(installed, tmp_path, str(installed / "bin" / "retrospect"), "--version").stdout.splitlines()
    assert lines[0].startswith("retrospect ")
    assert any(line.startswith("torch 2.13") for line in lines)


def test_other_programs_do_not_see_the_folders(installed: Path, tmp_path: Path) -> None:
    """Only a process that has imported retrospect finds `tasks`, and there it is ours, whatever else has that name."""
    (tmp_path / "tasks.py").write_text("of_the_user = True")
    found = run(installed, tmp_path, sys.executable, "-c", "import tasks; print(tasks.of_the_user)")
    assert found.stdout == "True\n"
    alone = run(installed, installed, sys.executable, "-c", "import core")
    assert "No module named 'core'" in alone.stderr
    code = "import retrospect, core.child; print(core.child.ROOT, retrospect.train.__module__)"
    ours = run(installed, tmp_path, sys.executable, "-c", code)
    assert ours.stdout == f"{installed / 'retrospect'} retrospect\n", ours.stderr


def test_workers_of_ray_find_the_installed_copy_and_a_user_s_modules_of_the_same_names(
    installed: Path, tmp_path: Path
) -> None:
    """Ray puts the working directory and that of the script before ours on the path of its workers."""
    code = """
import retrospect
from core.config import Config
from tasks.mine import Mine
from trainer import cluster

def answer(of_the_driver):
    import core
    import core.records
    from core.imports import imported

    return core.records.__file__, imported("field", "tasks.mine:Mine")().number, of_the_driver.number

with cluster.connect(Config(), "r", lambda config, device: ()):
    print(*cluster.ray.get(cluster.ray.remote(answer).remote(Mine())))
"""
    (tmp_path / "script.py").write_text(code)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.py").write_text("from core import NUMBER\nclass Mine:\n    number = NUMBER")
    (tmp_path / "core.py").write_text("NUMBER = 3")
    done = run(installed, tmp_path, sys.executable, "script.py")
    assert done.stdout == f"{installed / 'retrospect' / 'core' / 'records.py'} 3 3\n", done.stderr


def test_the_command_line_judges_by_a_user_s_module(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.py").write_text("def reward(reference, response): return 1.0")
    command = [str(installed / "bin" / "retrospect"), "check", "--config", "configs/arithmetic.yaml"]
    assert run(installed, tmp_path, *command, "--task.reward=tasks.mine:reward").returncode == 0
    wrong = run(installed, tmp_path, *command, "--task.reward=tasks.absent:reward")
    assert wrong.returncode == 2
    assert "tasks.absent" in wrong.stderr.splitlines()[-1]


def metadata(installed: Path) -> Distribution:
    (found,) = distributions(path=[str(installed)])
    return found


@pytest.mark.parametrize(
    ("extra", "locks"),
    [("cpu", ["cpu"]), ("gpu", ["gpu"]), ("trl", ["cpu"]), ("trl", ["gpu"]), ("dev", ["cpu", "dev"])],
)
def test_the_locks_hold_what_the_metadata_names(installed: Path, extra: str, locks: list[str]) -> None:
    locked = {}
    for lock in locks:
        for line in (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines():
            name, _, version = line.partition("==")
            locked[canonicalize_name(name)] = version
    wanted = [Requirement(line) for line in metadata(installed).requires or ()]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]
    assert extra in (metadata(installed).metadata.get_all("Provides-Extra") or ())
    assert [
        str(one) for one in wanted if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))
    ] == []
