"""Rows from files: every mistake is one line that names file, line and remedy."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config import Columns
from core.errors import DataError
from tasks.sources import _load_hub, load_rows, missing_column, recognised

ROWS = [{"question": "1+1?", "answer": "#### 2"}, {"question": "2+2?", "answer": "#### 4"}]


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_gzip(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def message(path: Path | str, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        load_rows(str(path), split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_jsonl_and_parquet_and_directories_give_the_same_rows(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "a.jsonl", ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "b.parquet")
    both = tmp_path / "both"
    both.mkdir()
    write_jsonl(both / "x.jsonl", ROWS[:1])
    pq.write_table(pa.Table.from_pylist(ROWS[1:]), both / "y.parquet")
    assert load_rows(str(lines), "train") == ROWS
    assert load_rows(str(tmp_path / "b.parquet"), "train") == ROWS
    assert load_rows(str(both), "train") == ROWS


def test_a_directory_gives_the_files_of_the_split(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", ROWS[:1])
    write_jsonl(tmp_path / "test-00000.jsonl", ROWS[1:])
    assert load_rows(str(tmp_path), "train") == ROWS[:1]
    assert load_rows(str(tmp_path), "test") == ROWS[1:]
    assert "no file of split 'validation'" in message(tmp_path, "validation")


@pytest.mark.parametrize(
    ("files", "split", "read"),
    [
        (["gsm8k_train", "gsm8k_test"], "train", [0]),
        (["gsm8k_train", "gsm8k_test"], "test", [1]),
        (["train", "train_val"], "train", [0]),
        (["train_0", "train_1", "test"], "train", [0, 1]),
        (["train-part1", "train-part2", "test"], "train", [0, 1]),
        (["train_prefs-00000-of-1", "train_sft-00000-of-1"], "train_prefs", [0]),
        (
            ["train_prefs-00000-of-1", "train_sft-00000-of-1"],
            "train",
            "of split 'train': train_prefs, train_sft; set task",
        ),
        (["gsm8k_train", "gsm8k_test"], "validation", "no file of split 'validation'"),
    ],
)
def test_files_of_other_splits_stay_out(tmp_path: Path, files: list[str], split: str, read: list[int] | str) -> None:
    for number, name in enumerate(files):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"question": str(number)}])
    if isinstance(read, str):
        assert read in message(tmp_path, split)
    else:
        assert load_rows(str(tmp_path), split) == [{"question": str(number)} for number in read]


def test_a_file_with_another_name_than_its_content_is_told_its_own(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_text('{"question": "1"}\n{"question": "2"}\n')
    assert message(tmp_path / "lines.json").endswith("its lines are objects: rename it to lines.jsonl")
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(b'{"question": "1"}\n'))
    assert message(tmp_path / "packed.jsonl").endswith("a gzip file; rename it to packed.jsonl.gz")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "table.jsonl")
    assert message(tmp_path / "table.jsonl").endswith("a Parquet file; rename it to table.parquet")


def test_short_floats_are_the_numbers_that_were_written(tmp_path: Path) -> None:
    pq.write_table(pa.table({"answer": pa.array([0.1, 2.3, None], pa.float32())}), tmp_path / "a.parquet")
    assert load_rows(str(tmp_path / "a.parquet"), "train") == [{"answer": 0.1}, {"answer": 2.3}, {"answer": None}]


def test_a_split_may_be_a_slice_of_files_too(tmp_path: Path) -> None:
    rows = [{"question": str(number)} for number in range(20)]
    file = write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "test.jsonl", rows[:1])
    for place in (file, tmp_path):
        assert load_rows(str(place), "train[3:5]") == rows[3:5]
        assert load_rows(str(place), "train[:10%]") == rows[:2]
        assert load_rows(str(place), "train[-4:]") == rows[-4:]
        assert "write it as train[100:2000] or train[:10%]" in message(place, "train[5]")
    assert "the data set is empty" in message(file, "train[30:]")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert message(tmp_path / "none.jsonl") == (
        f"{tmp_path}/none.jsonl: No such file or directory; give an existing .jsonl or .parquet file"
    )


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert "the data set is empty" in message(tmp_path / "empty.jsonl")
    empty = tmp_path / "folder"
    empty.mkdir()
    assert "no .jsonl or .parquet file" in message(empty)


def test_a_file_cut_in_a_line_is_told_from_a_bad_line(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "cut.jsonl", ROWS)
    file.write_bytes(file.read_bytes()[:-10])
    assert "line 2: the file ends in the middle of this line" in message(file)
    file.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    assert "line 2: not valid JSON" in message(file)
    file.write_text('{"a": 1}\n[1]\n')
    assert "line 2: expected an object with columns, found list" in message(file)


def test_a_file_cut_inside_a_character_is_an_error_too(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    file.write_bytes('{"a": "é"}\n{"a": "é'.encode()[:-1])
    assert "line 2: the file ends" in message(file)


def test_a_line_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    file = tmp_path / "deep.jsonl"
    file.write_text('{"a": 1}\n{"a": ' + "[" * 200_000 + "]" * 200_000 + "}\n")
    assert message(file).startswith(f"{file}: line 2: not valid JSON (maximum recursion depth exceeded")


def test_parquet_with_damaged_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.parquet"
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"question": text}), file)
    assert message(file).startswith(f"{file}: not a readable Parquet file (")


def test_a_clone_of_a_hub_repository_is_read(tmp_path: Path) -> None:
    """`data/train-*.parquet`, as the hub lays it out, or a folder per split; what git and the hub's client keep is no
    data."""
    clone = tmp_path / "clone"
    (clone / "data").mkdir(parents=True)
    (clone / "README.md").write_text("# Data")
    (clone / ".cache").mkdir()
    write_jsonl(clone / ".cache" / "train.jsonl", ROWS)
    for i, row in enumerate(ROWS):
        pq.write_table(pa.Table.from_pylist([row]), clone / "data" / f"train-{i:05d}-of-00002.parquet")
    write_jsonl(clone / "data" / "test-00000-of-00001.jsonl", ROWS[1:])
    assert load_rows(str(clone), "train") == ROWS
    assert load_rows(str(clone), "test") == ROWS[1:]
    for split, rows in (("train", ROWS[:1]), ("test", ROWS[1:])):
        (tmp_path / "folders" / split).mkdir(parents=True)
        write_jsonl(tmp_path / "folders" / split / "0.jsonl", rows)
    assert load_rows(str(tmp_path / "folders"), "test") == ROWS[1:]


def test_subsets_in_folders_of_their_own_are_not_mixed(tmp_path: Path) -> None:
    for subset in ("main", "socratic"):
        (tmp_path / subset).mkdir()
        write_jsonl(tmp_path / subset / "train.jsonl", ROWS)
    assert message(tmp_path) == f"{tmp_path}: files of split 'train' in main, socratic; give one of these folders"


def test_the_hub_client_reads_splits_and_subsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own reading of a repository, from a folder instead of the network."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    home = tmp_path / "gsm"
    for number, subset in enumerate(("main", "socratic")):
        (home / subset).mkdir(parents=True)
        write_jsonl(home / subset / "train.jsonl", ROWS)
        write_jsonl(home / subset / "test.jsonl", ROWS[number : number + 1])
    names = "\n".join(f"- config_name: {name}\n  data_dir: {name}" for name in ("main", "socratic"))
    (home / "README.md").write_text(f"---\nconfigs:\n{names}\n---\n")
    assert _load_hub(f"{home}:main", "train") == ROWS
    assert _load_hub(f"{home}:socratic", "test") == ROWS[1:]
    for name, why in ((f"{home}:neither", "neither"), (f"{home}:main", "validation")):
        with pytest.raises(DataError, match=rf"'validation' .*{why}"):
            _load_hub(name, "validation")


def test_a_subset_of_the_hub_may_be_a_folder_and_a_split_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Anthropic/hh-rlhf: gzipped lines in folders that no configuration names."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for number, folder in enumerate(("harmless-base", "helpful-base")):
        (tmp_path / "hh" / folder).mkdir(parents=True)
        write_gzip(tmp_path / "hh" / folder / "train.jsonl.gz", ROWS[number:])
    assert _load_hub(f"{tmp_path / 'hh'}:harmless-base", "train[:1]") == ROWS[:1]
    assert _load_hub(f"{tmp_path / 'hh'}:helpful-base", "train") == ROWS[1:]


def test_what_save_to_disk_wrote_is_read(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    mixed = [{"messages": [{"content": 1}, {"content": "x"}]}]  # a column of JSON, which has to be decoded
    Dataset.from_list(mixed, on_mixed_types="use_json").save_to_disk(tmp_path / "mixed")
    assert load_rows(str(tmp_path / "mixed"), "train") == mixed
    one, whole, both = Dataset.from_list(ROWS[:1]), Dataset.from_list(ROWS), tmp_path / "both"
    whole.save_to_disk(tmp_path / "one")
    DatasetDict(train=whole, test=one).save_to_disk(both)
    assert load_rows(str(tmp_path / "one"), "train") == load_rows(str(both), "train") == ROWS
    assert load_rows(str(both), "test") == load_rows(str(both), "train[:1]") == ROWS[:1]
    assert message(both, "dev") == f"{both}: no split 'dev' among test, train; set task.split or task.eval_split"
    for file in (both / "train").glob("*.arrow"):
        file.write_bytes(b"damaged")
    assert f"{both}/train: cannot be read as what save_to_disk writes" in message(both)


def test_gzipped_lines_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    file = write_gzip(tmp_path / "train.jsonl.gz", ROWS)
    assert load_rows(str(file), "train") == load_rows(str(tmp_path), "train") == ROWS
    file.write_bytes(file.read_bytes()[:-12])
    assert "not a readable gzip file (" in message(file)
    file.write_bytes(b"{}")
    assert "not a readable gzip file (" in message(file)
    assert "No such file" in message(tmp_path / "none.jsonl.gz")


def test_damaged_parquet_and_unknown_types_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing of the kind")
    assert "not a readable Parquet file" in message(tmp_path / "bad.parquet")
    (tmp_path / "rows.csv").write_text("a,b\n")
    assert "cannot read .csv; use .jsonl, .jsonl.gz or .parquet" in message(tmp_path / "rows.csv")


@pytest.mark.parametrize("name", ["rows.jsonl", "my rows.csv", "rows.json", "array.jsonl", "rows.jsonl.gz"])
def test_another_format_is_refused_with_a_command_that_converts_it(name: str, tmp_path: Path) -> None:
    file, table = tmp_path / name, 'question,answer\n"1, and 1?",#### 2\n2+2?,#### 4\n'
    rows = [{"question": "1, and 1?", "answer": "#### 2"}, ROWS[1]]
    data = (json.dumps(rows, indent=1) if name in ("rows.json", "array.jsonl") else table).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    told = message(file)
    command = told.partition("convert it: ")[2].replace("python -c", f"{sys.executable} -c", 1)
    subprocess.run(command, shell=True, check=True)
    assert load_rows(str(file.with_name(f"{file.stem}-lines.jsonl")), "train") == rows


def test_utf_16_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"a": 1, "b": 2}\n' * 3, encoding="utf-16")
    with pytest.raises(DataError, match=r"d\.jsonl: UTF-16"):
        list(load_rows(str(tmp_path / "d.jsonl"), "train"))


def test_a_broken_first_line_is_no_csv(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('"question", "answer"\n{"a": 1}\n')
    assert "line 1: not valid JSON" in message(tmp_path / "rows.jsonl")


VERL = {"data_source": "x", "prompt": [{"role": "user", "content": "1+1?"}]}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([{"reward_model": None}, {"reward_model": {"ground_truth": "1"}}], "reward_model.ground_truth"),
        (
            [{"reward_model": {"ground_truth": None}}, {"reward_model": {"ground_truth": "1"}}],
            "reward_model.ground_truth",
        ),
        ([{"reward_model": None}] * 9 + [{"reward_model": {"ground_truth": "1"}}], "reward_model.ground_truth"),
        ([{"ground_truth": None}, {"ground_truth": "1"}], "ground_truth"),
        ([{"solution": None}, {"solution": "1"}], "solution"),
        ([{"answer": None, "solution": None}, {"answer": None, "solution": "1"}], "solution"),
        ([{"answer": None, "solution": "2"}, {"answer": "1", "solution": None}], "answer"),
        ([{"answer": 0, "solution": "2"}], "answer"),
        ([{"reward_model": None}], "answer"),
    ],
)
def test_the_gold_answer_is_found_though_the_first_rows_have_none(
    tmp_path: Path, rows: list[dict[str, object]], column: str, ending: str
) -> None:
    file = tmp_path / f"rows.{ending}"
    whole = [VERL | row for row in rows]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(whole), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in whole))
    assert recognised(Columns(), load_rows(str(file), "train")).answer == column


def test_half_a_character_is_named_with_its_row(tmp_path: Path) -> None:
    r"""`\ud83d\ude00` are the two halves of one character, `\ud800` is half of none."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": ["\\ud83d\\ude00 \\u00e9"]}\n{"a": {"b": "\\ud800"}}\n')
    assert message(file) == (
        f"{file}: line 2: has half a character (a lone surrogate such as \\ud800), which is no text; fix or delete the "
        "row"
    )


def test_a_name_that_is_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "neither a local file or directory nor a Hugging Face data set" in message("nobody/nothing-here")


def test_a_missing_column_names_the_nearest() -> None:
    asked = [("task.columns.answer", "answer"), ("task.columns.prompt", "question")]
    assert missing_column(ROWS[0], asked, "f.jsonl: row 1") == ""
    found = missing_column({"answer": "3"}, asked, "f.jsonl: row 3")
    assert found.startswith("f.jsonl: row 3 has no column 'question' (task.columns.prompt); its columns are answer;")
    assert "the nearest is 'question'" in missing_column(ROWS[0], [("task.columns.prompt", "questions")], "f.jsonl")
