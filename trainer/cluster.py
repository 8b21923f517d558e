"""Attaches to a Ray cluster or starts one. Invariant: `connect` yields only when it has what the run asks for."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import psutil

from core.startup import ENVIRONMENT, LOOPBACK, set_environment

set_environment()

import ray  # noqa: E402 (Ray reads its environment when it is imported)
from ray._private import ray_constants, state  # noqa: E402
from ray._private.utils import read_ray_address  # noqa: E402
from ray.job_config import JobConfig  # noqa: E402
from ray.util import placement_group, placement_group_table  # noqa: E402
from ray.util.placement_group import PlacementGroup  # noqa: E402

from core import ROOT  # noqa: E402
from core.config import ClusterConfig, Config, Device  # noqa: E402
from core.errors import ClusterError, first_line  # noqa: E402
from core.imports import separate_projects  # noqa: E402
from core.plan import Bundle, Resources, check_resources, choose_device, placement  # noqa: E402
from core.startup import check_reachable  # noqa: E402

STARTS = 3  # attempts to start a local Ray: it waits a fixed 30 s for its raylet
LOCAL = {"RAY_gcs_server_port_wait_time_s": "120", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | LOOPBACK
"""For a local Ray: seconds to wait for its GCS's port (30; an attaching client reads tries), one node on loopback."""
RESERVE_SECONDS = 15.0  # how long the nodes may take to reserve what they have room for
WATCH_SECONDS = 1.0  # between two looks at the placement groups
logger = logging.getLogger("retrospect.cluster")
FORWARDED = ("HF_HUB_OFFLINE", "HF_HOME", "VLLM_CACHE_ROOT")


@contextmanager
def connect(
    config: Config, run_name: str, needs: Callable[[Config, str], tuple[Bundle, ...]] = placement
) -> Iterator[Device]:
    """Connect, wait for the resources, yield the device ('cpu' or 'cuda'), and disconnect at the end. Every run has its
    own namespace, so two runs on one cluster may both have a `rollout-0`. The request to the autoscaler is withdrawn,
    because it would keep the nodes. Raises ClusterError when the cluster cannot be reached or lacks CPUs or GPUs."""
    check_reachable(config.cluster)
    try:
        start(config.cluster, f"retrospect-{run_name}")
        device = choose_device(config.cluster, lambda: available().gpus > 0)
        asked = needs(config, device)
        wait_for(asked, config.cluster.wait)
        with watched(reserve(asked, max(RESERVE_SECONDS, config.cluster.wait))):
            yield device
    finally:
        if config.cluster.wait:
            with suppress(Exception):  # if the cluster is down, the error that ended the run matters more
                ask([])
        ray.shutdown()


def start(cluster: ClusterConfig, namespace: str) -> None:
    """Attach to the cluster of `cluster.address`, or start one on loopback. `namespace` also names Ray's job."""
    on_terminate = signal.getsignal(signal.SIGTERM)
    workers = {name: os.environ[name] for name in (*ENVIRONMENT, *FORWARDED) if name in os.environ}
    workers["PYTHONPATH"] = f"{ROOT}:${{PYTHONPATH}}"  # finds an installed copy; Ray fills in the node's own
    # Ray puts the working directory before ours on the path of its workers.
    hook = {"worker_process_setup_hook": "core.imports.separate_projects"} if separate_projects() else {}
    address = find() if cluster.address == "auto" else cluster.address
    init = partial(
        ray.init,
        address=address,
        namespace=namespace,
        job_config=JobConfig(metadata={"job_name": namespace}),
        runtime_env={"env_vars": workers, **hook},
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
        remedy = "start a head with `ray start --head`, fix the address, or use --cluster.address local"
        if "AF_UNIX" in str(error):  # a socket of Ray in its folder has a path of more than 107 bytes
            remedy = "set RAY_TMPDIR to a folder with a shorter path, such as /tmp"
        raise ClusterError(
            f"cluster.address = {cluster.address!r}: cannot connect to Ray: {first_line(error)}; {remedy}"
        ) from error
    if on_terminate is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_terminate)  # replaces Ray's handler, which ends the process at once


def bring_up(init: Callable[[], object]) -> None:
    """Start a local Ray by `init`, at most STARTS times while its processes start late. Raises what `init` raises."""
    before = set(psutil.Process().children())
    for left in reversed(range(STARTS)):
        try:
            with defaults(LOCAL):
                ray_constants.ENABLE_RAY_CLUSTER = os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"
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
    """The address to attach to: None leaves it to RAY_ADDRESS; else the head that `ray start` recorded here, if it
    listens (a killed one leaves its record, and Ray would wait minutes for it); else 'local'."""
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


def joins(cluster: ClusterConfig) -> bool:
    """Whether a run joins a cluster that is there, instead of starting one on this machine."""
    return (find() if cluster.address == "auto" else cluster.address) != "local"


def places() -> list[str]:
    """Lines that say where the Ray dashboard is, and the metrics of this node for Prometheus."""
    own = ray.get_runtime_context().get_node_id()
    (node,) = (one for one in ray.nodes() if one["NodeID"] == own)
    url = ray._private.worker.get_dashboard_url()
    lines = [f"dashboard http://{url} (it asks for the token that `ray get-auth-token` prints)"] if url else []
    return [*lines, f"metrics http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"]


def available() -> Resources:
    """What the cluster has in total."""
    total = ray.cluster_resources()
    return Resources(cpus=total.get("CPU", 0.0), gpus=total.get("GPU", 0.0))


def attached_resources(cluster: ClusterConfig) -> Resources:
    """What the running cluster has, without staying connected."""
    if ray.is_initialized():
        return available()
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
                print(describe_room(bundles), flush=True)
                raise
        time.sleep(1.0)


def reserve(bundles: tuple[Bundle, ...], seconds: float) -> dict[str, PlacementGroup]:
    """One placement group per role, by its name, until the driver's job ends. Raises ClusterError, after a table, when
    after `seconds` the nodes have no room: others use them, or no single node is large enough."""
    room, deadline = describe_room(bundles), time.monotonic() + seconds
    groups = {}
    for role in bundles:
        each = {kind: amount for kind, amount in (("CPU", role.cpus), ("GPU", role.gpus)) if amount}
        if not each:
            continue
        group = groups[role.name] = placement_group([each] * role.count, "PACK", name=role.name)
        if not group.wait(max(1.0, deadline - time.monotonic())):
            print(room, flush=True)
            raise ClusterError(
                f"no room on the nodes for {role.count} {role.name}{'s' if role.count > 1 else ''} with {role.cpus:g} "
                f"CPUs and {role.gpus:g} GPUs each; end what uses the nodes, lower the count or the cluster section's "
                "shares, or add nodes"
            )
    return groups


@contextmanager
def watched(groups: Mapping[str, PlacementGroup]) -> Iterator[None]:
    """Inside the block one line says that a group has lost a node; Ray notices that in 15 seconds to a minute."""
    ended = threading.Event()

    def _watch() -> None:
        placed = dict.fromkeys(groups, True)
        with suppress(Exception):  # the head is lost: the run then ends with a line of its own
            while not ended.wait(WATCH_SECONDS):
                for role, group in groups.items():
                    before, placed[role] = placed[role], placement_group_table(group)["state"] == "CREATED"
                    if before and not placed[role]:
                        message = f"{role}: a node was lost; waiting for one with room for {group.bundle_specs[0]}"
                        logger.warning(message)
                        print(message, flush=True)

    thread = threading.Thread(target=_watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(RESERVE_SECONDS)


def describe_room(bundles: tuple[Bundle, ...]) -> str:
    """A table of what the roles ask for and what the nodes have, before anything is reserved."""
    row = "{:<34} {:>10} {:>10}".format
    lines = [row("asked", "CPUs", "GPUs")]
    lines += [row(f"  {b.count} x {b.name}", f"{b.cpus:g} each", f"{b.gpus:g} each") for b in bundles]
    lines.append(row("there is", "free CPUs", "free GPUs"))
    free = state.available_resources_per_node()
    for node in (node for node in ray.nodes() if node["Alive"]):
        left, total = free.get(node["NodeID"], {}), node["Resources"]
        both = (f"{left.get(kind, 0):g} of {total.get(kind, 0):g}" for kind in ("CPU", "GPU"))
        lines.append(row(f"  {node['NodeManagerAddress']} {node['NodeID'][:8]}", *both))
    return "\n".join(lines)


def ask(bundles: list[dict[str, float]]) -> None:
    """Ask the autoscaler for room for all these bundles together. This replaces the driver's earlier request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)
