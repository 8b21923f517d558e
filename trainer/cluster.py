"""Attaches to the running Ray cluster or starts a local one, and checks its resources before anything else starts.

Called by `trainer/build.py` and `commands/`. Invariant: `connect` yields only when the cluster has what the run asks for.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import psutil

from core.startup import ENVIRONMENT, set_environment

set_environment()

import ray  # noqa: E402 (Ray reads its environment when it is imported)
from ray._private.utils import read_ray_address  # noqa: E402

from core.config import ClusterConfig, Config, Device  # noqa: E402
from core.errors import ClusterError, first_line  # noqa: E402
from core.plan import Bundle, Resources, check_resources, choose_device, placement  # noqa: E402

STARTS = 3
"""Attempts to start a local Ray: it waits a fixed 30 s for its raylet."""
PORT_WAIT = {"RAY_gcs_server_port_wait_time_s": "120"}
"""Seconds that a local Ray waits for the port of its GCS (default 30). A client that attaches reads it as a number of tries."""
logger = logging.getLogger("retrospect.cluster")

FORWARDED = ("HF_HUB_OFFLINE", "HF_HOME", "VLLM_CACHE_ROOT")


@contextmanager
def connect(
    config: Config, run_name: str, needs: Callable[[Config, str], tuple[Bundle, ...]] = placement
) -> Iterator[Device]:
    """Connect, wait for the resources, yield the device ('cpu' or 'cuda'), and disconnect at the end.

    Every run has its own namespace, so two runs on one cluster may both have a `rollout-0`. `needs`: configuration and device -> the
    processes that need resources. The request to the autoscaler is withdrawn at the end, because it would keep the nodes. Raises
    ClusterError when the cluster cannot be reached or lacks CPUs or GPUs.
    """
    start(config.cluster, namespace=f"retrospect-{run_name}")
    try:
        device = choose_device(config.cluster, lambda: available().gpus > 0)
        wait_for(needs(config, device), config.cluster.wait)
        yield device
    finally:
        if config.cluster.wait:
            with suppress(Exception):  # if the cluster is down, the error that ended the run matters more
                ask([])
        ray.shutdown()


def start(cluster: ClusterConfig, namespace: str) -> None:
    """Attach to the cluster of `cluster.address`, or start a local one with the dashboard on loopback."""
    on_terminate = signal.getsignal(signal.SIGTERM)
    workers = ENVIRONMENT | {name: os.environ[name] for name in FORWARDED if name in os.environ}
    address = find() if cluster.address == "auto" else cluster.address
    init = partial(
        ray.init,
        address=address,
        namespace=namespace,
        runtime_env={"env_vars": workers},
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level="WARNING",
    )
    try:
        if address == "local":
            bring_up(init)
        else:
            init()
    except Exception as error:  # Ray raises a plain Exception when its processes start late
        raise ClusterError(
            f"cluster.address = {cluster.address!r}: cannot connect to Ray: {first_line(error)}; start a head with `ray start --head`, "
            f"fix the address, or use --cluster.address local"
        ) from error
    if on_terminate is not None:
        signal.signal(signal.SIGTERM, on_terminate)  # replaces Ray's handler, which ends the process at once


def bring_up(init: Callable[[], object]) -> None:
    """Start a local Ray by `init`. When its processes start late, kill them and try again, at most STARTS times in total. Raises
    what `init` raises.
    """
    before = set(psutil.Process().children())
    for left in reversed(range(STARTS)):
        try:
            with defaults(PORT_WAIT):
                init()
            return
        except Exception as error:  # Ray raises a plain Exception
            if not left or "timed out during startup" not in str(error):
                raise
            logger.warning("Ray did not start: %s; starting another", first_line(error))
        ray.shutdown()
        for process in set(psutil.Process().children()) - before:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def defaults(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables inside the block, except those that the user has set."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def find() -> str | None:
    """The address to attach to: None leaves it to RAY_ADDRESS; else the head that `ray start` recorded on this machine; else 'local'.

    A killed head leaves its record, and Ray would wait minutes for it. So a recorded head counts only if it listens.
    """
    if os.environ.get("RAY_ADDRESS"):
        return None
    recorded = read_ray_address()
    if not recorded:
        return "local"
    host, _, port = recorded.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2.0).close()
    except (OSError, ValueError):
        return "local"
    return str(recorded)


def dashboard_url() -> str:
    """Address of the Ray dashboard; empty when the cluster runs none."""
    url = ray.get_runtime_context().gcs_address and ray._private.worker.get_dashboard_url()
    return f"http://{url}" if url else ""


def available() -> Resources:
    """What the cluster has in total."""
    total = ray.cluster_resources()
    return Resources(cpus=total.get("CPU", 0.0), gpus=total.get("GPU", 0.0))


def attached_resources(cluster: ClusterConfig) -> Resources:
    """What the running cluster has, without staying connected."""
    start(cluster, namespace="retrospect-check")
    try:
        return available()
    finally:
        ray.shutdown()


def wait_for(bundles: tuple[Bundle, ...], seconds: float) -> None:
    """Ask the autoscaler for the bundles and wait until the cluster has them. Raises ClusterError after `seconds`."""
    deadline = time.monotonic() + seconds
    asked = [{"CPU": b.cpus, "GPU": b.gpus} for b in bundles for _ in range(b.count) if b.cpus or b.gpus]
    if seconds:
        ask(asked)
    while True:
        try:
            return check_resources(bundles, available())
        except ClusterError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(1.0)


def ask(bundles: list[dict[str, float]]) -> None:
    """Ask the autoscaler for room for all these bundles together. This replaces the driver's earlier request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)
