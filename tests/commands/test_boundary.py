"""What a person sees of an exception that ends a command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands.boundary import DEFECT, USER, status_of
from core import ROOT
from core.errors import DataError
from launch import main


def caught(error: Exception) -> Exception:
    try:
        raise error
    except Exception as found:
        return found


@pytest.mark.parametrize(
    ("error", "status", "named"),
    [
        (DataError("row 3 has no prompt"), USER, "row 3 has no prompt"),
        (PermissionError(13, "Permission denied", "/x/config.yaml"), USER, "/x/config.yaml: Permission denied"),
        (OSError(36, "File name too long", b"/x/\xff"), USER, "File name too long"),
        (ConnectionRefusedError(111, "Connection refused"), USER, "tests/commands/test_boundary.py"),
        (MemoryError(), USER, "memory"),
        (RecursionError("too deep"), DEFECT, "RecursionError: too deep"),
        (KeyError("no such key"), DEFECT, "KeyError"),
    ],
)
def test_an_exception_is_one_line(
    error: Exception, status: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(caught(error)) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert named in line


def test_the_traceback_of_a_defect_lies_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    status_of(caught(ZeroDivisionError("by hand")))
    named = re.search(r"traceback is in (\S+),", capsys.readouterr().err)
    assert named is not None
    text = Path(named[1]).read_text(encoding="utf-8")
    Path(named[1]).unlink()
    assert "in caught" in text
    assert "ZeroDivisionError: by hand" in text


def test_a_traceback_is_shown_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.mkdir()
    assert main(["check", "--offline", "--config", str(recipe)]) == USER
    with pytest.raises(Exception, match=re.escape(str(recipe))):
        main(["check", "--offline", "--config", str(recipe), "--traceback"])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("--help | head -n 1", ""),
        ("--help > /dev/full", "No space left on device"),
        ("--help >&-", ""),
        ("--help >&- 2>&-", ""),
        ("trian >&-", "the nearest is 'train'"),
    ],
)
def test_an_output_that_takes_no_more_ends_without_a_traceback(command: str, named: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} launch.py {command}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "defect" not in done.stderr
    assert named in done.stderr


def test_a_terminal_without_the_letters_gets_escapes() -> None:
    code = "from commands.boundary import printable_output; printable_output(); print('π')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "\\u03c0\n"
