"""What engine tests share: one Ray cluster for the whole session."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_USAGE_STATS_ENABLED="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    RAY_DASHBOARD_STARTUP_TIMEOUT_S="300",
)

settings.register_profile(  # a slow machine is no failure, and what passed once passes again
    "busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

ROOT = Path(__file__).parents[1]
FEW_ROWS = ROOT / "tests" / "data"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of 4 logical CPUs (the tests' actors are small), namespace 'retrospect'."""
    import ray

    from trainer.cluster import bring_up

    local = partial(ray.init, address="local", include_dashboard=False, log_to_driver=False)
    bring_up(partial(local, num_cpus=4, namespace="retrospect"))
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
