"""The start of a run's processes. Invariant: a variable that the user has set keeps its value."""

import atexit
import gc
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from core.config import ClusterConfig
from core.errors import ClusterError, first_line

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""How OpenMP's threads wait; read when torch is imported. Long spinning is 40x slower on a busy machine (128 against
5,055 tokens/s); sleeping at once makes two threads slower than one (an update of 3.97 s against 2.68 s); a short spin
takes 2.26 s, and 5.5 s next to two busy processes."""
SMALL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Kernels that oneDNN and torch's layer above it keep for shapes of matrices, 1024 each by default. Nearly every
micro-batch has new shapes, and a rank of a 135 M model grew by 0.1 GiB per iteration; 128 are as fast."""
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # Ray 2.60 demands a token from every client of a cluster that has one
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_PROFILING": "1",  # `ray timeline` shows the phases of an iteration
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # not among our lines on stdout
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    **WAITING,
    **SMALL_CACHES,
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_prestart_worker_first_driver": "0",  # no idle workers: every worker of ours needs its own environment
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a Ray call before `connect` must fail, not start another cluster
}
"""What Ray, vLLM, torch, tokenizers, W&B and MLflow read when they are imported."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""For processes that all run on this machine: their groups listen on loopback only."""


def set_environment(variables: Mapping[str, str] = ENVIRONMENT) -> None:
    """Set environment variables where the user has not. Call it before Ray or torch is imported. No proxy is asked for
    a server on this machine, such as a reward's."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if given != "*":
        hosts = dict.fromkeys([*filter(None, given.split(",")), "localhost", "127.0.0.1", "0.0.0.0", "::1"])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


atexit.register(gc.unfreeze)  # else Triton reports a leak when the process ends


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect no garbage inside the block, nor later what exists at its end: torch, DeepSpeed and vLLM make a million
    objects. To visit them takes a tenth to a fourth of the time, and 0.5 s in a library's `gc.collect()`."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()


ANSWER_SECONDS = 4.0
"""How long an address may take to accept a connection. Ray itself waits for minutes and says nothing."""


def named_address(cluster: ClusterConfig) -> str:
    """The address given by cluster.address or RAY_ADDRESS; empty when all processes run on this machine."""
    if cluster.address == "auto":
        return os.environ.get("RAY_ADDRESS", "")
    return "" if cluster.address == "local" else cluster.address


ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A method of a Ray head. A connection alone says nothing: a proxy may accept it for an address where nobody is."""


def check_reachable(cluster: ClusterConfig) -> None:
    """Raises ClusterError within twice ANSWER_SECONDS when no Ray head answers at a named host:port."""
    named = named_address(cluster)
    if named in ("", "auto", "local"):
        return
    source = "RAY_ADDRESS" if cluster.address == "auto" else "cluster.address"
    host, _, port = named.rpartition(":")
    if "/" in named or not host or not port.isdigit():
        raise ClusterError(
            f"{source} = {named!r} is not the host:port of a Ray head; the driver runs on a node of the cluster: start "
            "it there, or by `ray job submit`"
        )
    if why := _silence(host, int(port)):
        raise ClusterError(
            f"{source} = {named!r}: no Ray answers there ({why}); start a head with `ray start --head`, fix the "
            f"address, or use --cluster.address local"
        )


def _silence(host: str, port: int) -> str:
    """Why no Ray head answers at this address; empty when one does."""
    import grpc  # type: ignore[import-untyped]

    try:
        socket.create_connection((host.strip("[]"), port), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        return first_line(error)
    if os.environ.get("RAY_USE_TLS"):
        return ""
    with grpc.insecure_channel(f"{host}:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(ALIVE)(b"", timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            refused = error.code() == grpc.StatusCode.UNAUTHENTICATED  # we have sent no token
            return "" if refused else str(error.details())
    return ""


ENGINE, RANK, PAIR = "rollout actor", "learner rank", "engine-rank pair"
"""Roles, which name their placement groups. A bundle of the third holds one of each of the others."""


def in_group(role: str, index: int) -> dict[str, Any]:
    """Ray's options that place an actor in bundle `index` of the role's group, or of the pairs'; none in a namespace
    without either."""
    from ray.util import get_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    for name in (role, PAIR) if role in (ENGINE, RANK) else (role,):
        with suppress(ValueError):  # there is no such group
            return {"scheduling_strategy": PlacementGroupSchedulingStrategy(get_placement_group(name), index)}
    return {}
