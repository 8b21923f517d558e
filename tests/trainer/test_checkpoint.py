"""The file protocol of checkpoints: `latest` always names a complete one. (Contents: tests/test_end_to_end.py.)"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from core.errors import CheckpointError
from core.run_directory import RunDirectory, write_atomically
from trainer import checkpoint
from trainer.checkpoint import RunProgress
from trainer.run import Run


@dataclass
class Writer:
    """Stands for a part that writes `names` into the checkpoint and says so; `fail` raises as a full disk would."""

    names: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    fail: bool = False

    def save(self, path: Path | str) -> tuple[str, ...]:
        if self.fail:
            raise OSError(28, "No space left on device")
        Path(path).mkdir(exist_ok=True)
        for name in self.names:
            (Path(path) / name).write_text("x")
        return self.said

    def export(self, path: Path) -> None:
        path.mkdir()
        (path / "config.json").write_text("{}")


@dataclass
class Files:
    """The parts that a checkpoint touches."""

    learner: Writer
    sources: Writer


def progress(iteration: int) -> RunProgress:
    return RunProgress(iteration, 10 * iteration)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "run", "test")
    run.config.write_text("")
    return run


@pytest.fixture
def files() -> Files:
    return Files(Writer(("learner.json", "policy", "value"), said=("policy", "value")), Writer(("store.json",)))


def save(run: RunDirectory, files: Files, iteration: int, keep: int = 2, success: float | None = None) -> Path:
    return checkpoint.save(run, cast(Run, files), progress(iteration), keep, success)


def test_the_newest_are_kept_and_latest_names_the_last(run: RunDirectory, files: Files) -> None:
    for iteration in (2, 4, 6):
        save(run, files, iteration)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000004", "000006", "latest"]
    assert checkpoint.latest(run).name == "000006"
    assert checkpoint.progress_of(checkpoint.latest(run)) == progress(6)


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(run: RunDirectory, files: Files) -> None:
    save(run, files, 2)
    files.sources.fail = True
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(run, files, 4)
    assert checkpoint.latest(run).name == "000002"
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "000002",
        "latest",
    ]  # nothing that fills it further


@pytest.mark.parametrize("name", ["mkdir", "best", "latest"])
def test_a_disk_that_is_full_before_or_after_the_parts_is_one_line(
    run: RunDirectory, files: Files, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save(run, files, 2)
    mkdir = Path.mkdir

    def full_mkdir(self: Path, *args: Any, **options: Any) -> None:
        if self.name == ".000004.tmp":
            raise OSError(28, "No space left on device")
        mkdir(self, *args, **options)

    def full_write(path: Path, text: str) -> None:
        if path.name == name:
            raise OSError(28, "No space left on device")
        write_atomically(path, text)

    if name == "mkdir":
        monkeypatch.setattr(Path, "mkdir", full_mkdir)
    monkeypatch.setattr(checkpoint, "write_atomically", full_write)
    with pytest.raises(CheckpointError, match=r"000004: .*No space left on device"):
        save(run, files, 4, success=0.5)
    assert checkpoint.latest(run).name == "000002"
    assert not list(run.checkpoints.glob(".*.tmp"))


def test_what_a_kill_leaves_behind_is_overwritten(run: RunDirectory, files: Files) -> None:
    (run.checkpoints / ".000002.tmp" / "learner").mkdir(parents=True)
    save(run, files, 2)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000002", "latest"]


def test_a_run_without_checkpoint(run: RunDirectory) -> None:
    with pytest.raises(CheckpointError, match="checkpoint"):
        checkpoint.latest(run)


def test_an_incomplete_checkpoint_is_refused(run: RunDirectory, files: Files) -> None:
    (save(run, files, 2) / "progress.json").unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        checkpoint.latest(run)


def test_a_part_that_wrote_to_another_disk(run: RunDirectory, files: Files) -> None:
    save(run, files, 2)
    files.learner.names = ("learner.json", "policy")
    with pytest.raises(CheckpointError, match=r"learner/value missing .*run\.root"):
        save(run, files, 4)
    assert checkpoint.latest(run).name == "000002"
    assert checkpoint.saved(run) == 2


def test_one_flipped_bit_in_any_file_is_found_and_named(run: RunDirectory, files: Files) -> None:
    save(run, files, 1)
    path = save(run, files, 2)
    checkpoint.check_digests(path)
    names = sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())
    assert {"learner/policy", "policy/config.json", "sources/store.json", "progress.json", "digests.json"} <= set(names)
    for name in set(names) - {"digests.json"}:
        whole = (path / name).read_bytes()
        (path / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(CheckpointError) as caught:
            checkpoint.check_digests(path)
        assert str(caught.value) == (
            f"{path / name}: damaged, its content is not what was written; put the name of another checkpoint into "
            f"{run.checkpoints / 'latest'} (undamaged: 000001)"
        )
        (path / name).write_bytes(whole)
    (path / "learner" / "policy").unlink()
    with pytest.raises(CheckpointError, match=r"learner/policy: No such file or directory"):
        checkpoint.check_digests(path)
    (run.checkpoints / "000001" / "learner" / "policy").unlink()
    with pytest.raises(CheckpointError, match="start a new run"):
        checkpoint.check_digests(path)
    (path / "digests.json").unlink()
    checkpoint.check_digests(path)  # a checkpoint of an earlier version


@pytest.mark.parametrize("text", ["", '{"iteration": 2, "cur', "[]", "null"])
def test_a_damaged_progress_is_one_line(run: RunDirectory, files: Files, text: str) -> None:
    path = save(run, files, 2)
    (path / "progress.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"progress\.json: ") as caught:
        checkpoint.progress_of(path)
    assert "\n" not in str(caught.value)


def test_damaged_pointers_are_one_line_or_nothing(run: RunDirectory, files: Files) -> None:
    save(run, files, 2, success=0.5)
    (run.checkpoints / "best").write_text("")
    assert checkpoint.best(run) is None
    (run.checkpoints / "latest").write_text("")
    with pytest.raises(CheckpointError, match=r"latest: "):
        checkpoint.latest(run)


WRITES = {
    "safetensors": "import numpy, safetensors.numpy as s; s.save_file({'a': numpy.zeros(10**6)}, folder / 'x')",
    "torch": "import torch; torch.save(torch.zeros(10**6), folder / 'x')",
    "a line": "file = (folder / 'x').open('w'); file.write('x' * 10**6); file.flush()",
    "a whole file": "from core.run_directory import write_atomically; write_atomically(folder / 'x', 'x' * 10**6)",
    "parquet": "import pyarrow as pa, pyarrow.parquet as pq; "
    "pq.write_table(pa.table({'a': range(10**5)}), folder / 'x')",
    "tensorboard": (
        "from torch.utils.tensorboard.writer import SummaryWriter\nw = SummaryWriter(str(folder))\n"
        "for i in range(20000): w.add_scalar('a' * 100, i, i)\nw.flush()"
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_whoever_meets_a_full_disk_it_is_one_line_that_says_what_is_safe(
    run: RunDirectory, files: Files, name: str
) -> None:
    """A bound on the size of files, in a process of its own, stands for the disk: libraries raise the same errors."""
    save(run, files, 2)
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom core.errors import FullDiskError\n"
        "from core.run_directory import RunDirectory\nfrom trainer.checkpoint import one_line_if_full\n"
        "folder = Path(sys.argv[1])\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "try:\n    with one_line_if_full(RunDirectory(folder)):\n        exec(sys.argv[2])\n"
        "except FullDiskError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.path, WRITES[name]], capture_output=True, text=True)
    assert re.fullmatch(
        rf"{run.path}: the disk is full \(.*(File too large|inline_container).*\); the checkpoint of iteration 2 is "
        rf"safe; free space, then "
        rf"continue with `python launch\.py train --resume {run.path}`\n",
        done.stdout,
    ), done.stdout + done.stderr


def test_other_errors_are_no_full_disk(run: RunDirectory) -> None:
    with pytest.raises(KeyError), checkpoint.one_line_if_full(run):
        raise KeyError("a")


def test_what_was_just_written_is_never_pruned(run: RunDirectory, files: Files) -> None:
    for iteration in (2, 4, 6):
        save(run, files, iteration, keep=3)
    write_atomically(run.checkpoints / "latest", "000002")  # the user goes back; iterations 4 and 6 are repeated
    save(run, files, 3, keep=2)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000002", "000003", "latest"]
    save(run, files, 5, keep=1)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000005", "latest"]


def test_nothing_is_saved_before_the_first(run: RunDirectory) -> None:
    assert checkpoint.saved(run) is None


def test_the_best_is_kept_as_well_as_the_newest(run: RunDirectory, files: Files) -> None:
    for iteration, success in ((2, 0.25), (4, 0.5), (6, None), (8, 0.5), (10, 0.125)):
        save(run, files, iteration, keep=1, success=success)
    assert checkpoint.best(run) == checkpoint.Best(4, 0.5)  # 8 is no better
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000004", "000010", "best", "latest"]
    assert [checkpoint.is_best(run, value) for value in (0.5, 0.51)] == [False, True]
    save(run, files, 12, keep=1, success=0.75)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000012", "best", "latest"]


def test_the_latest_is_found_after_a_kill_between_the_two_renames_of_its_replacement(
    run: RunDirectory, files: Files
) -> None:
    path = save(run, files, 4)
    path.rename(run.checkpoints / ".000004.old")
    assert checkpoint.latest(run) == path
    assert (path / "progress.json").is_file()


def test_a_best_checkpoint_that_is_written_again_is_best_by_its_new_success(run: RunDirectory, files: Files) -> None:
    save(run, files, 2, success=0.5)
    save(run, files, 4, success=0.75)
    write_atomically(run.checkpoints / "latest", "000002")  # the user goes back; iteration 4 is repeated
    files.sources.fail = True
    with pytest.raises(CheckpointError):
        save(run, files, 4, success=0.25)
    assert checkpoint.best(run) == checkpoint.Best(4, 0.75)  # it is still there
    (run.checkpoints / "000004").rename(run.checkpoints / ".000004.old")  # killed between two renames
    with pytest.raises(CheckpointError):
        save(run, files, 4, success=0.25)
    assert checkpoint.best(run) == checkpoint.Best(4, 0.75)
    files.sources.fail = False
    save(run, files, 4, success=0.25)
    assert checkpoint.best(run) == checkpoint.Best(4, 0.25)
    save(run, files, 4)
    assert checkpoint.best(run) is None  # nobody knows how good the new one is
    save(run, files, 4, success=0.25)
    (run.checkpoints / "best").write_text("000099 0.9\n")
    assert checkpoint.best(run) is None  # someone has deleted it


def test_contents_are_on_disk_before_names(run: RunDirectory, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync of every file and folder of the checkpoint, then its rename, then fsync of the folder, then `latest`."""
    events: list[tuple[str, str]] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def noted_fsync(handle: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def noted_rename(self: Path, target: Path) -> Path:
        events.append(("rename", target.name))
        return rename(self, target)

    def noted_replace(self: Path, target: Path) -> Path:
        events.append(("rename", target.name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(Path, "replace", noted_replace)
    final = save(run, files, 2, success=0.5)
    moved = events.index(("rename", "000002"))
    before = {name for kind, name in events[:moved] if kind == "fsync"}
    assert before >= {path.name for path in final.rglob("*")} | {".000002.tmp"}
    after = events[moved + 1 :]
    assert after[0] == ("fsync", "checkpoints")
    names = [name for kind, name in after if kind == "rename"]
    assert names == ["best", "latest"]
    assert after[-1] == ("fsync", "checkpoints")


def test_an_old_checkpoint_that_cannot_be_deleted_is_no_failure_of_the_new_one(
    run: RunDirectory, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remove = shutil.rmtree

    def stuck(path: Path, ignore_errors: bool = False) -> None:
        if path.name == "000001":
            raise PermissionError(13, "Permission denied")
        remove(path, ignore_errors=ignore_errors)

    save(run, files, 1, keep=1)
    monkeypatch.setattr(shutil, "rmtree", stuck)
    assert save(run, files, 2, keep=1) == checkpoint.latest(run)
    assert "000001: cannot delete old checkpoint: Permission denied; fix the permissions" in caplog.text
    monkeypatch.undo()
    save(run, files, 3, keep=1)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000003", "latest"]


def test_a_folder_is_replaced_whole_or_not_at_all(run: RunDirectory) -> None:
    def write(text: str) -> None:
        with checkpoint.replacing(run.policy) as folder:
            (folder / text).write_text(text)
            assert not (run.policy / text).exists()
            if text == "half":
                raise KeyboardInterrupt

    write("first")
    with pytest.raises(KeyboardInterrupt):
        write("half")
    assert [path.name for path in run.policy.iterdir()] == ["first"]
    run.policy.rename(run.path / ".policy.old")  # killed between the two renames
    with pytest.raises(KeyboardInterrupt):
        write("half")
    assert [path.name for path in run.policy.iterdir()] == ["first"]
    run.policy.rename(run.path / ".policy.old")
    write("second")
    assert [path.name for path in run.policy.iterdir()] == ["second"]
    assert not list(run.path.glob(".policy*"))
