"""A whole run on a cluster of two machines, of which one is lost while it trains."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.deploy.machines import BIN, Machine, link, require
from tests.whole_runs import LONG, command, metrics, wait_for_iterations

require()

HEAD = "10.77.0.1"


def test_a_run_waits_for_another_machine_when_that_of_its_engines_is_lost(
    machines: Callable[[str], Machine], tmp_path: Path
) -> None:
    """The learner rank reserves the one CPU of the head, the rollout actor the two of another machine."""
    head, worker = machines(HEAD), machines("10.77.0.2")
    link(head, worker)
    head.run(
        *("env", "RAY_health_check_period_ms=1000", "RAY_health_check_timeout_ms=3000"),  # a dead node is found sooner
        *(str(BIN / "ray"), "start", "--head", "--port=6379", "--num-cpus=1", "--include-dashboard=false"),
    )
    join(worker)
    small = ["--rollout.engine", "hf", "--starter.steps", "5", "--starter.cache", str(tmp_path / "starters")]
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
    assert [line["iteration"] for line in metrics(tmp_path / "r")] == [1, 2, 3]


def join(machine: Machine) -> None:
    machine.ray("start", f"--address={HEAD}:6379", "--num-cpus=2")


def wait_for_line(output: Path, line: str, run: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + LONG
    while line not in output.read_text():
        assert run.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)
