"""What is asked of Ray and when it is given back. (Real clusters: tests/test_ray_job.py and
tests/test_end_to_end.py.)"""

import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from commands import preflight
from core.config import ClusterConfig, Config
from core.errors import ClusterError, ConfigError
from core.interruption import Interruption
from core.load import override
from core.machine import Machine
from core.plan import Bundle, Resources, evaluation_placement
from core.startup import in_group
from trainer import cluster


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A cluster of 2 CPUs that never grows; keeps what is asked of its autoscaler."""
    seen: list[Any] = []
    monkeypatch.setattr(cluster, "start", lambda *_, **__: None)
    monkeypatch.setattr(cluster, "available", lambda: Resources(cpus=2.0, gpus=0.0))
    monkeypatch.setattr(cluster, "reserve", lambda *_: {})
    monkeypatch.setattr(cluster, "describe_room", lambda _: "asked")
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: seen.append(bundles))
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # an earlier test may have left one
    monkeypatch.setattr("ray.shutdown", lambda: seen.append("shutdown"))
    return seen


def test_what_was_asked_is_withdrawn_before_leaving(calls: list[Any]) -> None:
    config = override(Config(), ["--cluster.wait", "0.01"])
    with cluster.connect(config, "run") as device:
        assert device == "cpu"
    one = {"CPU": 1.0, "GPU": 0.0}
    assert calls == [[one, one], [], "shutdown"]  # one rollout actor, one learner rank; shards reserve nothing


def test_it_is_withdrawn_too_when_the_cluster_does_not_grow(calls: list[Any]) -> None:
    config = override(Config(), ["--cluster.wait", "0.01", "--rollout.actors", "3"])
    with pytest.raises(ClusterError, match="4 CPUs"), cluster.connect(config, "run"):
        pass
    assert calls[-2:] == [[], "shutdown"]


def test_without_waiting_no_autoscaler_is_asked(calls: list[Any]) -> None:
    with cluster.connect(Config(), "run"):
        pass
    assert calls == ["shutdown"]


@pytest.mark.usefixtures("calls")
def test_an_evaluation_needs_no_room_for_the_learner() -> None:
    config = override(Config(), ["--rollout.actors", "2", "--learner.ranks", "4"])  # 6 CPUs in training, here are 2
    with cluster.connect(config, "evaluate", evaluation_placement) as device:
        assert device == "cpu"
    assert [bundle.name for bundle in evaluation_placement(config, "cpu")] == ["rollout actor"]


def test_an_error_without_text_is_still_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(ClusterError, match="ConnectionError"):
        cluster.start(ClusterConfig(address="10.0.0.1:6379"), namespace="n")


def test_a_folder_with_too_long_a_path_for_sockets_is_told_how_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(f"validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /tmp/{'x' * 99}")

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(ClusterError, match="set RAY_TMPDIR"):
        cluster.start(ClusterConfig(address="local"), namespace="n")


def test_a_local_ray_that_does_not_come_up_is_started_again_and_another_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def time_out(**_: Any) -> None:
        started.append(subprocess.Popen(["sleep", "600"]))
        if len(started) < cluster.STARTS:
            raise Exception("The current node timed out during startup.")  # as bare as Ray's

    monkeypatch.setattr("ray.init", time_out)
    monkeypatch.setattr("ray.shutdown", lambda: None)  # the tests may have one
    cluster.start(ClusterConfig(address="local"), namespace="n")
    *failed, last = started
    assert [process.wait(60) for process in failed] == [-signal.SIGKILL] * len(failed)
    assert last.poll() is None
    assert caplog.text.count("Ray did not start: The current node timed out") == len(failed) == cluster.STARTS - 1
    last.kill()
    started.clear()
    with pytest.raises(ClusterError, match="timed out during startup"):
        cluster.start(ClusterConfig(address="10.0.0.1:6379"), namespace="n")
    assert len(started) == 1
    started[0].kill()

    def refuse(**_: Any) -> None:
        raise ValueError("no such option")

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(ClusterError, match="no such option"):
        cluster.start(ClusterConfig(address="local"), namespace="n")
    assert caplog.text.count("Ray did not start") == cluster.STARTS - 1  # as before


def test_outside_the_main_thread_signals_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There Python refuses `signal.signal`. These are the two places of a run that set handlers."""
    monkeypatch.setattr("ray.init", lambda **_: None)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def inside() -> bool:
        with Interruption().handled():
            cluster.start(ClusterConfig(address="10.0.0.1:6379"), namespace="n")
            return before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(inside).result()


def test_check_looks_at_the_configured_cluster(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(preflight, "this_machine", lambda: Machine(1, 1.0))
    assert preflight.cluster_resources(ClusterConfig(address="auto")).cpus == 1.0
    assert preflight.cluster_resources(ClusterConfig(address="10.0.0.1:6379")).cpus == 2.0
    assert calls == ["shutdown"]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert preflight.cluster_resources(ClusterConfig(address="auto")).cpus == 2.0
    assert preflight.cluster_resources(ClusterConfig(address="local")).cpus == 1.0


def test_a_head_on_this_machine_decides_for_its_whole_cluster(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device and its resources are the cluster's; this machine alone need not hold the run."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(preflight, "this_machine", lambda: Machine(1, 1.0))
    monkeypatch.setattr(cluster, "find", lambda: "10.0.0.1:6379")
    assert preflight.cluster_resources(ClusterConfig()).cpus == 2.0
    preflight.check_surroundings(override(Config(), ["--rollout.threads", "64"]))
    assert calls == ["shutdown"]
    with pytest.raises(ConfigError, match=r"rollout\.threads"):
        preflight.check_surroundings(override(Config(), ["--rollout.threads", "64", "--cluster.address", "local"]))


def test_no_stray_call_starts_a_cluster() -> None:
    assert os.environ["RAY_ENABLE_AUTO_CONNECT"] == "0"


def test_a_record_of_a_dead_head_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from trainer import cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setattr(cluster, "read_ray_address", lambda: address)
        assert cluster.find() == address
    assert cluster.find() == "local"
    monkeypatch.setattr(cluster, "read_ray_address", lambda: None)
    assert cluster.find() == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster.find() is None


@pytest.mark.usefixtures("ray_cluster")
def test_each_role_has_a_placement_group_and_no_room_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from ray.util import get_placement_group, remove_placement_group

    small, large = Bundle("small", 2, 0.01, 0.0), Bundle("large", 1, 5.0, 0.0)
    try:
        with pytest.raises(ClusterError, match="1 large with 5 CPUs"):
            cluster.reserve((small, Bundle("shard", 1, 0.0, 0.0), large), 2.0)
        said = capsys.readouterr().out
        assert re.search(r"asked +CPUs +GPUs\n +2 x small +0.01 each +0 each\n", said)
        assert re.search(r"there is +free CPUs +free GPUs\n +[\d.]+ \w{8} +\S+ of 4 +0 of 0\n", said)
        assert in_group("small", 1)["scheduling_strategy"].placement_group_bundle_index == 1
        assert in_group("shard", 0) == {}  # reserves nothing
    finally:
        for bundle in (small, large):
            remove_placement_group(get_placement_group(bundle.name))
