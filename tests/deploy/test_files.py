"""deploy/ and the Dockerfile, without a cluster: what they name exists, and Ray takes the options that they give it."""

import re
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.load import load_config
from core.plan import demand, placement

ROOT = Path(__file__).parents[2]
RECIPE = "configs/gsm8k_qwen2.5_1.5b.yaml"


def options_of_ray_start() -> set[str]:
    from ray.scripts.scripts import start

    return {option for parameter in start.params for option in parameter.opts}


def options_given(command: str) -> list[str]:
    """The options after `ray start` in a line of shell."""
    words = shlex.split(command.split("ray start", 1)[1].split(";")[0].rstrip(" &'"))
    return [word.split("=")[0] for word in words if word.startswith("--")]


def test_ray_accepts_the_cluster_of_own_machines() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((ROOT / "deploy" / "onprem.yaml").read_text())
    cloud = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["provider"]["type"] == "local"
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"]) == 2
    assert set(config["rsync_exclude"]) == set(cloud["rsync_exclude"])
    writes = [command for command in config["setup_commands"] if ".retrospect" in command]
    assert writes == [command for command in cloud["setup_commands"] if ".retrospect" in command]
    starts = [line for key in ("head", "worker") for line in config[f"{key}_start_ray_commands"] if "ray start" in line]
    for line in starts:
        assert set(options_given(line)) <= options_of_ray_start()
    assert "--dashboard-host=127.0.0.1" in starts[0]


def pods() -> dict[str, Any]:
    """The pod templates of deploy/kuberay.yaml by role."""
    job = yaml.safe_load((ROOT / "deploy" / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == version("ray")
    assert cluster["authOptions"] == {"mode": "token"}
    (worker,) = cluster["workerGroupSpecs"]
    return {"head": cluster["headGroupSpec"], "worker": worker, "entrypoint": job["spec"]["entrypoint"]}


@pytest.mark.parametrize("role", ["head", "worker"])
def test_the_pods_of_kubernetes_mount_what_they_declare(role: str) -> None:
    group = pods()[role]
    assert {f"--{name}" for name in group["rayStartParams"]} <= options_of_ray_start()
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert (
        container["resources"]["limits"] == container["resources"]["requests"]
    )  # else Ray counts other CPUs than it has


def test_the_job_of_kubernetes_fits_its_workers() -> None:
    found = pods()
    words = shlex.split(found["entrypoint"])
    assert words[:3] == ["python", "/retrospect/launch.py", "train"]
    recipe = Path(words[words.index("--config") + 1]).relative_to("/retrospect")
    asked = demand(placement(load_config(ROOT / recipe), "cuda"))
    (container,) = found["worker"]["template"]["spec"]["containers"]
    limits, count = container["resources"]["limits"], found["worker"]["maxReplicas"]
    assert asked.gpus <= count * int(limits["nvidia.com/gpu"])
    assert asked.cpus <= count * int(limits["cpu"])


@pytest.mark.parametrize("saved", [None, False, True])
def test_slurm_starts_ray_on_every_node_and_saves_before_the_time_limit(tmp_path: Path, saved: bool | None) -> None:
    """The script runs with programs in the place of Slurm's and Ray's that write down how they are called."""
    script = (ROOT / "deploy" / "slurm.sh").read_text()
    for line in re.findall(r"ray start .*", script):
        assert set(options_given(line)) <= options_of_ray_start()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    for name, body in {
        "scontrol": 'if [ "$1" = requeue ]; then echo "requeue $2" >> calls; else printf "node1\\nnode2\\n"; fi',
        "srun": 'echo "srun $*" >> calls; sleep 30',
        "python": 'if [ "$1" = -c ]; then echo token; else trap "echo saved >> calls; exit 0" TERM;'
        ' echo "driver $* at $RAY_ADDRESS" >> calls; while :; do sleep 0.05; done; fi',
    }.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}
    run, arguments = tmp_path / "runs" / "one", f"--config {RECIPE}"
    if saved is not None:  # a job that may be requeued, after a start that saved a checkpoint or did not
        environment["RUN"] = str(run)
        (run / "checkpoints").mkdir(parents=True)
        if saved:
            (run / "checkpoints" / "latest").touch()
        arguments = f"--resume {run}" if saved else f"{arguments} --run.root {run.parent} --run.name one"
    process = subprocess.Popen(
        ["bash", str(ROOT / "deploy" / "slurm.sh"), "--config", RECIPE],
        cwd=tmp_path,
        env=environment,
    )
    calls = tmp_path / "calls"
    while not calls.exists() or calls.read_text().count("\n") < 3:
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=60) == 0
    lines = calls.read_text().splitlines()
    assert f"driver launch.py train --cluster.wait 600 {arguments} at node1:20007" in lines
    assert run.exists() == bool(saved)  # moved away: a new run begins
    assert [node for node in ("node1", "node2") if any(f"-w {node} " in line for line in lines)] == ["node1", "node2"]
    assert lines[-1] == ("saved" if saved is None else "requeue 7")


def test_the_dockerfile_copies_what_exists_and_names_its_stages() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    stages = [match[1] for line in lines if (match := re.match(r"FROM \S+ AS (\w+)", line))]
    assert stages == ["base", "cpu", "gpu"]
    for line in lines:
        if match := re.match(r"COPY (\S+) \S+", line):
            assert (ROOT / match[1]).exists()
        for path in re.findall(r"requirements/\S+\.(?:txt|sh)", line):
            assert (ROOT / path).is_file()
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} <= set(ignored)
