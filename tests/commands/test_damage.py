"""Damaged files of a run: every command that reads one names it in one line, without a traceback and in time."""

import builtins
import errno
import io
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import launch
from commands import train
from core.errors import ModelError
from core.run_directory import RunDirectory, write_versions
from tests.commands.test_replay import run as store_run  # noqa: F401 (a fixture)
from tests.trainer.examples import iteration
from trainer import checkpoint
from trainer.metrics import JsonlSink

MOST_SECONDS = 60


@contextmanager
def in_time() -> Iterator[None]:
    """A hang is a failure."""

    def _late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Interrupted:
    """What `inspect` waits for: Ctrl-C at once."""

    def wait(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def run(store_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A run of two iterations with a store, an evaluation, samples and a checkpoint. Resumed, it ends at the model."""
    made = RunDirectory.open(store_run)
    for number in (1, 2):
        sink = JsonlSink(made.metrics, last=number - 1)
        sink.write(iteration(number))
        sink.close()
    line = {"iteration": 0, "success": 0.25, "low": 0.0, "high": 0.5, "problems": 4, "pass": {}}
    line |= {"levels": [], "sources": [], "sets": []}
    made.evaluations.write_text(json.dumps(line) + "\n" + json.dumps(line | {"iteration": 2}) + "\n")
    made.responses.mkdir()
    response = {"problem": "p", "kind": "greedy", "prompt": "1+1", "response": "2", "correct": True}
    for number in (0, 2):
        (made.responses / f"{number:06d}.jsonl").write_text(json.dumps(response) + "\n")
    write_versions(made)
    made.log.write_text("")
    folder = made.checkpoints / "000002"
    (folder / "sources" / "coverage").mkdir(parents=True)
    (folder / "sources" / "coverage" / "coverage.json").write_text(
        '{"lives": {"1+1": {"visits": 1, "recent": [[1, 0, 0, 1]]}}}'
    )
    (folder / "progress.json").write_text('{"iteration": 2, "total_tokens": 9, "engines": null}')
    (folder / "policy").mkdir()
    (folder / "policy" / "config.json").write_text("{}")
    checkpoint.write_digests(folder)
    (made.checkpoints / "latest").write_text("000002")
    monkeypatch.setattr(train, "preflight", lambda *_, **__: None)

    def _reached(*_: object) -> str:
        raise ModelError("the model is reached")

    monkeypatch.setattr("trainer.build.find_model", _reached)
    monkeypatch.setattr("monitor.report.draw_curves", lambda _: None)  # it takes seconds
    monkeypatch.setattr("commands.inspect.threading", SimpleNamespace(Event=Interrupted))
    monkeypatch.setattr("launch.signal.signal", lambda *_: None)
    return store_run


FILES = {
    "config.yaml": "report replay inspect runs resume",
    "versions.json": "report",
    "metrics.jsonl": "report runs resume",
    "evaluations.jsonl": "report runs",
    "evaluations/000000.jsonl": "report",
    "problems.parquet": "replay inspect",
    "tokenizer/tokenizer.json": "replay inspect",
    "log.txt": "report runs",
    ".lock": "runs resume",
    "replay/shard-0.journal": "replay inspect",
    "checkpoints/latest": "report replay inspect resume",
    "checkpoints/000002/progress.json": "resume",
    "checkpoints/000002/digests.json": "resume",
    "checkpoints/000002/policy/config.json": "resume",
    "checkpoints/000002/sources/coverage/coverage.json": "replay inspect resume",
}
"""With the commands that read them."""
COMMANDS = {
    "report": ["report"],
    "replay": ["replay"],
    "inspect": ["inspect"],
    "runs": ["runs"],
    "resume": ["train", "--local", "--resume"],
}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if file.exists() else b"")


def _garbage(file: Path) -> None:
    file.write_bytes(b"\x00\xff{[" * 9 + b"\n" + (file.read_bytes() if file.exists() else b""))


def _another_type(file: Path) -> None:
    file.write_text('[{"iteration": "x", "success": []}]\n')


def _newer(file: Path) -> None:
    found = file.read_text(errors="ignore") if file.exists() else ""
    file.write_text(found.replace("{", '{"of_a_newer_version": [1, {}], ').replace('"format": ', '"format": 9'))


def _folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def _pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def _loop(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file)


DAMAGES = (_cut, _garbage, _another_type, _newer, _folder, _pipe, _loop)


def launched(command: list[str], run: Path) -> tuple[int, str]:
    """Status, and what was said on standard error."""
    errors = io.StringIO()
    handler = logging.StreamHandler(errors)
    logging.getLogger("retrospect").addHandler(handler)
    target = run.parent if command == ["runs"] else run
    try:
        with in_time(), redirect_stderr(errors), redirect_stdout(io.StringIO()) as output:
            status = launch.main([*command, str(target)])
    finally:
        logging.getLogger("retrospect").removeHandler(handler)
    return status, errors.getvalue() + (output.getvalue() if command == ["runs"] else "")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_by_every_command(
    run: Path, name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    wrong = []
    for label in FILES[name].split():
        command = COMMANDS[label]
        shutil.rmtree(run)
        shutil.copytree(whole, run)
        damage(run / name)
        status, said = launched(command, run)
        reached = "the model is reached" in said
        if status not in (0, 2) or (
            status == 2 and not reached and Path(name).name not in said and "newer" not in said
        ):
            wrong.append((label, status, said[-400:]))
    assert not wrong


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_user_is_named_by_every_command(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, who can open every file: to open it raises what others get."""
    (run / name).touch()  # a lock is made by training

    def _refusing(opened: Callable[..., Any]) -> Callable[..., Any]:
        def _open(file: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(file, int) and os.path.abspath(file) == str(run / name):
                raise PermissionError(errno.EACCES, "Permission denied", str(file))
            return opened(file, *arguments, **options)

        return _open

    wrong = []
    for label in FILES[name].split():
        with monkeypatch.context() as patch:
            for module, function in ((builtins, "open"), (io, "open"), (os, "open")):
                patch.setattr(module, function, _refusing(getattr(module, function)))
            status, said = launched(COMMANDS[label], run)
        named = f"{run / name}: " in said or f"'{run / name}'" in said
        if not ("the model is reached" in said or (status in (0, 2) and named and "Permission denied" in said)):
            wrong.append((label, status, said[-400:]))
    assert not wrong
