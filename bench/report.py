"""Writes the results of a benchmark: bench/results/NAME.json, a table in NAME.md, and the overview in README.md.
Invariant: a check that misses its goal is written too, with `ok: false`."""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

RESULTS = Path(__file__).parent / "results"
Sense = Literal[">=", "<="]


@dataclass(frozen=True, slots=True)
class Check:
    """One measured number, with or without a goal."""

    name: str
    value: float
    unit: str
    goal: str  # ">= 0.95", or empty
    ok: bool
    baseline: float | None  # the figure to compare with, in the same unit


def check(
    name: str, value: float, unit: str, sense: Sense | None = None, goal: float = 0.0, baseline: float | None = None
) -> Check:
    """Compare a number with its goal, if it has one: `check("speed", 1.1, "x", ">=", 1.0)`."""
    met = sense is None or (value >= goal if sense == ">=" else value <= goal)
    return Check(name, value, unit, f"{sense} {goal:g}" if sense else "", met, baseline)


def told(checks: Sequence[Check]) -> list[Check]:
    """The checks, printed as soon as they are measured."""
    for item in checks:
        against = "" if item.baseline is None else f" against {item.baseline:.4g}"
        print(f"{item.name}: {item.value:.4g} {item.unit}{against}", flush=True)
    return list(checks)


def command_line(about: str | None, device: bool = False) -> argparse.ArgumentParser:
    """The command line of a benchmark, with `--quick` and, if it measures on GPUs too, `--device`: a wrong option is
    answered before anything is measured."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a shorter measurement; writes bench/results/NAME.quick.*")
    if device:
        about = "what to measure on; cuda writes bench/results/NAME-cuda.*"
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=about)
    return parser


def device_name(device: str) -> str:
    """The card of `cuda`, or cpu. Raises ClusterError when torch sees no GPU."""
    if device == "cpu":
        return device
    import torch

    from core.errors import ClusterError

    if not torch.cuda.is_available():
        raise ClusterError("--device cuda: torch sees no GPU here, and nothing was measured; leave it out for the CPU")
    return torch.cuda.get_device_name()


def result_name(name: str, device: str, pretrained: bool) -> str:
    """The name of a benchmark's results.

    >>> result_name("loop", "cpu", True), result_name("loop", "cuda", False)
    ('loop-pretrained', 'loop-cuda')
    """
    return name + "-pretrained" * pretrained + "-cuda" * (device == "cuda")


def write(
    name: str,
    checks: Sequence[Check],
    settings: Mapping[str, object],
    *,
    quick: bool,
    page: str | None = None,
    measures: Mapping[str, object] | None = None,
) -> Path:
    """Print the table, write JSON and Markdown, return the JSON file; without `quick` the overview, too. `page`: the
    Markdown, instead of the table of checks. `measures`: more of the JSON."""
    from core.run_directory import collect_versions

    stem = f"{name}.quick" if quick else name
    record = {
        "name": name,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count() or 1,
            "system": platform.system(),
        },
        "versions": collect_versions(),
        "settings": settings,
        "checks": [asdict(item) for item in checks],
        **({"measures": measures} if measures is not None else {}),
    }
    RESULTS.mkdir(exist_ok=True)
    text = page or table(name, checks, settings)
    print(text)
    (RESULTS / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    path = RESULTS / f"{stem}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if not quick:
        (RESULTS / "README.md").write_text(overview(), encoding="utf-8")
    return path


def overview() -> str:
    """A table of all checks with a goal, from all full results."""
    lines = [
        "# Measured",
        "",
        "The last measurement of every check that has a goal. A benchmark's name links to all its numbers. Every full "
        "run of",
        "`python -m bench.NAME` rewrites this file.",
        "",
        "| benchmark | what | measured | goal | met | date |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        if path.name.endswith(".quick.json"):
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        for item in record["checks"]:
            if item["goal"]:
                figure = f"{item['value']:.4g} {item['unit']}"
                met = "yes" if item["ok"] else "**no**"
                name = f"[{record['name']}]({record['name']}.md)"
                lines.append(f"| {name} | {item['name']} | {figure} | {item['goal']} | {met} | {record['date'][:10]} |")
    return "\n".join(lines) + "\n"


def grid(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [" | ".join(heading), " | ".join(["---"] * len(heading)), *(" | ".join(row) for row in rows)]
    return [*(f"| {line} |" for line in lines), ""]


def table(name: str, checks: Sequence[Check], settings: Mapping[str, object]) -> str:
    """The checks as a Markdown table."""
    head = [f"# {name}", "", ", ".join(f"{key} {value}" for key, value in settings.items()), ""]
    rows = ["| check | value | unit | baseline | goal | met |", "|---|---|---|---|---|---|"]
    for item in checks:
        base = "" if item.baseline is None else f"{item.baseline:.4g}"
        met = ("yes" if item.ok else "**no**") if item.goal else ""
        rows.append(f"| {item.name} | {item.value:.4g} | {item.unit} | {base} | {item.goal} | {met} |")
    return "\n".join([*head, *rows])
