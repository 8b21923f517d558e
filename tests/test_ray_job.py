"""`ray job submit --working-dir . -- python launch.py train ...` against a real Ray head with its dashboard."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.processes import free_port
from tests.whole_runs import assert_ended, descendants

ROOT = Path(__file__).parents[1]
RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture
def dashboard() -> Iterator[str]:
    """A head of its own (started as a user does); the address of its dashboard."""
    port, dash, client, agent = free_ports(4)
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    arguments = ["start", "--head", "--block", f"--port={port}", f"--dashboard-port={dash}", "--num-cpus=2"]
    ports = ["--node-ip-address=127.0.0.1", f"--ray-client-server-port={client}", "--dashboard-host=127.0.0.1"]
    # The agent that takes jobs has a fixed port by default: where another Ray of this machine has it, it takes none.
    ports.append(f"--dashboard-agent-listen-port={agent}")
    subprocess.run([RAY, "get-auth-token", "--generate"], env=environment, check=True, capture_output=True)
    # A folder of its own: in the usual one it would record itself as the cluster of this machine.
    with tempfile.TemporaryDirectory(prefix="head", ignore_cleanup_errors=True) as folder:
        head = subprocess.Popen(
            [RAY, *arguments, *ports, f"--temp-dir={folder}"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            yield ready(f"http://127.0.0.1:{dash}", head)
        finally:
            end(head)


def free_ports(count: int) -> set[int]:
    """Different ones that the kernel gives to nobody by chance before the head has them."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return found


def ready(address: str, head: "subprocess.Popen[str]") -> str:
    """The dashboard's address as soon as it answers."""
    deadline = time.monotonic() + 300
    while not answers(address):
        assert head.poll() is None, "the head did not start"
        assert time.monotonic() < deadline, "no dashboard within 300 s"
        time.sleep(0.5)
    return address


def end(head: "subprocess.Popen[str]") -> None:
    """Kill a head and all that it has started; asked to end, it would wait half a minute for its workers."""
    started = [] if head.poll() is not None else descendants(head)
    head.kill()
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    head.wait()
    assert_ended(started)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=2)
    except urllib.error.HTTPError:
        return True  # a dashboard that asks for the token is up
    except (OSError, http.client.HTTPException):
        return False
    return True


def submit(dashboard: str, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """`ray job submit` of this tree, tried again while the head's job agent has not registered yet: a head that
    answers on its dashboard may refuse jobs for some seconds more ("No available agent"), longer on a busy machine."""
    deadline = time.monotonic() + 180
    while True:
        done = subprocess.run(
            [RAY, "job", "submit", "--address", dashboard, "--working-dir", ".", "--", sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "RAY_AUTH_MODE": "token"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if "No available agent" not in done.stderr + done.stdout or time.monotonic() > deadline:
            return done
        time.sleep(2)


def test_a_submitted_job_trains_on_the_cluster(dashboard: str, tmp_path: Path, starter: Callable[..., str]) -> None:
    options = ["--config", "tests/recipes/tiny.yaml", "--run.root", str(tmp_path), "--run.name", "job"]
    small = ["--run.iterations", "1", "--model.path", starter("tiny", steps=5)]
    done = submit(dashboard, ["launch.py", "train", *options, *small])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "succeeded" in done.stdout
    assert "iteration 1/1:" in done.stdout, "the job's log is readable: one plain line per iteration"
    lines = (tmp_path / "job" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1]
