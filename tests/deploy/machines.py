"""Machines inside this one, for tests of clusters: each has a network, processes, a home folder and a /tmp/ray of its
own.

Nothing on a machine sees or ends a process outside it. Whatever runs on it ends with it.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.whole_runs import ROOT, environment, title

BIN = Path(sys.executable).parent
ALONE = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
BOOT = """set -e
mkdir -p /tmp/ray
mount --bind ray /tmp/ray
mount --bind passwd /etc/passwd
mount -t tmpfs none /run
mkdir /run/sshd
ip link set lo up
echo up
cat  # until the test's process ends; this shell buries the orphans meanwhile
exit
"""

OUTSIDE = "8.8.8.8"
"""Nobody is there: Ray takes the address from which it would be reached for that of the machine."""


def require(**packages: str) -> None:
    """Skip the module, with one line, where no machines can be made or programs are missing. `packages`: program ->
    package."""
    if missing := [package for program, package in packages.items() if shutil.which(program) is None]:
        reason = f"{' and '.join(missing)} not installed (Debian, Ubuntu: apt-get install {' '.join(missing)})"
    elif os.geteuid() or subprocess.run([*ALONE, "ip", "link"], capture_output=True, check=False).returncode:
        reason = "machines inside this one need root, a container that allows namespaces, and iproute2"
    else:
        return
    pytest.skip(reason, allow_module_level=True)


class Machine:
    """One machine; its files are in `folder`, its user's (root's) in `folder/home`. `token`: Ray's."""

    def __init__(self, folder: Path, address: str, token: str) -> None:
        self.home, self.address = folder / "home", address
        for name in ("home/.ray", "ray"):
            (folder / name).mkdir(parents=True)
        (self.home / ".ray" / "auth_token").write_text(token)
        users = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        (folder / "passwd").write_text("\n".join([f"root:x:0:0::{self.home}:/bin/bash", *users, ""]))
        self._holder = subprocess.Popen(
            [*ALONE, "bash", "-c", BOOT],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n", self._holder.communicate()
        self.pid = psutil.Process(self._holder.pid).children()[0].pid  # its first process
        ip(self, "address", "add", f"{address}/32", "dev", "lo")

    def command(self, *words: str) -> list[str]:
        """What starts a command here from outside."""
        return ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", f"--wd={ROOT}", "--", *words]

    def environment(self) -> dict[str, str]:
        ray = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
        ray["RAY_worker_niceness"] = "0"  # else its workers starve where other tests run
        return environment() | ray | {"HOME": str(self.home)}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            self.command(*words), env=self.environment(), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ray(self, *words: str) -> str:
        """What a command of Ray says here."""
        return self.run(str(BIN / "ray"), *words)

    def workers(self) -> set[str]:
        """The names of the Ray actors that run here."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = set()
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    found |= set(title(process).split(".")[0].split()[:1])
            except OSError:  # it has ended
                continue
        return found

    def kill(self) -> None:
        """End all that runs here at once, as if the power went. The kernel returns when the last process has ended."""
        if self._holder.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._holder.wait()


def link(one: Machine, other: Machine) -> None:
    """A cable between two machines. It goes with either of them."""
    ends = (one, f"to{other.pid}", other), (other, f"to{one.pid}", one)
    near, far = (port for _, port, _ in ends)
    ip(one, "link", "add", near, "type", "veth", "peer", "name", far, "netns", str(other.pid))
    for machine, port, peer in ends:
        ip(machine, "link", "set", port, "up")
        for target in (peer.address, OUTSIDE):
            ip(machine, "route", "replace", f"{target}/32", "dev", port, "src", machine.address)


def ip(machine: Machine, *words: str) -> None:
    """Change the network of a machine, by a process that sees the others."""
    subprocess.run(["nsenter", f"--target={machine.pid}", "--net", "ip", *words], check=True)
