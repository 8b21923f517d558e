"""Writes the metrics of an iteration to metrics.jsonl, the source of all reports.

Opened by `commands/train.py`. Invariant: after a resume at iteration k the file contains iterations 1..k exactly once before k + 1
is written, also if a process was killed during a write.
"""

import json
import math
import os
from pathlib import Path

from core.run_directory import keep_lines, read_jsonl
from trainer.metrics import IterationMetrics, flatten, flatten_sources, unflatten


class JsonlSink:
    """One line per iteration, on disk (fsync) when `write` returns. NaN and infinities become null.

    `last`: the iteration after which the run continues; later and incomplete lines are dropped.
    """

    def __init__(self, path: Path, *, last: int = 0) -> None:
        keep_lines(path, "iteration", last)
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: IterationMetrics) -> None:
        """Append the iteration."""
        self._file.write(_line(metrics))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(metrics: IterationMetrics) -> str:
    numbers = flatten(metrics) | flatten_sources(metrics)
    values = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return json.dumps(values, allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[IterationMetrics]:
    """The iterations of a metrics.jsonl, in order. If an iteration occurs twice, the last one counts."""
    found = {int(line["iteration"]): unflatten(line) for line in read_jsonl(path)}
    return [found[iteration] for iteration in sorted(found)]
