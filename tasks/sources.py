"""Reads the rows of a data set: a JSONL or Parquet file, a directory of these, or a Hugging Face data set.

Invariant: every failure is one line that names the file (and line) and the remedy. A row that cannot be read is a
`BadRow`; a file that cannot be read is a `DataError`. Nothing is skipped silently.
"""

import codecs
import difflib
import errno
import gzip
import io
import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.config import Columns
from core.errors import DataError, first_line
from core.files import read_whole
from core.machine import this_machine

Row = Mapping[str, Any]
ANSWERS = ("reward_model.ground_truth", "ground_truth", "solution")
"""Where verl and TRL have the gold answer."""
QUESTIONS = ("question", "problem")
"""Where GSM8K and MATH have the question."""
_SPLIT = re.compile(r"(?:^|[-_.])(?:train|test|val|dev)")  # in the name of a file
_SLICE = re.compile(r"[^\[]*\[(-?[0-9]+%?)?:(-?[0-9]+%?)?\]")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used."""

    where: str  # 'train.jsonl: row 3'
    message: str  # begins with `where`, ends with the remedy

    @property
    def reason(self) -> str:
        """The message without the place and the usual remedy."""
        return self.message.removeprefix(self.where).lstrip(": ").removesuffix("; fix or delete the row")


class BadRowsError(DataError):
    """Rows that cannot be used, and are refused or without others. Its line names the first one."""

    def __init__(self, rows: Sequence[BadRow], *, all_rows: bool = False) -> None:
        self.rows = rows
        count = f"{len(rows)} bad row{'s' * (len(rows) > 1)}"
        if all_rows:
            super().__init__(f"no usable row is left ({count}); {rows[0].message}")
        else:
            hint = "`launch.py check` lists them, task.bad_rows skip leaves them out"
            super().__init__(f"{rows[0].message} ({count}: {hint})")


def list_bad_rows(rows: Sequence[BadRow]) -> str:
    """How many rows are bad for which reason, the most frequent first, with the first row of each; reasons that differ
    only in quoted text or numbers are one. Empty without rows."""
    groups: dict[str, list[BadRow]] = {}
    for row in rows:
        groups.setdefault(re.sub(r"'[^']*'|[0-9]+", "*", row.reason), []).append(row)
    most = sorted(groups.values(), key=len, reverse=True)
    lines = [f"{len(group):>7}  {group[0].reason}; the first is {group[0].where}" for group in most]
    return "\n".join([f"bad rows: {len(rows)}", *lines]) if rows else ""


def load_rows(path: str, split: str) -> list[Row]:
    """All rows of `path`, as `read_rows`. Raises DataError also for a row that cannot be read."""
    rows = read_rows(path, split)
    bad = next((row for row in rows if isinstance(row, BadRow)), None)
    if bad is not None:
        raise DataError(bad.message)
    return [row for row in rows if not isinstance(row, BadRow)]


def read_rows(path: str, split: str) -> list[Row | BadRow]:
    """All rows of `path`: a .jsonl(.gz) or .parquet file, a directory of them, or else a Hugging Face data set name. If
    a directory has files named after the split (`train.jsonl`, `train-00000.parquet`), only these are read. If it has
    no data files, its subdirectories are searched, as in a clone of a hub repository. A directory may also be what
    `save_to_disk` of `datasets` wrote. The split may be a slice. Raises DataError."""
    place, name = Path(path).expanduser(), split.partition("[")[0]
    rows: Sequence[Row | BadRow]
    if (saved := _saved(place, name)) is not None:
        rows = _sliced(_load_saved(saved), split)
    elif place.is_dir():
        files = _split_files(place, name)
        rows = _sliced([row for file in files for row in _load_file(file)], split)
    elif place.exists() or _format(place) in READERS:
        rows = _sliced(_load_file(place), split)
    else:
        rows = _load_hub(path, split)
    if not rows:
        raise DataError(f"{path}: the data set is empty; give one with at least one row")
    return list(rows)


def _saved(folder: Path, split: str) -> Path | None:
    """The folder of the split, if `save_to_disk` of a `Dataset` or a `DatasetDict` wrote this one; else None. A single
    `Dataset` is read whatever the split is called, as a single file is. Raises DataError."""
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(file.parent.name for file in folder.glob("*/state.json"))
        if split not in splits:
            raise DataError(
                f"{folder}: no split {split!r} among {', '.join(splits) or 'none'}; set task.split or task.eval_split"
            )
        return folder / split
    return folder if all((folder / name).is_file() for name in ("state.json", "dataset_info.json")) else None


def _load_saved(folder: Path) -> list[Row]:
    import datasets

    try:
        return list(datasets.load_from_disk(str(folder)).with_format(None))
    except Exception as error:  # many unrelated types: of JSON, of Arrow, of a library that decodes a column
        raise DataError(
            f"{folder}: cannot be read as what save_to_disk writes ({first_line(error)}); save it again, or as Parquet"
        ) from None


def _sliced(rows: Sequence[Row | BadRow], split: str) -> Sequence[Row | BadRow]:
    """The rows of a split such as `train[100:2000]` or `train[:10%]`, as `datasets` has them. Raises DataError."""
    if "[" not in split:
        return rows
    if (found := _SLICE.fullmatch(split)) is None:
        raise DataError(f"split {split!r}: cannot be read as a slice; write it as train[100:2000] or train[:10%]")
    ends = [
        None if not end else round(len(rows) * int(end[:-1]) / 100) if end.endswith("%") else int(end)
        for end in found.groups()
    ]
    return rows[slice(*ends)]


def missing_column(row: Row, wanted: Iterable[tuple[str, str]], where: str) -> str:
    """What is wrong if the row lacks one of the (config field, column) pairs; else empty. Names the nearest."""
    for field, column in wanted:
        if column not in row:
            nearest = difflib.get_close_matches(column, list(row), n=1, cutoff=0.0)
            return (
                f"{where} has no column {column!r} ({field}); its columns are {', '.join(row) or 'none'}; the nearest "
                f"is {nearest[0] if nearest else 'none'!r}"
            )
    return ""


def recognised(columns: Columns, rows: Sequence[Row | BadRow]) -> Columns:
    """The columns, with the answer's where verl and TRL have it if no row has anything in one called `answer`, and the
    question's where GSM8K and MATH have it."""
    for field, others in (("prompt", QUESTIONS), ("answer", ANSWERS)):
        usual = getattr(Columns(), field)
        if getattr(columns, field) != usual:
            continue
        for name in (usual, *others):
            candidate = columns.model_copy(update={field: name})
            if any(with_fields(row, candidate).get(name) is not None for row in rows if not isinstance(row, BadRow)):
                columns = candidate
                break
    return columns


def with_fields(row: Row, columns: Columns) -> Row:
    """The row with a column for each name with dots that is a field inside a column.

    >>> with_fields({"a": {"b": 1}}, Columns(prompt="a.b", answer="a.c"))
    {'a': {'b': 1}, 'a.b': 1}
    """
    fields: dict[str, Any] = {}
    for name in columns.model_dump().values():
        if name and "." in name and name not in row:
            value: Any = row
            for key in name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            fields |= {} if value is None else {name: value}
    return {**row, **fields} if fields else row


def _format(file: Path) -> str:
    """The suffix that names the format: that before .gz, if there is one."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _split_files(folder: Path, split: str) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if _format(file) in READERS)
    if not files:  # a clone of a hub repository (`data/train-00000.parquet`)
        below = (file.relative_to(folder) for file in folder.rglob("*") if _format(file) in READERS)
        files = sorted(folder / file for file in below if not any(part.startswith(".") for part in file.parts))
    if not files:
        raise DataError(f"{folder}: no .jsonl or .parquet file in this directory; give one that contains some")
    named = _named(files, split) or [file for file in files if file.parent != folder and file.parent.name == split]
    places = sorted({str(file.parent.relative_to(folder)) for file in named or files})
    if len(places) > 1:  # several folders are subsets, which are different data sets
        raise DataError(f"{folder}: files of split {split!r} in {', '.join(places)}; give one of these folders")
    if not named and len(files) > 1 and any(_SPLIT.search(file.name) for file in files):
        raise DataError(
            f"{folder}: no file of split {split!r} among {', '.join(file.name for file in files)}; set task.split or "
            "task.eval_split"
        )
    return named or files


def _named(files: Sequence[Path], split: str) -> list[Path]:
    """The files whose name is that of a split, perhaps with words before and numbers behind; else those that begin
    with it, if they are of one data set. Raises DataError if they are not (train_prefs, train_sft)."""
    stems = {file: file.name[: file.name.rindex(_format(file))] for file in files}
    own = re.compile(rf"(?:.*[-_.])?{re.escape(split)}(?:[-_. ]?[0-9].*)?")
    if found := [file for file in files if own.fullmatch(stems[file])]:
        return found
    found = [file for file in files if stems[file].startswith(split)]
    kinds = sorted({re.sub(r"[-_. ]?[0-9].*", "", stems[file]) for file in found})
    if len(kinds) > 1:
        raise DataError(
            f"{found[0].parent}: several data sets of split {split!r}: {', '.join(kinds)}; set task.split to one"
        )
    return found


def _load_file(file: Path) -> Sequence[Row | BadRow]:
    reader = READERS.get(_format(file))
    if reader is None:
        kind = file.suffix.removeprefix(".")
        how = f"; {_conversion(file, kind)}" if kind in _CONVERSIONS else ""
        if kind == "json" and _has_lines(file):
            how = f"; its lines are objects: rename it to {file.stem}.jsonl"
        raise DataError(
            f"{file}: cannot read {file.suffix or 'files without a suffix'}; use .jsonl, .jsonl.gz or .parquet{how}"
        )
    try:
        return reader(file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: not a readable gzip file ({first_line(error)}); restore it") from None
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}; give an existing .jsonl or .parquet file") from None


def _has_lines(file: Path) -> bool:
    """Whether a .json file has an object per line, as `Dataset.to_json` writes it."""
    try:
        with file.open("rb") as lines:
            return all(isinstance(json.loads(line), dict) for line in (lines.readline(), lines.readline()))
    except (OSError, ValueError, RecursionError):
        return False


def _read_jsonl(file: Path) -> list[Row | BadRow]:
    rows: list[Row | BadRow] = []
    data = _content(file)
    _check_lines(file, data)
    for line_number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{file}: line {line_number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
            whole = data.endswith(b"\n") or isinstance(error, RecursionError)
            cut = not whole and line_number == data.count(b"\n") + 1
            kind = "the file ends in the middle of this line" if cut else f"not valid JSON ({error})"
            rows.append(BadRow(where, f"{where}: {kind}; restore the file or delete the line"))
        else:
            why = f"{where}: expected an object with columns, found {type(row).__name__}"
            if isinstance(row, dict) and b"\\u" in line and _is_cut_character(row):
                why = (
                    f"{where}: has half a character (a lone surrogate such as \\ud800), which is no text; fix or "
                    "delete the row"
                )
                row = None
            rows.append(row if isinstance(row, dict) else BadRow(where, why))
    return rows


def _content(file: Path) -> bytes:
    """The bytes of a file, unpacked. A small gzip file may unpack to more than the machine has. Raises OSError."""
    most = int(this_machine().memory * 2**30 / 4)
    data = read_whole(file, most)
    if file.suffix != ".gz":
        return data
    with gzip.open(io.BytesIO(data)) as packed:
        data = packed.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"unpacks to more than {most / 2**30:.1f} GiB, a quarter of this machine's memory")
    return data


def _is_cut_character(row: Row) -> bool:
    """Whether a text in the row has no UTF-8: a tokenizer would refuse it without naming the row."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_CONVERSIONS = {"json": "json.load(sys.stdin)", "csv": "csv.DictReader(sys.stdin)"}  # format -> Python for its rows


def _conversion(file: Path, kind: str) -> str:
    """How to make lines of JSON of a file in another format."""
    code = (
        "import csv, json, sys; sys.stdin.reconfigure(encoding='utf-8-sig'); "
        f"[print(json.dumps(row)) for row in {_CONVERSIONS[kind]}]"
    )
    old, new = (shlex.quote(str(path)) for path in (file, file.with_name(f"{file.stem}-lines.jsonl")))
    read = f"gunzip -c {old} |" if file.suffix == ".gz" else f"cat {old} |"
    return f'convert it: {read} python -c "{code}" > {new}'


def _check_lines(file: Path, data: bytes) -> None:
    """Raises DataError, with the way to convert it, for a JSON array or CSV where lines of JSON are expected."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{file}: UTF-16; save it as UTF-8")
    for mark, kind, suffix in ((b"\x1f\x8b", "gzip", ".jsonl.gz"), (b"PAR1", "Parquet", ".parquet")):
        if data.startswith(mark):
            raise DataError(f"{file}: a {kind} file; rename it to {file.stem}{suffix}")
    first, _, rest = data.lstrip().partition(b"\n")
    if first.startswith(b"["):
        with suppress(ValueError, RecursionError):
            if all(isinstance(row, dict) for row in json.loads(data)):
                raise DataError(f"{file}: a JSON array, not an object per line; {_conversion(file, 'json')}")
    elif b"," in first and rest.strip() and not first.startswith(b"{") and b"\n{" not in data:
        raise DataError(f"{file}: CSV, not JSON; {_conversion(file, 'csv')}")


def _read_parquet(file: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    with file.open("rb") as handle:
        try:
            table = pyarrow.parquet.read_table(handle)
            for at, field in enumerate(table.schema):
                if pyarrow.types.is_float32(field.type):  # by way of text: 0.1, not 0.10000000149
                    texts = table[at].cast(pyarrow.string())
                    table = table.set_column(at, field.name, texts.cast(pyarrow.float64()))
            rows: list[Row] = table.to_pylist()
        except (pyarrow.ArrowException, ValueError) as error:  # damaged text is a UnicodeDecodeError
            raise DataError(f"{file}: not a readable Parquet file ({first_line(error)}); restore it") from None
    return rows


def _load_hub(name: str, split: str) -> list[Row]:
    import datasets

    repository, _, subset = name.partition(":")
    try:
        try:
            return list(datasets.load_dataset(repository, subset or None, split=split))
        except ValueError:  # no such configuration: perhaps a folder, as in Anthropic/hh-rlhf:harmless-base
            with suppress(Exception):
                if subset:
                    return list(datasets.load_dataset(repository, data_dir=subset, split=split))
            raise
    except Exception as error:  # the hub client raises many unrelated types; all mean that it cannot be loaded
        raise DataError(
            f"{name}: neither a local file or directory nor a Hugging Face data set with split {split!r} that can be "
            f"loaded ({first_line(error)}); give an existing path, or 'owner/name' or 'owner/name:subset'. Without a "
            f"connection: `hf download {repository} --repo-type dataset --local-dir DIR` elsewhere, and DIR as the path"
        ) from None


READERS: Mapping[str, Callable[[Path], Sequence[Row | BadRow]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
