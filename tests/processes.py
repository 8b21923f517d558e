"""Ends of processes, as tests wait for them, and ports for servers that tests start."""

import random
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

LONG = 400.0
"""Seconds that anything may take on a busy machine."""


def ends(process: int) -> bool:
    """Whether a process that was killed ends: the kernel may take a moment."""
    deadline = time.monotonic() + LONG
    while running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(process)


def running(process: int) -> bool:
    """Whether the process still is there (one that has ended and waits for its parent is not)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def assert_on_loopback(processes: Sequence[psutil.Process]) -> None:
    """Nothing of a local run can be reached from another machine: driver, Ray, engine, learner."""
    found = {}
    for one in processes:
        with suppress(psutil.Error):
            for place in one.net_connections("inet"):
                if place.status == psutil.CONN_LISTEN:
                    found[place.laddr.port] = (place.laddr.ip, one.name())
    assert len(found) > 5
    assert {port: place for port, place in found.items() if not place[0].endswith("127.0.0.1")} == {}


def free_port() -> int:
    """A free TCP port below the kernel's ephemeral ports, so that no other process gets it by chance before it is
    used."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(20_000, first_ephemeral) or range(1024, 65_536)
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", random.SystemRandom().choice(ports)))
            return int(probe.getsockname()[1])
