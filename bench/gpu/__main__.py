"""Every part of the project that needs a GPU, once: `python -m bench.gpu [NAME ...]`.

Each check is short and has its own time limit. As soon as it ends it is a line of bench/results/gpu.jsonl and of the
table bench/results/gpu.md, in which it replaces its earlier result. A check that fails stops no other. Before:
`make model`, which puts the pretrained model into place. `--list` shows the checks and their limits.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from bench.gpu.checks import CHECKS, Check
from bench.gpu.steps import FailedError, Place, driver, rows
from bench.models import MODEL, ROOT
from bench.report import RESULTS, grid

LINES = RESULTS / "gpu.jsonl"
LEAST = 60.0  # seconds left below which no check begins
WRITING = threading.Lock()


def page(found: list[dict[str, object]]) -> str:
    """The table: what has run, by the last result of every check, and what has not."""
    last = {line["check"]: line for line in found}
    ran = [
        [name, check.about, "yes" if line["ok"] else "**no**", *(str(line[key]) for key in ("figures", "card", "date"))]
        for name, check in CHECKS.items()
        if (line := last.get(name))
    ]
    missing = [[name, check.about] for name, check in CHECKS.items() if name not in last]
    lines = ["# On a GPU", "", "`python -m bench.gpu` runs each check once, and writes this page.", ""]
    if ran:
        lines += ["## Run", "", *grid(("check", "what", "passed", "figures", "card", "date"), ran)]
    if missing:
        lines += ["## Not run yet", "", *grid(("check", "what"), missing)]
    return "\n".join(lines).rstrip() + "\n"


def measured(check: Check, place: Place, card: str) -> dict[str, object]:
    """The line of a check."""
    begun = time.monotonic()
    try:
        ok, figures = True, check.measure(place)
    except FailedError as error:
        ok, figures = False, str(error).replace("|", "/")
    took = time.monotonic() - begun
    line = {"check": check.name, "ok": ok, "seconds": round(took, 1), "figures": figures, "card": card}
    return {**line, "date": f"{datetime.now():%Y-%m-%d}"}


def main(names: list[str], model: str, device: str, seconds: float, together: int) -> int:
    """Run checks, `together` at a time; those that would begin with less than LEAST seconds left are named and left
    out. Returns how many failed."""
    card = driver() if device == "cuda" else "none"
    end = time.monotonic() + seconds

    def _one(check: Check) -> bool:
        if (left := end - time.monotonic()) < LEAST:
            print(f"{check.name}: left out, {left:.0f} s are left", flush=True)
            return True
        print(f"{check.name}: begins, at most {min(check.seconds, left):.0f} s: {check.about}", flush=True)
        place = Place(folder, model, device, time.monotonic() + min(check.seconds, left))
        line = measured(check, place, card)
        said = "passed" if line["ok"] else "FAILED"
        print(f"{check.name}: {said} in {line['seconds']} s: {line['figures']}", flush=True)
        if device == "cuda":  # a trial on CPU leaves no result
            with WRITING:
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                LINES.with_suffix(".md").write_text(page(rows(LINES)), encoding="utf-8")
        return bool(line["ok"])

    folder = Path(tempfile.mkdtemp(prefix="gpu-"))
    print(f"{len(names)} checks on {card}; runs and logs in {folder}", flush=True)
    with ThreadPoolExecutor(together) as threads:
        return sum(not ok for ok in threads.map(_one, [CHECKS[name] for name in names]))


def no_gpu(device: str) -> str:
    """Why nothing can be run; empty when a GPU is there."""
    import torch

    if device == "cpu" or torch.cuda.is_available():
        return ""
    return (
        f"bench.gpu: torch {torch.__version__} sees no GPU here, so nothing was run (docs/install.md, On a GPU machine)"
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("names", nargs="*", metavar="NAME", help="these alone, in this order")
    made.add_argument("--list", action="store_true", help="name the checks and their limits")
    made.add_argument("--model", default=str(ROOT / MODEL), help="the pretrained model (default: of make model)")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try the checks; writes nothing")
    made.add_argument("--seconds", type=float, default=3600.0, help="for all together")
    made.add_argument("--together", type=int, default=1, metavar="N", help="checks at a time, if the card has room")
    return made


if __name__ == "__main__":
    given = parser().parse_args()
    if unknown := set(given.names) - set(CHECKS):
        sys.exit(f"bench.gpu: no check {', '.join(sorted(unknown))}; --list names them")
    if given.list:
        print(*(f"{one.name:<20}{one.seconds:>4.0f} s  {one.about}" for one in CHECKS.values()), sep="\n")
    elif reason := no_gpu(given.device):
        sys.exit(reason)
    else:
        names = given.names or list(CHECKS)
        sys.exit(min(1, main(names, given.model, given.device, given.seconds, given.together)))
