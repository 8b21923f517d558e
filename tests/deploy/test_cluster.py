"""cluster.yaml without a cloud: Ray's own validation, and that the nodes get what a run needs."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.load import load_config
from core.plan import demand, placement

ROOT = Path(__file__).parents[2]
REMOTE = "~/retrospect"


def load() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    return config


@pytest.fixture(scope="module")
def prepared() -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config

    config: dict[str, Any] = prepare_config(load())
    return config


def tracked() -> list[str]:
    """Everything that belongs to the repository (also what is not committed yet)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


def excluded(path: str, patterns: list[str]) -> bool:
    """Whether rsync leaves the path out: a pattern with a leading slash is anchored, another matches any component."""
    parts = path.split("/")
    return any(
        fnmatch(parts[0], pattern[1:]) if pattern.startswith("/") else any(fnmatch(part, pattern) for part in parts)
        for pattern in patterns
    )


def test_ray_accepts_it(prepared: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import validate_config

    validate_config(prepared)
    gpu = prepared["available_node_types"]["gpu"]
    assert 1 <= gpu["min_workers"] <= gpu["max_workers"] <= prepared["max_workers"]
    assert prepared["available_node_types"]["head"]["resources"]["GPU"] == 0
    assert gpu["resources"]["GPU"] >= 1
    images = {kind["node_config"]["ImageId"] for kind in prepared["available_node_types"].values()}
    assert len(images) == 1  # one place to put the image of one's region


@pytest.mark.parametrize("recipe", sorted((ROOT / "configs").glob("*qwen*.yaml")), ids=lambda path: path.name)
def test_the_workers_hold_the_gpu_recipes(recipe: Path) -> None:
    asked = demand(placement(load_config(recipe), "cuda"))
    gpu = load()["available_node_types"]["gpu"]
    assert asked.gpus <= gpu["max_workers"] * gpu["resources"]["GPU"]
    assert asked.cpus <= gpu["max_workers"] * gpu["resources"]["CPU"]


def test_ray_would_refuse_a_misspelt_key() -> None:
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(ValidationError, match="file_mount"):
        validate_config(prepare_config(load() | {"file_mount": {}}))


def test_the_mounts_cover_every_package_and_recipe() -> None:
    config = load()
    local = (ROOT / config["file_mounts"][REMOTE]).resolve()
    assert local == ROOT.resolve()
    left_out = [path for path in tracked() if excluded(path, config["rsync_exclude"])]
    assert left_out == []
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert {"core", "trainer", "actors", "learner", "replay", "tasks"} <= set(packages)
    assert all((local / package).is_dir() for package in [*packages, "configs", "requirements"])


def test_what_is_big_or_secret_stays_at_home() -> None:
    patterns = load()["rsync_exclude"]
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if "*" not in line]
    assert [name for name in ignored if not excluded(name, patterns)] == []


def test_launch_finds_the_package_on_the_nodes(prepared: dict[str, Any]) -> None:
    environment = " ".join(prepared["setup_commands"])
    assert 'export PYTHONPATH="$HOME/retrospect"' in environment  # = REMOTE
    assert "requirements/gpu.txt" in environment
    assert (ROOT / "requirements" / "gpu.txt").is_file()
    assert not re.search(r"pip install(?!.*--no-deps).*gpu\.txt", environment)


def test_every_start_of_ray_has_the_token_and_the_environment(prepared: dict[str, Any]) -> None:
    commands = [*prepared["head_start_ray_commands"], *prepared["worker_start_ray_commands"]]
    assert len(commands) == 4
    assert all(command.startswith("source ~/.retrospect && ") for command in commands)
    setup = " ".join(prepared["setup_commands"])
    assert "export RAY_AUTH_MODE=token" in setup
    assert "export RAY_USAGE_STATS_ENABLED=0" in setup
    assert prepared["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "--dashboard-host=127.0.0.1" in commands[1]  # never open to the world


def test_each_line_says_what_it_is_for() -> None:
    """Every key of the top two levels, and every command, has a comment on its line or right above it."""
    lines = (ROOT / "cluster.yaml").read_text(encoding="utf-8").splitlines()
    silent = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"( {2})?[a-z_]+: ?\S", line) and "#" not in line and not before.strip().startswith("#")
    ]
    assert silent == []


def test_the_environment_file_is_shell_that_works(tmp_path: Path) -> None:
    """The setup commands that write ~/.retrospect are run as Ray runs them, with another home."""
    writes = [command for command in load()["setup_commands"] if ".retrospect" in command]
    assert len(writes) == 2
    (tmp_path / ".bashrc").write_text("")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for _ in range(2):  # `ray up` runs them again: idempotent
        for command in writes:
            subprocess.run(["bash", "-c", command], env=environment, check=True)
    assert (tmp_path / ".bashrc").read_text() == "source ~/.retrospect\n"
    shown = subprocess.run(
        ["bash", "-c", 'source ~/.bashrc; echo "$PYTHONPATH|$RAY_AUTH_MODE|${PATH%%:*}"'],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"{tmp_path}/retrospect|token|{tmp_path}/retrospect-env/bin\n"


def test_launch_runs_alone_as_ray_submit_puts_it(tmp_path: Path) -> None:
    """`ray submit` copies launch.py into the home folder; everything else must come through PYTHONPATH."""
    shutil.copy(ROOT / "launch.py", tmp_path)
    result = subprocess.run(
        [sys.executable, "launch.py", "check", "--offline", "--config", "configs/arithmetic.yaml"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
