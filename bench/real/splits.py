"""Which rows of GSM8K and MBPP a seed index samples, trains on, warms up on and holds out (PROTOCOL.md, Splits), and
its warm start. Invariant: no row has two of these uses, but that P1 trains on the first rows of the assay."""

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.models import DATA, ROOT
from bench.real.plan import TUNING_SEED, Fields, Run, data_folder, data_of, held_out_file
from core.run_directory import write_atomically
from core.seeds import generator
from tasks.sources import Row, load_rows

ASSAY, MAIN, HINTS, WARM, HELD_OUT, MBPP = 300, 192, 48, 1000, 326, 200
LINES = 2  # of a canonical solution before its answer
USUAL_TEST = range(11, 511)  # task ids of MBPP


@dataclass(frozen=True, slots=True)
class Split:
    """The training rows of a seed index."""

    assay: list[Row]  # P0 samples them, P1 trains on the first of them
    held_out: list[Row]  # only for tuning: problems that no other use has
    warm: list[Row]


def lines_of(row: Row) -> int:
    """Lines of a canonical solution of GSM8K before `#### n`.

    >>> lines_of({"answer": "48/2 = 24\\n\\n48+24 = 72\\n#### 72"})
    2
    """
    return sum(bool(line.strip()) for line in row["answer"].split("\n")) - 1


def split_gsm8k(rows: Sequence[Row], seed: int) -> Split:
    """The uses of the training rows."""
    short = _shuffled([row for row in rows if lines_of(row) == LINES], seed, "short")
    assay, held_out = short[:ASSAY], short[ASSAY : ASSAY + HELD_OUT] if seed == TUNING_SEED else []
    used = {row["question"] for row in (*assay, *held_out)}
    return Split(assay, held_out, _shuffled([row for row in rows if row["question"] not in used], seed, "warm")[:WARM])


def _shuffled(rows: Sequence[Row], seed: int, label: str) -> list[Row]:
    return [rows[at] for at in generator(seed, "bench.real", label).permutation(len(rows)).tolist()]


def split_mbpp(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """The problems of the assay, and a few others, from those outside of the usual test split."""
    chosen = _shuffled([row for row in rows if row["task_id"] not in USUAL_TEST], seed, "mbpp")
    return chosen[:MBPP], chosen[MBPP : MBPP + 8]


def held_out_mbpp(rows: Sequence[Row]) -> list[Row]:
    """The usual test split in an order that is the same for all seed indices."""
    return _shuffled([row for row in rows if row["task_id"] in USUAL_TEST], 0, "mbpp held out")


def write_splits(run: Run, work: Path, scale: float = 1.0, won: Sequence[int] = ()) -> None:
    """Write the rows of a run's seed index to `work`/data. `scale`: share of the problems, for trials; `won`: successes
    of each problem of the assay; P2 trains on those without."""
    if not data_of(run):
        return
    if data_of(run) == "mbpp":
        known = load_rows(str(DATA / "mbpp" / "mbpp.jsonl"), "train")
        problems, others = split_mbpp(known, run.seed)
        files = {run.part: problems, f"{run.part}_held_out": others if run.part == "assay" else held_out_mbpp(known)}
    else:
        split = split_gsm8k(load_rows(str(DATA / "gsm8k" / "train.jsonl"), "train"), run.seed)
        test = [row for row in load_rows(str(DATA / "gsm8k" / "test.jsonl"), "train") if lines_of(row) == LINES]
        files = {"assay": split.assay, "main": split.assay[:MAIN], "warm": split.warm}
        files[f"{run.part}_held_out"] = split.held_out or test
        if won:
            tried = split.assay[: _kept(ASSAY, scale)]
            files["hints"] = [row for row, count in zip(tried, won, strict=True) if count == 0][:HINTS]
    folder = data_folder(run, work)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        kept = rows if name == "hints" else rows[: _kept(len(rows), scale)]
        write_atomically(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in kept))


def _kept(count: int, scale: float) -> int:
    return max(8, round(scale * count))


def warm_start(run: Run, work: Path, device: str) -> str:
    """The folder of the model that a run starts from, made if need be; empty if it starts from the recipe's."""
    if data_of(run) != "gsm8k":
        return ""
    name = f"warm-{run.seed}" + (f"-{device}" if device != "cpu" else "")
    return fine_tuned(run, work, name, "warm", {"cluster.device": device})


def fine_tuned(run: Run, work: Path, name: str, rows: str, more: Fields) -> str:
    """The folder of the model that `launch.py sft` makes of the rows of this file of the seed index, made if need be.
    `more`: other fields. Waits for a command that makes it."""
    place, data = work / name, data_folder(run, work)
    policy = place / "policy"
    with (work / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if policy.is_dir():  # it appears when it is complete
            return str(policy)
        shutil.rmtree(place, ignore_errors=True)
        command = [sys.executable, "launch.py", "sft", "--config", "configs/gsm8k_smollm2.yaml"]
        options = {
            "run.root": work,
            "run.name": place.name,
            "run.seed": run.seed,
            "model.dtype": "float32",
            "task.path": data / f"{rows}.jsonl",
            "task.problems": "auto",
            "task.eval_path": data / held_out_file(run),
            "task.eval_problems": 32,
            "cluster.address": "local",
            **more,
        }
        options_text = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        subprocess.run([*command, *options_text], cwd=ROOT, check=True)
        shutil.rmtree(place / "checkpoints")  # 2 GB
    return str(policy)
