"""Whether a cluster answers, before anything starts."""

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]
import pytest

from core import startup
from core.config import ClusterConfig
from core.errors import ClusterError
from core.startup import check_reachable, named_address


def test_the_address_is_the_configured_one_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert named_address(ClusterConfig(address="auto")) == ""
    assert named_address(ClusterConfig(address="h:1")) == "h:1"
    monkeypatch.setenv("RAY_ADDRESS", "h:2")
    assert named_address(ClusterConfig(address="auto")) == "h:2"
    assert named_address(ClusterConfig(address="local")) == ""


def test_a_dead_address_is_one_line_and_a_live_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    head = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{head.add_insecure_port('127.0.0.1:0')}"
    head.start()
    check_reachable(ClusterConfig(address=address))
    check_reachable(ClusterConfig(address=f"ray://{address}"))
    head.stop(None).wait()
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=f"RAY_ADDRESS = '{address}': no Ray answers there .*Connection refused"):
        check_reachable(ClusterConfig(address="auto"))
    with pytest.raises(ClusterError, match=r"cluster\.address = .no-such-host\.invalid:1.: no Ray"):
        check_reachable(ClusterConfig(address="no-such-host.invalid:1"))


def test_another_server_is_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(
            ClusterError, match=f"cluster.address = '{address}': no Ray answers there .FutureTimeoutError"
        ):
            check_reachable(ClusterConfig(address=address))


def test_a_silent_address_is_waited_for_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, timeout: float) -> None:
        assert timeout == startup.ANSWER_SECONDS <= 5
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ClusterError, match=r"cluster.address = '10\.0\.0\.1:6379': no Ray answers there \(timed out\)"):
        check_reachable(ClusterConfig(address="10.0.0.1:6379"))
