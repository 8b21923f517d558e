"""Whole runs on several machines: one is lost while it trains; deploy/onprem.yaml brings a cluster up and down by SSH.

In one file, so that one test process runs both: they wait a lot, and another process can use the cores meanwhile.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.machines import BIN, Machine, link, require
from tests.whole_runs import LONG, ROOT, command, metrics, wait_for_iterations

require()

HEAD = "10.77.0.1"
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


def test_a_run_waits_for_another_machine_when_that_of_its_engines_is_lost(
    machines: Callable[[str], Machine], tmp_path: Path, starter: Callable[..., str]
) -> None:
    """The learner rank reserves the one CPU of the head, the rollout actor the two of another machine."""
    head, worker = machines(HEAD), machines("10.77.0.2")
    link(head, worker)
    head.run(
        *("env", "RAY_health_check_period_ms=1000", "RAY_health_check_timeout_ms=3000"),  # a dead node is found sooner
        *(str(BIN / "ray"), "start", "--head", "--port=6379", "--num-cpus=1", "--include-dashboard=false"),
    )
    join(worker)
    small = ["--model.path", starter("tiny", steps=5)]
    small += ["--run.iterations", "3", "--evaluation.every", "0"]
    options = ["--config", "tests/recipes/tiny.yaml", "--run.root", str(tmp_path), "--run.name", "r", *small]
    places = ["--cluster.rollout_cpus", "2", "--cluster.learner_cpus", "1"]
    said = tmp_path / "said"
    with said.open("w") as output:
        run = subprocess.Popen(
            head.command(*command("train", *options, *places)),
            env=head.environment() | {"RAY_ADDRESS": f"{HEAD}:6379"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for_iterations(tmp_path / "r", 1, run)
        engine, rank = {"ray::RolloutActor"}, {"ray::RankWorker"}
        assert [(machine.workers() & engine, machine.workers() & rank) for machine in (head, worker)] == [
            (set(), rank),
            (engine, set()),
        ]
        worker.kill()
        wait_for_line(said, "rollout actor: a node was lost; waiting for one with room for {'CPU': 2.0}", run)
        other = machines("10.77.0.3")
        link(head, other)
        join(other)
        assert run.wait(LONG) == 0, said.read_text()
    lines = metrics(tmp_path / "r")
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert {line["quarantined"] for line in lines} == {0}  # else every start has all of its samples


def join(machine: Machine) -> None:
    machine.ray("start", f"--address={HEAD}:6379", "--num-cpus=2")


def wait_for_line(output: Path, line: str, run: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + LONG
    while line not in output.read_text():
        assert run.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)


def test_ray_starts_runs_and_stops_a_cluster_of_own_machines(
    machines: Callable[[str], Machine], tmp_path: Path, starter: Callable[..., str]
) -> None:
    """From a third machine. Rollout actor and learner rank reserve a whole machine each.

    The machines use this virtual environment instead of installing one. Everything else is as the file says.
    """
    require(sshd="openssh-server", ssh="openssh-client", rsync="rsync")
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
    small = [f"--model.path={starter('tiny', steps=5)}", "--run.iterations=1"]
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
