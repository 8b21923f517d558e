"""Whether a cluster answers, before anything starts."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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


@contextmanager
def server(method: str, code: grpc.StatusCode = grpc.StatusCode.OK) -> Iterator[str]:
    """The address of a gRPC server with one method, which answers with `code`."""

    def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_code(code)
        return b""

    service, name = method[1:].split("/")
    handler = grpc.method_handlers_generic_handler(service, {name: grpc.unary_unary_rpc_method_handler(answer)})
    running = grpc.server(ThreadPoolExecutor(1), [handler])
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield f"127.0.0.1:{port}"
    running.stop(None).wait()


@pytest.mark.parametrize("code", [grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED])
def test_a_dead_address_is_one_line_and_a_live_one_nothing(
    code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our token a head refuses the question: it is alive."""
    with server(startup.ALIVE, code) as address:
        check_reachable(ClusterConfig(address=address))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=f"RAY_ADDRESS = '{address}'.*Connection refused"):
        check_reachable(ClusterConfig(address="auto"))
    with pytest.raises(ClusterError, match=r"cluster\.address = .no-such-host\.invalid:1."):
        check_reachable(ClusterConfig(address="no-such-host.invalid:1"))


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265", "10.0.0.1"])
def test_only_host_and_port_are_taken(address: str) -> None:
    with pytest.raises(ClusterError, match=rf"cluster\.address = '{address}'"):
        check_reachable(ClusterConfig(address=address))


def test_another_server_is_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing, and one that answers other questions, as a proxy does for an address where nobody is."""
    monkeypatch.setattr(startup, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClusterError, match=rf"cluster\.address = '{address}'.*Deadline"):
            check_reachable(ClusterConfig(address=address))
    with server("/other.Service/Method") as address, pytest.raises(ClusterError, match="Method not found"):
        check_reachable(ClusterConfig(address=address))


def test_a_silent_address_is_waited_for_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, timeout: float) -> None:
        assert timeout == startup.ANSWER_SECONDS <= 5
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ClusterError, match=r"cluster\.address = '10\.0\.0\.1:6379'.*timed out"):
        check_reachable(ClusterConfig(address="10.0.0.1:6379"))
