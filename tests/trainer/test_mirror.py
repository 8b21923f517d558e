"""The copy of a run at a URI: a real S3 server (moto) on loopback."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import S3FileSystem

from core.errors import CheckpointError, ConfigError
from core.run_directory import RunDirectory
from tests.s3 import s3  # noqa: F401 (a fixture)
from trainer import mirror
from trainer.mirror import download, open_store, upload


def saved(root: Path, *numbers: int) -> RunDirectory:
    """A run with checkpoints of these iterations, the last of them the latest, the first the best."""
    run = RunDirectory(root / "mine")
    for folder in run.folders():
        folder.mkdir(parents=True, exist_ok=True)
    run.config.write_text("run: {}\n")
    run.metrics.write_text(f"up to {numbers[-1]}\n")
    (run.samples / "000001.jsonl").write_text("{}\n")
    for number in numbers:
        folder = run.checkpoints / f"{number:06d}" / "learner" / "policy"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.pt").write_bytes(bytes([number]) * 100)
    (run.checkpoints / "best").write_text(f"{numbers[0]:06d} 0.5\n")
    (run.checkpoints / "latest").write_text(f"{numbers[-1]:06d}")
    return run


def files(run: RunDirectory) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_run_comes_back_whole_on_an_empty_folder(s3: str, tmp_path: Path) -> None:  # noqa: F811
    run = saved(tmp_path / "here", 5, 10)
    run.replay.mkdir()
    (run.replay / "shard-0.journal").write_text("live")
    assert upload(run, s3, "000005") == upload(run, s3, "000010") == f"; copied to {s3}"
    found = RunDirectory(download(f"{s3}/mine", tmp_path / "there"))
    assert files(found) == {name: data for name, data in files(run).items() if name != "replay/shard-0.journal"}
    (run.checkpoints / "latest").write_text("000005")  # what is here is not overwritten
    assert (RunDirectory(download(f"{s3}/mine", tmp_path / "here")).checkpoints / "latest").read_text() == "000005"


def test_old_checkpoints_leave_and_a_repeated_one_is_replaced(s3: str, tmp_path: Path) -> None:  # noqa: F811
    run = saved(tmp_path / "here", 5)
    (run.checkpoints / "000005" / "stale").write_text("of another life")
    upload(run, s3, "000005")
    (run.checkpoints / "000005" / "stale").unlink()
    upload(run, s3, "000005")
    saved(tmp_path / "here", 10)
    (run.checkpoints / "000005").rename(tmp_path / "deleted")
    upload(run, s3, "000010")
    found = RunDirectory(download(f"{s3}/mine", tmp_path / "there"))
    assert sorted(path.name for path in found.checkpoints.iterdir()) == ["000010", "best", "latest"]


def test_latest_is_written_last(
    s3: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy fails half-way through a checkpoint, twice: it can be resumed from the one before."""
    run = saved(tmp_path / "here", 5)
    upload(run, s3, "000005")
    saved(tmp_path / "here", 5, 10)
    copy, copied = mirror._copy, list[str]()

    def _first_only(*places: Any) -> None:
        copied.append(places[3])
        if len(copied) > 1:
            raise OSError("the network is gone")
        copy(*places)

    monkeypatch.setattr(mirror, "_copy", _first_only)
    assert upload(run, s3, "000010").startswith(f"; not copied to {s3} (the network is gone)")
    assert copied[0].endswith("checkpoints/000010")
    copied.clear()
    assert upload(run, s3, "000010").startswith(f"; not copied to {s3} (the network is gone)")
    monkeypatch.undo()
    assert (RunDirectory(download(f"{s3}/mine", tmp_path / "there")).checkpoints / "latest").read_text() == "000005"


def test_the_last_copy_brings_the_checkpoint_that_an_earlier_one_could_not(
    s3: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only checkpoint is written again, and its copy fails."""
    run = saved(tmp_path / "here", 5)
    upload(run, s3, "000005")
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "_copy", lambda *_: (_ for _ in ()).throw(OSError("the network is gone")))
        assert upload(run, s3, "000005").endswith("(the network is gone); the next checkpoint tries again")
        assert upload(run, s3).endswith(f"(the network is gone); copy {run.path} there")
    upload(run, s3)
    assert files(RunDirectory(download(f"{s3}/mine", tmp_path / "there"))) == files(run)


def test_the_best_checkpoint_comes_with_a_later_one_if_its_own_copy_failed(
    s3: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = saved(tmp_path / "here", 5)
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "_copy", lambda *_: (_ for _ in ()).throw(OSError("the network is gone")))
        assert "not copied" in upload(run, s3, "000005")
    saved(tmp_path / "here", 5, 10)
    assert upload(run, s3, "000010") == f"; copied to {s3}"
    assert files(RunDirectory(download(f"{s3}/mine", tmp_path / "there"))) == files(run)
    run.policy.mkdir()
    (run.policy / "config.json").write_text("{}")
    upload(run, s3)
    shutil.rmtree(run.policy)  # a finished run goes on
    upload(run, s3)
    assert not RunDirectory(download(f"{s3}/mine", tmp_path / "later")).policy.exists()
    shutil.rmtree(run.checkpoints / "000005")  # by hand: `best` names nothing, and counts as none
    assert upload(run, s3, "000010") == f"; copied to {s3}"


def test_bad_places_get_one_line(s3: str, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"^gopher://x: .*s3://"):
        open_store("gopher://x")
    with pytest.raises(CheckpointError, match=f"^{s3}/other: "):
        download(f"{s3}/other", tmp_path)
    assert isinstance(open_store(s3)[0], S3FileSystem)
    assert open_store("memory://a/b")[1].strip("/") == "a/b"  # of fsspec
