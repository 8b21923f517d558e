"""deploy/onprem.yaml on machines that are reached by SSH: up, submit, exec, down.

The machines use this virtual environment instead of installing one. Everything else is as the file says.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.machines import BIN, Machine, link, require
from tests.whole_runs import ROOT, metrics

require(sshd="openssh-server", ssh="openssh-client", rsync="rsync")

SSHD = """
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile {key}.pub
PidFile none
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
SetEnv RAY_worker_niceness=0
"""


def test_ray_starts_runs_and_stops_a_cluster_of_own_machines(
    machines: Callable[[str], Machine], tmp_path: Path
) -> None:
    """From a third machine. Rollout actor and learner rank reserve a whole machine each."""
    own, head, worker = machines("10.77.1.1"), machines("10.77.1.2"), machines("10.77.1.3")
    for one, other in ((own, head), (own, worker), (head, worker)):
        link(one, other)
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    for machine in (head, worker):
        file = tmp_path / f"sshd-{machine.address}"
        file.write_text(SSHD.format(address=machine.address, key=key))
        machine.run("/usr/sbin/sshd", "-f", str(file))
    cluster = tmp_path / "onprem.yaml"
    cluster.write_text(yaml.safe_dump(configuration(head, worker, key)))

    own.ray("up", "-y", "--no-config-cache", str(cluster))
    cpus = [f"--cluster.{role}_cpus={os.cpu_count()}" for role in ("rollout", "learner")]
    small = ["--rollout.engine=hf", "--starter.steps=5", f"--starter.cache={tmp_path}/s", "--run.iterations=1"]
    options = [
        "--config=retrospect/tests/recipes/tiny.yaml",
        f"--run.root={tmp_path}",
        "--run.name=r",
        "--cluster.wait=600",
    ]
    own.ray("submit", "--no-config-cache", str(cluster), "launch.py", "--", "train", *options, *small, *cpus)
    assert [line["iteration"] for line in metrics(tmp_path / "r")] == [1]
    status = own.ray("exec", "--no-config-cache", str(cluster), "ray status")
    assert f"/{2.0 * (os.cpu_count() or 1)} CPU" in status  # "0.0/4.0 CPU"
    assert "ray::DashboardAgent" in worker.workers()
    own.ray("down", "-y", str(cluster))
    assert head.workers() == set()  # the worker's Ray ends when it has missed the head for two minutes


def configuration(head: Machine, worker: Machine, key: Path) -> dict[str, Any]:
    """The file with the names of these machines, and without its two commands that install packages."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "onprem.yaml").read_text())
    config["cluster_name"] = f"test-{os.getpid()}"  # Ray keeps its SSH connections in /tmp under this name
    config["provider"] |= {"head_ip": head.address, "worker_ips": [worker.address]}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(key)}
    config |= {"min_workers": 1, "max_workers": 1}
    installing = [command for command in config["setup_commands"] if "venv" in command or "pip" in command]
    assert len(installing) == 2
    kept = [command for command in config["setup_commands"] if command not in installing]
    config["setup_commands"] = [f"ln -sfn {BIN.parent} ~/retrospect-env", *kept]
    return config
