"""Reads the rows of a data set: a JSONL or Parquet file, a directory of these, or a Hugging Face data set.

Called by `tasks/problems.py`. Invariant: every failure is a `DataError` of one line that names the file (and line) and the
remedy; nothing is skipped silently.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import DataError, first_line

Row = Mapping[str, Any]


def load_rows(path: str, split: str) -> list[Row]:
    """All rows of `path`: a .jsonl or .parquet file, a directory of them, or else a Hugging Face data set name.

    If a directory has files named after the split (`train.jsonl`, `train-00000.parquet`), only these are read. If it has no data
    files, its subdirectories are searched, as in a clone of a hub repository. Raises DataError.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        rows = [row for file in _split_files(place, split) for row in _load_file(file)]
    elif place.is_file() or place.suffix in READERS:
        rows = _load_file(place)
    else:
        rows = _load_hub(path, split)
    if not rows:
        raise DataError(f"{path}: the data set is empty; give one with at least one row")
    return rows


def require_columns(rows: Sequence[Row], wanted: Iterable[tuple[str, str]], source: str) -> None:
    """Check that every row has the columns. `wanted`: (config field, column). Raises DataError that names the nearest one."""
    for field, column in wanted:
        missing = next((number for number, row in enumerate(rows, 1) if column not in row), None)
        if missing is None:
            continue
        present = list(rows[missing - 1])
        nearest = difflib.get_close_matches(column, present, n=1, cutoff=0.0)
        raise DataError(
            f"{source}: row {missing} has no column {column!r} ({field}); its columns are "
            f"{', '.join(present) or 'none'}; the nearest is {nearest[0] if nearest else 'none'!r}"
        )


def _split_files(folder: Path, split: str) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.suffix in READERS)
    if not files:  # a clone of a hub repository (`data/train-00000.parquet`)
        below = (file.relative_to(folder) for file in folder.rglob("*") if file.suffix in READERS)
        files = sorted(folder / file for file in below if not any(part.startswith(".") for part in file.parts))
    if not files:
        raise DataError(f"{folder}: no .jsonl or .parquet file in this directory; give one that contains some")
    named = [
        file for file in files if file.name.startswith(split) or (file.parent != folder and file.parent.name == split)
    ]
    places = sorted({str(file.parent.relative_to(folder)) for file in named or files})
    if len(places) > 1:  # several folders are subsets, which are different data sets
        raise DataError(f"{folder}: files of split {split!r} in {', '.join(places)}; give one of these folders")
    if not named and len(files) > 1 and any(file.name.startswith(("train", "test", "valid")) for file in files):
        raise DataError(
            f"{folder}: no file of split {split!r} among {', '.join(file.name for file in files)}; set task.split or task.eval_split"
        )
    return named or files


def _load_file(file: Path) -> list[Row]:
    reader = READERS.get(file.suffix)
    if reader is None:
        raise DataError(f"{file}: cannot read {file.suffix or 'files without a suffix'}; use .jsonl or .parquet")
    try:
        return reader(file)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}; give an existing .jsonl or .parquet file") from None


def _read_jsonl(file: Path) -> list[Row]:
    rows: list[Row] = []
    data = file.read_bytes()
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except RecursionError:
            raise DataError(f"{file}: line {number}: nested too deeply; fix or delete the line") from None
        except ValueError as error:  # a UnicodeDecodeError is one too
            cut = not data.endswith(b"\n") and number == data.count(b"\n") + 1
            kind = "the file ends in the middle of this line" if cut else f"not valid JSON ({error})"
            raise DataError(f"{file}: line {number}: {kind}; restore the file or delete the line") from None
        if not isinstance(row, dict):
            raise DataError(f"{file}: line {number}: expected an object with columns, found {type(row).__name__}")
        rows.append(row)
    return rows


def _read_parquet(file: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    with file.open("rb") as handle:
        try:
            rows: list[Row] = pyarrow.parquet.read_table(handle).to_pylist()
        except (pyarrow.ArrowException, ValueError) as error:  # damaged text is a UnicodeDecodeError
            raise DataError(f"{file}: not a readable Parquet file ({first_line(error)}); restore it") from None
    return rows


def _load_hub(name: str, split: str) -> list[Row]:
    import datasets

    repository, _, subset = name.partition(":")
    try:
        return list(datasets.load_dataset(repository, subset or None, split=split))
    except Exception as error:  # the hub client raises many unrelated types; all mean that it cannot be loaded
        raise DataError(
            f"{name}: neither a local file or directory nor a Hugging Face data set with split {split!r} that can be "
            f"loaded ({first_line(error)}); give an existing path, or 'owner/name' or 'owner/name:subset'"
        ) from None


READERS: Mapping[str, Callable[[Path], list[Row]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
