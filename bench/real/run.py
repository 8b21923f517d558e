"""One run in this process: `python -m bench.real.run FILE.json`. The file says which run, and which table gets its
result. Invariant: a result is written only when its run is complete; a run that was killed goes on from its
checkpoint, with the numbers that it would have had."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.real.assay import measure
from bench.real.plan import ASSAYS, PARTS, TUNING_SEED, configuration
from bench.real.splits import write_splits
from bench.runs import Run, append_line
from bench.training import Schedule, opened, train
from core.config import Config, ReplayConfig
from core.machine import this_machine
from core.run_directory import read_jsonl
from core.startup import set_environment
from monitor.store_table import by_provenance, read_shards, states_table
from trainer.local import single_process

Row = dict[str, Any]


def machine_label(device: str) -> str:
    """The GPU, or processor, cores, and whether it computes in bfloat16."""
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    machine = this_machine()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{name}, {machine.cores} cores{', bf16' if machine.bfloat16 else ''}"


def schedule_of(run: Run, scale: float) -> Schedule:
    """A tuning run has half of the budget, and no held-out problem is evaluated."""
    part, tuning = PARTS[run.part], run.seed == TUNING_SEED
    budget = round(scale * (part.budget // 2 if tuning else part.budget))
    return Schedule(budget, 0 if tuning else 1, 0 if tuning else part.last_samples)


def perform(run: Run, config: Config, order: Mapping[str, Any]) -> Row:
    """The measures of one run."""
    with opened(run.name, config) as (parts, resolved, directory):
        if run.part in ASSAYS:
            return measure(parts, resolved, directory, order["scale"])
        before = first_evaluation(read_jsonl(Path(order["table"])), run, Path(config.model.path).name)
        found = train(parts, resolved, directory, schedule_of(run, order["scale"]), before)
        folder = directory.path / "store"
        folder.mkdir()
        parts.sources.save(folder)
        found["store"] = store_at_the_end(resolved.replay, folder / "replay")
        return found


def store_at_the_end(config: ReplayConfig, folder: Path) -> dict[str, dict[str, int]]:
    """`by_provenance` of a store that is saved in `folder`; of none nothing."""
    return by_provenance(states_table(read_shards(folder, folder, config))) if folder.is_dir() else {}


def first_evaluation(table: Sequence[Row], run: Run, model: str) -> list[Row]:
    """What another arm of the seed index measured before its training, in a list; empty if none did. It was the same
    model, with the same draws. One of another model, or without an evaluation set of the part, does not count."""
    known = [
        row["evaluations"][0]
        for row in table
        if row["run"]["seed"] == run.seed and row.get("evaluations") and row.get("model", model) == model
    ]
    return [one for one in known if one.get("sets") or not PARTS[run.part].humaneval][:1]


def main(path: Path) -> None:
    """Perform the order in `path` and append its result to its table."""
    set_environment()
    order = json.loads(path.read_text(encoding="utf-8"))
    run, work, table, load = Run(**order["run"]), Path(order["work"]), Path(order["table"]), os.getloadavg()[0]
    write_splits(run, work, table.parent, order["scale"])
    config, begun = single_process(configuration(run, work, order["changes"], order["device"])), time.monotonic()
    if PARTS[run.part].data == "mbpp":  # programs are judged in processes of their own also here
        config = config.model_copy(update={"task": config.task.model_copy(update={"judge_workers": 2})})
    found = perform(run, config, order)
    about = {
        **order["about"],
        "machine": machine_label(order["device"]),
        "load": [load, os.getloadavg()[0]],
        "threads": config.learner.threads,
        "model": Path(config.model.path).name,
        "rate": config.learner.policy_lr,
        "all_seconds": time.monotonic() - begun,
    }
    append_line(table, {"run": order["run"], **about, **found})
    shutil.rmtree(work / run.name, ignore_errors=True)  # checkpoints of 2 GB


if __name__ == "__main__":
    main(Path(sys.argv[1]))
