"""Whole runs of `launch.py` as child processes: starting, waiting for, and killing them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
RECIPE = "tests/recipes/tiny.yaml"
CALCULATOR = ("--task.name", "bench.tasks.calculator:calculator")
"""The recipe's task in several turns."""
UNREPEATED = ("_seconds", "tokens_per_second", "_idle", "store_bytes", "_memory")
"""Parts of the names of metrics that no run repeats: times, and memory, which depends on when buffers grew."""
OF_THE_TESTS = ("RAY_ADDRESS", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
SECRET = "of-nobody-else-5d1f"
LONG = 600.0
"""Seconds for what takes a few on an idle machine."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "launch.py", *arguments]


def environment() -> dict[str, str]:
    """That of a user, without what a rank in the tests' process has left in theirs."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_THE_TESTS}
    return kept | {"OMP_NUM_THREADS": "1"} | dict.fromkeys(("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"), SECRET)


def run(*arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not any(part in k for part in UNREPEATED)} for line in lines]


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    """Until the run of `process` has written `path`."""
    deadline = time.monotonic() + LONG
    while not path.exists():
        assert process.poll() is None, f"the run ended before it wrote {path.name}"
        assert time.monotonic() < deadline, f"no {path.name} within {LONG:.0f} s"
        time.sleep(0.01)


def descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def names(processes: Sequence[psutil.Process]) -> dict[int, str]:
    """Of those that still run: any of them may end at any moment."""
    found = {}
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            if one.status() != psutil.STATUS_ZOMBIE:  # perhaps nobody here buries the children of a dead parent
                found[one.pid] = one.name()
    return found


def assert_ended(processes: Sequence[psutil.Process]) -> None:
    deadline = time.monotonic() + LONG
    while left := names(processes):
        assert time.monotonic() < deadline, f"left running: {left}"
        time.sleep(0.1)


def kill_driver(process: "subprocess.Popen[str]") -> None:
    """kill -9 of a driver: nothing that it has started is left running, but Ray's two agents per node, which look for
    their raylet every two minutes and are not waited for.
    """
    process.send_signal(signal.SIGSTOP)  # while the others are looked for
    found = descendants(process)
    agents = {pid for pid, name in names(found).items() if "Agent" in name}
    process.kill()
    process.wait()
    assert_ended([one for one in found if one.pid not in agents])
    for one in found:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    assert_ended(found)


def kill_after_a_checkpoint(folder: Path, *options: str) -> None:
    """A run in `folder`, its driver killed -9 as soon as there is a checkpoint, and what is left with it."""
    process = subprocess.Popen(
        command("train", *options),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    wait_for(folder / "checkpoints" / "latest", process)
    kill_driver(process)


def wait_for_iterations(folder: Path, count: int, process: "subprocess.Popen[str]") -> None:
    """Until the run of `process` has written the metrics of so many iterations."""
    wait_for(folder / "metrics.jsonl", process)
    deadline = time.monotonic() + LONG
    while (folder / "metrics.jsonl").read_text().count("\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def begin(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*arguments), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def title(process: psutil.Process) -> str:
    """What a Ray worker calls itself; nothing for other processes."""
    with suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return line if line.startswith("ray::") else ""
    return ""


def assert_engines_agreed(lines: Sequence[dict[str, float]]) -> None:
    """After every broadcast that was probed; the first is."""
    gaps = [line["logprob_gap"] for line in lines if line["logprob_gap"] is not None]
    assert gaps
    assert all(gap < 1e-3 for gap in gaps), gaps


WORKER = """
import contextlib, gc, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print past Python is no answer
for line in sys.stdin:
    code, environment = json.loads(line)
    os.environ.update(environment)
    status, said, errors = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            status = 1
            traceback.print_exc()
    gc.collect()
    print(json.dumps([status, said.getvalue(), errors.getvalue()]), file=answers, flush=True)
"""


class OneProcess:
    """A process that runs one program after the other, for runs of tiny models without Ray: it imports vLLM and
    DeepSpeed once, which takes 15 s of processor time. It keeps the memory of their engines."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def execute(self, code: str) -> str:
        """What a Python program printed. It did not fail, and told no secret. The environment is the present one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([code, environment()]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process ended with {self._process.wait()}"
        status, said, errors = json.loads(answer)
        assert status in (0, None), said + errors
        assert SECRET not in said + errors
        return str(said)

    def run(self, *arguments: str) -> str:
        """What a command of `launch.py` says."""
        return self.execute(f"import launch\nraise SystemExit(launch.main({[*arguments, '--local']!r}))")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
