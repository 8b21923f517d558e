"""A sandbox for programs that a model wrote: bubblewrap, rlimits, a seccomp filter and a wall clock around one interpreter.

Called by `tasks/code/programs.py` in the judging processes. Invariants:

- Each program gets a new sandbox. A spare one, with its interpreter started, waits while another works.
- Namespaces: user, PID, mount, IPC, network, UTS and cgroup. No capabilities. An empty environment with a fixed hash seed.
- Files: the system's /usr and the Python installation, read-only, without third-party packages; an empty /tmp; no /proc, /sys,
  /etc, /home. No file can be written, not even in memory: files there take kernel memory that no limit counts.
- Memory: there is one process (`tasks/code/seccomp.py`), so RLIMIT_AS bounds it, plus some tens of MiB in the kernel (pipes, locks).
- `run` returns when the wall-clock limit ends, or earlier. Everything inside is then dead: the kernel ends the PID namespace.
- It fails closed: without bubblewrap, or on a machine that `seccomp` does not know, only `unsafe-subprocess` runs programs.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from core.config import SandboxMode
from core.errors import ConfigError
from tasks.child import ChildProcess
from tasks.code.seccomp import denied_calls

DRIVER = Path(__file__).with_name("sandbox_driver.py")
FILE_MIB = 16
"""Size of the largest file, where one can be written at all (unsafe-subprocess)."""
MOST_OUTPUT = 1 << 20
"""Bytes that a sandbox may output; one that outputs more is stopped."""
MOST_REASON = 300
"""Characters kept of an error's reason."""
START_LIMIT = 120.0
"""Seconds in which the interpreter of a sandbox must start."""
UNSAFE_WARNING = (
    "task.sandbox = unsafe-subprocess: programs that the model wrote run as your user with only time and memory limits: they "
    "can read and change your files, use the network, start processes and signal them"
)
_REMEDY = (
    "install it (Debian, Ubuntu: apt-get install bubblewrap; 0.7 or newer) and let it create namespaces, or set task.sandbox "
    "unsafe-subprocess, which protects neither your files nor your network"
)
_PYTHON = os.path.realpath(sys.executable)  # the interpreter itself, not a virtual environment's link to it
_FLAGS = ("-s", "-S", "-P", "-B")  # no user packages, no site, no modules from the script's folder, no byte code


class SandboxError(Exception):
    """The sandbox itself failed: no program ran."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program: seconds of processor time, and address space in MiB."""

    seconds: float
    memory_mib: int

    @property
    def wall(self) -> float:
        """Wall-clock seconds: three times the processor time, so that a busy machine fails no program and a sleeping one ends."""
        return 3.0 * self.seconds


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """A program, the statements that follow it (`setup`), and the expressions to evaluate after both in its namespace.

    `values` (in the driver's encoding) are put into the namespace by name first.
    """

    program: str
    expressions: Sequence[str]
    setup: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """The output of a sandbox. The program controls all of it: compare it, do not trust it."""

    expected: int  # number of expressions
    syntax: str = ""  # why the program does not compile; empty if it does
    failed: str = ""  # why program or setup raised or ended; empty if they did not
    values: dict[int, Any] = field(default_factory=dict)  # expression -> its encoded value
    raised: dict[int, str] = field(default_factory=dict)  # expression -> why it has no value
    ended: str = ""  # why the sandbox ended early; empty if it did not

    @property
    def complete(self) -> bool:
        """Whether no more output is expected."""
        return bool(self.syntax or self.failed) or len(self.values) + len(self.raised) >= self.expected

    def take(self, line: bytes) -> None:
        """Read a line of output. Ignore a line that the driver would not write. The first answer to an expression counts."""
        try:
            match json.loads(line):
                case ["syntax", str(why)]:
                    self.syntax = why[:MOST_REASON] or "?"
                case ["failed", str(why)]:
                    self.failed = why[:MOST_REASON] or "?"
                case [int(index), "value", value] if self._is_open(index):
                    self.values[index] = value
                case [int(index), "raised", str(why)] if self._is_open(index):
                    self.raised[index] = why[:MOST_REASON] or "?"
                case [int(index), "large"] if self._is_open(index):
                    self.raised[index] = "a value too large to compare"
        except (ValueError, RecursionError):  # not JSON, not text, too many digits, or nested too deeply
            return

    def _is_open(self, index: int) -> bool:
        return 0 <= index < self.expected and index not in self.values and index not in self.raised


class Sandbox:
    """Runs programs, each in a new sandbox. Use it from one thread: a sandbox dies with the thread that started it."""

    def __init__(self, mode: SandboxMode, limits: Limits) -> None:
        self._mode: SandboxMode = mode
        self._limits = limits
        self._spare: _Process | None = None

    def run(self, job: ProgramJob) -> Report:
        """Run a program and evaluate its expressions. Raises SandboxError when no sandbox could be started."""
        process, self._spare = self._spare, None
        if process is not None and process.ended:
            process.kill()
            process = None
        process = process or _Process(self._mode, self._limits)
        try:
            process.wait_until_ready()
            process.hand_in(job)
            with suppress(SandboxError, OSError):  # this program is not affected; the next run raises the error
                self._spare = _Process(self._mode, self._limits)  # it starts while this one works
            return process.read(len(job.expressions), self._limits)
        finally:
            process.kill()

    def close(self) -> None:
        """End the spare sandbox."""
        if self._spare is not None:
            self._spare.kill()
            self._spare = None


def check_sandbox(mode: SandboxMode, limits: Limits) -> None:
    """Raises ConfigError, with the remedy, when programs cannot be run in this mode. Warns if the mode is unsafe."""
    if mode == "unsafe-subprocess":
        print(f"warning: {UNSAFE_WARNING}", file=sys.stderr, flush=True)
    sandbox = Sandbox(mode, limits)
    try:
        report = sandbox.run(ProgramJob("def double(x): return 2 * x", ["double(21)"]))
    except SandboxError as error:
        raise ConfigError(f"task.sandbox = {mode}: {error}; {_REMEDY}") from None
    finally:
        sandbox.close()
    if report.values != {0: 42}:
        raise ConfigError(f"task.sandbox = {mode}: a program cannot run in it ({report}); raise task.code.memory_mib")


class _Process(ChildProcess):
    """One sandbox: from its start to the death of everything in it. Raises SandboxError when it cannot be started."""

    def __init__(self, mode: SandboxMode, limits: Limits) -> None:
        arguments = [str(limits.seconds), str(limits.memory_mib), str(FILE_MIB)]
        self._folder = "" if mode == "bubblewrap" else tempfile.mkdtemp(prefix="program-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (read after the process has ended)
        options: dict[str, Any] = {"most": MOST_OUTPUT, "stderr": self._errors, "cwd": self._folder or "/"}
        try:
            if mode == "bubblewrap":
                with _filter_pipe() as seccomp:
                    command = [*bubblewrap_command(seccomp), *arguments]
                    super().__init__(command, env={}, pass_fds=(seccomp,), **options)
            else:
                command = [_PYTHON, *_FLAGS, str(DRIVER), *arguments]
                super().__init__(command, env={"PYTHONHASHSEED": "0"}, **options)
        except OSError as error:
            self._errors.close()
            raise SandboxError(f"{error.filename}: {error.strerror}") from None

    @property
    def ended(self) -> bool:
        """Whether the process has ended, for a spare one: before it was used."""
        return self.exit_status(0.0) is not None

    def wait_until_ready(self) -> None:
        """Wait for the interpreter. Raises SandboxError when it does not start."""
        try:
            self.line(time.monotonic() + START_LIMIT)
        except (TimeoutError, EOFError):
            self.stop()
            status = self.exit_status(time.monotonic() + START_LIMIT)
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise SandboxError(said[0] if said else f"exit status {status}") from None

    def hand_in(self, job: ProgramJob) -> None:
        """Send the job. Raises SandboxError when the sandbox has ended."""
        record = {each.name: getattr(job, each.name) for each in fields(job)}
        try:
            self.send(json.dumps(record).encode("ascii") + b"\n", time.monotonic() + START_LIMIT)
        except (TimeoutError, EOFError):
            raise SandboxError("the sandbox ended before it received its program") from None

    def read(self, expected: int, limits: Limits) -> Report:
        """Collect output until every expression is answered, the sandbox ends, or a limit on output or time is reached."""
        deadline = time.monotonic() + limits.wall
        report = Report(expected)
        try:
            while not report.complete:
                report.take(self.line(deadline))
        except TimeoutError:
            report.ended = f"stopped after {limits.wall:g} s"
        except OverflowError:
            report.ended = f"stopped after {MOST_OUTPUT} bytes of output"
        except EOFError:
            report.ended = self._status(deadline)
        return report

    def _status(self, deadline: float) -> str:
        code = self.exit_status(deadline)
        if code is None:
            return "closed its output but did not end"
        number = code - 128 if code > 128 else -code  # signal as bubblewrap reports it, or as the kernel does
        if number <= 0:
            return f"ended itself with status {code}"
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return "used up its processor time or memory"
        return f"killed by signal {number}"

    def kill(self) -> None:
        """End everything in the sandbox."""
        super().kill()
        self._errors.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _filter_pipe() -> Iterator[int]:
    """The seccomp filter in a pipe, as bubblewrap reads it."""
    program = denied_calls()
    if program is None:
        raise SandboxError("no list of system calls for this processor")
    read, write = os.pipe()
    os.write(write, program)  # smaller than a pipe's buffer
    os.close(write)
    try:
        yield read
    finally:
        os.close(read)


def bubblewrap_command(seccomp: int) -> list[str]:
    """`bwrap ... python driver`, to be followed by the driver's arguments. Raises SandboxError without bubblewrap."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bubblewrap (bwrap) is not installed")
    options = ["--unshare-all", "--unshare-user", "--unshare-cgroup", "--uid", "65534", "--gid", "65534"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    options += ["--setenv", "PYTHONHASHSEED", "0"]  # a program's result may depend on the order of a set
    options += ["--ro-bind", "/usr", "/usr"]
    for place in ("/bin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(place):
            options += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            options += ["--ro-bind", place, place]
    prefix = os.path.realpath(sys.base_prefix)
    if not prefix.startswith("/usr"):
        options += ["--ro-bind", prefix, prefix]
    for packages in ("site-packages", "dist-packages"):
        folder = f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/{packages}"
        if os.path.isdir(folder):
            options += ["--tmpfs", folder, "--remount-ro", folder]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--ro-bind", str(DRIVER), "/driver.py", "--dir", "/tmp"]
    options += ["--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(seccomp)]
    return [bwrap, *options, "--", _PYTHON, *_FLAGS, "/driver.py"]
