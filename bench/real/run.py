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

import xxhash

from bench.learning.measures import plain
from bench.real.assay import measure
from bench.real.hints import solved, successes, supervised
from bench.real.plan import PARTS, Run, configuration, data_of
from bench.real.splits import warm_start, write_splits
from bench.real.training import opened, train
from bench.runs import append_line
from core.config import Config, ReplayConfig
from core.errors import ConfigError
from core.machine import this_machine
from core.run_directory import read_jsonl
from core.startup import set_environment
from monitor.store_table import by_provenance, read_shards, states_table
from replay.store import ReplayStore
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


def perform(run: Run, config: Config, order: Mapping[str, Any]) -> Row:
    """The measures of one run that has rollouts."""
    with opened(run, config) as (parts, resolved, directory):
        if run.part == "assay":
            return measure(parts, resolved, directory, order["scale"])
        before = first_evaluation(read_jsonl(Path(order["table"])), run)
        found = train(parts, resolved, directory, PARTS[run.part], order["budget"], before)
        found["store"] = store_at_the_end(parts.replay, resolved.replay, directory.path / "store")
        if run.part == "hints":
            found["solved"] = solved(parts, resolved)
        return found


def store_at_the_end(store: ReplayStore, config: ReplayConfig, folder: Path) -> dict[str, dict[str, int]]:
    """`by_provenance` of a store that is saved in `folder` first."""
    store.save(folder)
    return by_provenance(states_table(read_shards(folder, folder, config)))


def first_evaluation(table: Sequence[Row], run: Run) -> list[Row]:
    """What another arm of the seed index measured before its training, in a list; empty if none did. It was the same
    model, with the same draws."""
    return [row["evaluations"][0] for row in table if row["run"]["seed"] == run.seed and row["evaluations"]][:1]


def main(path: Path) -> None:
    """Perform the order in `path` and append its result to its table."""
    set_environment()
    order = json.loads(path.read_text(encoding="utf-8"))
    run, work, begun = Run(**order["run"]), Path(order["work"]), time.monotonic()
    won = list[int]()
    if run.part == "hints":
        won = successes(Path(order["table"]).parent, run.seed)
    write_splits(run, work, order["scale"], won)
    model = warm_start(run, work, order["device"])
    digest = _digest(Path(model) / "model.safetensors") if model else ""
    check_model(read_jsonl(Path(order["table"])), run, digest)
    started, starts = time.monotonic(), work / "logs" / f"{run.name}.starts.jsonl"
    label = {"machine": machine_label(order["device"]), "commit": order["about"]["commit"], "load": os.getloadavg()[0]}
    append_line(starts, label)
    config = single_process(configuration(run, work, model, order["changes"], order["device"]))
    if data_of(run) == "mbpp":  # programs are judged in processes of their own also here
        config = config.model_copy(update={"task": config.task.model_copy(update={"judge_workers": 2})})
    found = supervised(run, work, model, order) if run.arm == "loss" else perform(run, config, order)
    about = {
        **order["about"],
        "machine": label["machine"],
        "load": [label["load"], os.getloadavg()[0]],
        "starts": read_jsonl(starts),
        "model": digest,
        "rate": config.learner.policy_lr,
        "warm_seconds": started - begun,
        "all_seconds": time.monotonic() - started,
    }
    append_line(Path(order["table"]), plain({"run": order["run"], **about, **found}))
    starts.unlink()
    shutil.rmtree(work / run.name, ignore_errors=True)  # checkpoints of 2 GB


def check_model(table: Sequence[Row], run: Run, digest: str) -> None:
    """Raises ConfigError if another arm of the seed index began from another file."""
    for row in table:
        if row["run"]["seed"] == run.seed and data_of(Run(**row["run"])) == data_of(run) and row["model"] != digest:
            raise ConfigError(
                f"{run.name}: its warm start has the digest {digest}, that of {Run(**row['run']).name} has "
                f"{row['model']}; all arms of a seed index begin from one file, on one kind of machine"
            )


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        state = xxhash.xxh3_64()
        while piece := opened.read(1 << 24):
            state.update(piece)
    return state.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
