"""What engine tests share: one Ray cluster for the whole session. And how `make test` deals the files out to two processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_USAGE_STATS_ENABLED="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

settings.register_profile(  # a slow machine is no failure, and what passed once passes again
    "busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

ROOT = Path(__file__).parents[1]
FEW_ROWS = ROOT / "tests" / "data"
SHARING = {f"tests/actors/test_{name}.py" for name in ("engine", "hf_engine", "options")}
"""Files that ask for the engines of the session (tests/actors/conftest.py): one process runs them all."""


def pytest_configure(config: pytest.Config) -> None:
    """Before pytest-xdist starts its processes: two Rays that start at once in a new home would each write a token of its own."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        ray = Path(sys.executable).with_name("ray")
        subprocess.run([ray, "get-auth-token", "--generate"], check=True, capture_output=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file is run by one process, for the sake of its fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "engines" if file in SHARING else file

    return Files(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of pytest-xdist: whole runs of the command line (the files of this folder) take longest and come first, tests
    without engines last. So all processes end at about the same time.
    """
    if hasattr(config, "workerinput"):
        folders = [ROOT / "tests", *(ROOT / "tests" / name for name in ("actors", "learner", "trainer"))]
        items.sort(key=lambda item: folders.index(item.path.parent) if item.path.parent in folders else len(folders))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of 4 logical CPUs (the tests' actors are small), namespace 'retrospect'."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, namespace="retrospect", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets: RETROSPECT_DATA, or ../shared/data where it exists, or the few rows of tests/data."""
    asked = os.environ.get("RETROSPECT_DATA")
    if asked is None:
        beside = ROOT.parent / "shared" / "data"
        return beside if beside.is_dir() else FEW_ROWS
    assert (Path(asked) / "gsm8k").is_dir(), f"RETROSPECT_DATA={asked}: no gsm8k/ here; name the folder that holds it"
    return Path(asked)


@pytest.fixture(scope="session")
def whole_data(shared_data: Path) -> bool:
    """Whether `shared_data` holds the whole data sets: only then are rows counted."""
    return shared_data != FEW_ROWS
