"""Commands of a check, as processes of their own with a common deadline, and what the files of a run say."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.models import ROOT

GRACE = 8.0  # seconds to end after an interrupt, in which a run still reports
LAST_LINES = 3  # of a log, in the line about a failure


class FailedError(Exception):
    """A check has failed; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a check works, and until when."""

    folder: Path  # for its runs and logs
    model: str  # the pretrained model
    device: str
    deadline: float  # by the monotonic clock

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.1, self.deadline - time.monotonic())

    def run(self, name: str) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / name

    def log(self, name: str) -> Path:
        """What a command has written."""
        return self.folder / "logs" / f"{name}.log"


def perform(place: Place, log: str, command: list[str], until: Callable[[], bool] | None = None) -> None:
    """Run a Python command until it ends, or kill it as soon as `until` holds. Raises FailedError when it fails or when
    the time is used up."""
    (place.folder / "logs").mkdir(parents=True, exist_ok=True)
    path = place.log(log)
    with path.open("a", encoding="utf-8") as file:
        process = psutil.Popen([sys.executable, *command], cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
    try:
        while until is None or not until():
            with suppress(psutil.TimeoutExpired):
                status = process.wait(min(place.left, 0.3))
                break
            if time.monotonic() >= place.deadline:
                process.send_signal(2)
                with suppress(psutil.TimeoutExpired):
                    process.wait(GRACE)
                raise FailedError(f"the time is used up; {last_lines(path)}")
        else:
            return
    finally:
        end(process)
    if status != 0:
        raise FailedError(f"exit status {status}; {last_lines(path)}")


def end(process: psutil.Process) -> None:
    """Kill a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process.wait(GRACE)


def last_lines(path: Path) -> str:
    """The end of a log in one line."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return f"{path.name} ends: {' | '.join(lines[-LAST_LINES:])[:600]}"


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file; a line that is being written is left out."""
    found = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def summary(run: Path, iterations: int) -> str:
    """What a run has measured, in words. Raises FailedError when iterations are missing."""
    found = rows(run / "metrics.jsonl")
    if [row["iteration"] for row in found] != list(range(1, iterations + 1)):
        raise FailedError(f"iterations {[row['iteration'] for row in found]} of {iterations}")
    later = found[1:]  # the first compiles

    def _middle(name: str) -> float:
        return float(median(row.get(name) or 0.0 for row in later))

    last = found[-1]
    parts = [
        f"{_middle('total_seconds'):.2f} s per iteration",
        f"{_middle('tokens_per_second'):,.0f} tokens/s",
        f"gap {max(row.get('behaviour_gap_mean') or 0.0 for row in found):.4f} nats",
    ]
    for role in ("learner", "engine"):
        if gib := last.get(f"{role}_gpu_memory"):
            parts.append(f"{role} {gib:.1f} GiB")
    return ", ".join(parts)


def planned(log: Path) -> str:
    """What the run's memory plan says of a learner rank in an update, in words; empty without a plan."""
    found = re.findall(r"^  update .*GiB: (.*)$", log.read_text(errors="replace"), re.MULTILINE)
    parts = dict(part.rsplit(" ", 1) for part in found[-1].split(" + ")) if found else {}
    own = sum(float(gib) for name, gib in parts.items() if name not in ("CUDA", "engine"))
    return f", learner by the plan {own:.1f} GiB" if own else ""


def tensors(folder: Path) -> dict[str, Any]:
    """The weights of a saved policy."""
    from safetensors.torch import load_file

    return {name: one for path in sorted(folder.glob("*.safetensors")) for name, one in load_file(path).items()}


def driver() -> str:
    """The card and its driver, for the table."""
    import torch

    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    version = "?"
    with suppress(OSError, subprocess.TimeoutExpired):
        version = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False).stdout.split("\n")[0]
    return f"{torch.cuda.get_device_name()}, driver {version}, CUDA {torch.version.cuda}"
