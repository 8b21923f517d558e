"""What experiments of many runs share: a child process for each run, and tables with a line of JSON per run. Invariant:
a line is written at once, so several processes may append to one table."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_child(module: str, order: Mapping[str, Any], log: Path, *, threads: int, nice: int = 0) -> None:
    """Perform an order with `python -m MODULE FILE.json` in a child process, whose output replaces `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        path = Path(folder) / "order.json"
        path.write_text(json.dumps(order), encoding="utf-8")
        subprocess.run(
            ["nice", "-n", str(nice), sys.executable, "-m", module, str(path)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONFAULTHANDLER": "1"},  # a crash says where
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )


def append_line(table: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a table of results."""
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("ab", buffering=0) as file:
        file.write(f"{json.dumps(row)}\n".encode())


def commit() -> str:
    """The commit of the code, with '+' if files other than results differ from it. In a copy without a
    repository the variable GIT_COMMIT says it."""
    if not (ROOT / ".git").exists():
        return os.environ.get("GIT_COMMIT", "")
    changes = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    head, changed = (
        subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for arguments in (("rev-parse", "--short", "HEAD"), changes)
    )
    return head + "+" * bool(changed)
