"""What many tests share: one Ray cluster for the whole session, small models."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.whole_runs import OneProcess

os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_PROFILING="1",  # Ray reads it when it is imported
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",  # small tensors, and threads that wait for each other crawl where processes share the cores
    RAY_DASHBOARD_STARTUP_TIMEOUT_S="300",
)

settings.register_profile(  # a slow machine is no failure, and what passed once passes again
    "busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

ROOT = Path(__file__).parents[1]
SHARED = {f"tests/actors/test_{name}.py" for name in ("engine", "episodes", "options", "served")}
LONGEST = ("test_machines", "test_end_to_end", "test_real_model", "test_asynchronous_run", "test_dialogue")
"""Files of whole runs, by the minutes that they take."""
FEW_ROWS = ROOT / "tests" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first, the longest before others, then what starts engines, then the rest: see `Scheduler`.
    `--no-loadscope-reorder` (pyproject.toml) keeps this order. What needs a sandbox is skipped where none can be made,
    with one line per file."""
    names = {item: getattr(item, "fixturenames", ()) for item in items}
    whole = {item.path for item in items if item.path.parent == ROOT / "tests" or "machines" in names[item]}
    engines = {item.path for item in items if "ray_cluster" in names[item]}

    def _place(item: pytest.Item) -> tuple[int, int]:
        if item.path in whole:
            return 0, LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)
        return (1, item.path.parent.name == "actors") if item.path in engines else (2, 0)

    items.sort(key=_place)
    if shutil.which("bwrap") is None:
        for item in items:
            if "bubblewrap" in names[item]:
                item.add_marker(
                    pytest.mark.skip("bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)")
                )


class Scheduler(LoadFileScheduling):  # type: ignore[misc]
    """A file in one process, and those that share the session's engines in the same: else every process starts them.
    Every second process takes its files from the end: whole runs, which use more than a core, are made beside pure
    tests, which often wait, and the files that end the suite are short."""

    def _assign_work_unit(self, node: Any) -> None:
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "engines" if file in SHARED else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    return Scheduler(config, log)


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """What needs a sandbox asks for this."""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of 4 logical CPUs (the tests' actors are small), namespace 'retrospect'. Other nodes may join it."""
    import ray

    from trainer.cluster import bring_up

    local = partial(ray.init, address="local", include_dashboard=False, log_to_driver=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")  # else a local Ray is one node on loopback
        bring_up(partial(local, num_cpus=4, namespace="retrospect"))
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def ray_address(ray_cluster: None) -> str:
    """Where whole runs attach to it: a Ray of their own takes each of them 15 s of processor time."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


@pytest.fixture(scope="session")
def one_process() -> Iterator["OneProcess"]:
    """Runs commands without Ray, one after the other."""
    from tests.whole_runs import OneProcess

    made = OneProcess()
    yield made
    made.close()


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """starter(recipe, *fields, **settings): folder of the small model of a recipe in tests/recipes, with other fields
    ('--task.path', 'x') and other settings (steps=20), built once."""
    from bench.tasks.starters import STARTERS, build_starter
    from core.load import load_config, override

    root = tmp_path_factory.mktemp("starters")
    known: list[Any] = []

    def _built(recipe: str, *fields: str, **settings: Any) -> str:
        asked = (recipe, fields, settings)
        known.extend([] if asked in known else [asked])
        config = override(load_config(ROOT / "tests" / "recipes" / f"{recipe}.yaml"), list(fields))
        folder = root / f"{recipe}-{known.index(asked)}"
        return build_starter(folder, replace(STARTERS[recipe], **settings), config.task, config.run.seed)

    return _built


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets: RETROSPECT_DATA, or ../shared/data where it exists, or the few rows of
    tests/data."""
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
