"""What a person sees of an exception that ends a command: one line. An error of this project is its own line, one of
the operating system names its file, and any other is a defect, whose traceback lies in a file."""

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core import ROOT
from core.errors import RetrospectError, first_line

USER, DEFECT = 2, 1  # exit statuses
_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF)


def printable_output() -> None:
    """Print what the terminal's encoding lacks as an escape, instead of raising UnicodeEncodeError; to a closed stream
    (`check >&-`) nothing is printed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it gets the number that is free)
            setattr(sys, name, nowhere)
            os.set_inheritable(nowhere.fileno(), True)
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def status_of(error: Exception) -> int:
    """Print the error's line, and return the exit status of the command that it ends."""
    if isinstance(error, BrokenPipeError):  # `check | head` has read enough
        _discard_output()
        return DEFECT
    known = _of_a_user(error)
    try:
        print(f"error: {known or _of_a_defect(error)}", file=sys.stderr, flush=True)
    except OSError:
        _discard_output()
    if isinstance(error, OSError) and error.errno in _OUTPUT:
        _discard_output()  # Python would write the rest again when it ends
    return USER if known else DEFECT


@contextmanager
def clear_errors() -> Iterator[None]:
    """For the Python interface: an error that a user can act on is a RetrospectError. A defect stays as it is."""
    try:
        yield
    except RetrospectError:
        raise
    except Exception as error:
        if line := _of_a_user(error):
            raise RetrospectError(line) from error
        raise


def _of_a_user(error: Exception) -> str:
    """The line of an error that a user can act on; empty for a defect."""
    if isinstance(error, RetrospectError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        what = "output" if error.errno in _OUTPUT else _place(error)
        line = f"{' -> '.join(names) or what}: {error.strerror}"
        return line.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return "a path has a null character; leave it out"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of Path.resolve
        return str(error)
    if isinstance(error, MemoryError):
        return f"the memory of this machine is used up, in {_place(error)}"
    return ""


def _of_a_defect(error: Exception) -> str:
    """The line of a defect. Its traceback is written to a file."""
    told = f"{type(error).__name__}: {first_line(error)[:300]} (in {_place(error)})"
    with tempfile.NamedTemporaryFile("w", prefix="retrospect-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.writelines(traceback.format_exception(error))
    return f"{told}; this is a defect: its traceback is in {file.name}, and --traceback shows it"


def _place(error: BaseException) -> str:
    """File and line of the last call in this project."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(ROOT)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    return f"{Path(own[-1].filename).relative_to(ROOT)}:{own[-1].lineno}" if own else "a library"


def _discard_output() -> None:
    """Send what is still to be written to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError, AttributeError):  # it is no file
            continue
