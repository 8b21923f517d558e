"""A sandbox for programs that a model wrote: bubblewrap, limits, seccomp filters and clocks around one program.

Invariants: each program gets a new sandbox (docs/programs.md says what is in it), and each of its tests a new process.
`Session.run` returns when a limit on time ends, or earlier. At the end of a session the kernel ends the PID namespace,
so everything inside is dead. It fails closed: without bubblewrap, or on a machine that `seccomp` does not know, only
`unsafe-subprocess` runs programs.
"""

import io
import json
import marshal
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from core.child import ChildProcess
from core.config import SandboxMode
from core.errors import ConfigError
from tasks.code import confinement
from tasks.code.confinement import SandboxError
from tasks.code.sandbox_driver import MOST_ANSWER
from tasks.code.seccomp import program_filter

DRIVER = Path(__file__).with_name("sandbox_driver.py")
FILES = (DRIVER, DRIVER.with_name("sandbox_values.py"))
TASKS = 64  # threads that a program may have
MOST_STRAY = 16  # lines that are no answer, after which the rest of a program's output is not read
MOST_REASON = 300  # characters kept of an error's reason
START_LIMIT = 120.0  # seconds in which the interpreter of a sandbox must start, and in which it must react
UNSAFE_WARNING = (
    "task.sandbox = unsafe-subprocess: programs that the model wrote run as your user with only time and memory "
    "limits: they can read and change your files, use the network, start processes and signal them"
)
_REMEDY = (
    "install it (Debian, Ubuntu: apt-get install bubblewrap; 0.8 or newer) and let it create namespaces, or set "
    "task.sandbox unsafe-subprocess, which protects neither your files nor your network"
)
_COUNT_TASKS = """
import threading, time
threading.stack_size(65536)
def tasks():
    for started in range(200):
        try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        except RuntimeError: return started
    return 200
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one test: seconds of processor time, and of doing nothing; memory and output in MiB."""

    seconds: float
    memory_mib: int
    output_mib: int = 16

    @property
    def wall(self) -> float:
        """Wall-clock seconds: three times the processor time, so that a busy machine fails no program."""
        return 3.0 * self.seconds


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and statements that run before and after it in its namespace."""

    source: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all programs of a sandbox start with: Python statements, and installed packages that they may import."""

    prelude: str = ""
    packages: tuple[str, ...] = ()


@dataclass(slots=True)
class Ending:
    """How the process of a test ended. The program controls all of it: compare it, do not trust it."""

    output: bytes = b""
    errors: str = ""  # the last line of its error stream
    status: int = 0  # as os.waitstatus_to_exitcode
    why: str = ""  # why it did not end well; empty if it did
    seconds: float = 0.0  # of processor time and of doing nothing


@dataclass(slots=True)
class Report:
    """What a program answered to expressions. The program controls all of it: compare it, do not trust it."""

    expected: int  # number of expressions
    syntax: str = ""  # why the program does not compile; empty if it does
    failed: str = ""  # why program or setup raised or ended; empty if they did not
    values: dict[int, Any] = field(default_factory=dict)  # expression -> its encoded value
    raised: dict[int, str] = field(default_factory=dict)  # expression -> why it has no value
    stray: int = 0  # lines that the driver would not write

    def take(self, line: bytes) -> bool:
        """Read a line of output; the first answer to an expression counts. False: not worth reading on. What the driver
        would not write is ignored, and so is everything after MOST_STRAY such lines: only a program that tampers with
        its process writes them, and each takes time to parse."""
        try:
            match json.loads(line) if len(line) <= MOST_ANSWER + 1 else None:
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
                case _:
                    self.stray += 1
        except (ValueError, RecursionError):  # not JSON, not text, too many digits, or nested too deeply
            self.stray += 1
        return not (self.syntax or self.failed) and self.stray <= MOST_STRAY

    def _is_open(self, index: int) -> bool:
        return 0 <= index < self.expected and index not in self.values and index not in self.raised


class Session(ChildProcess):
    """One program in its sandbox, until everything in it is dead. The tests run one after the other, each in a new
    process. Raises SandboxError when it cannot be started."""

    def __init__(self, mode: SandboxMode, limits: Limits, setting: Setting) -> None:
        self._most = limits.output_mib << 20
        self._patience = limits.wall + START_LIMIT  # seconds in which a process must end
        self._gone = ""  # why the sandbox itself ended; empty if it has not
        self._folder = "" if mode == "bubblewrap" else tempfile.mkdtemp(prefix="program-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (read after the process has ended)
        options: dict[str, Any] = {"stderr": self._errors, "cwd": self._folder or "/"}
        try:
            if mode == "bubblewrap":
                with confinement.filter_file() as seccomp:
                    command = confinement.bubblewrap_command(seccomp.fileno(), FILES, setting.packages)
                    command.append(self._settings(limits, setting, [confinement.PACKAGES], confinement.program_user()))
                    super().__init__(confinement.bounded(command), env={}, pass_fds=(seccomp.fileno(),), **options)
            else:
                paths = [str(place.parent) for place in confinement.package_paths(setting.packages)]
                command = [confinement.PYTHON, *confinement.FLAGS, str(DRIVER)]
                command.append(self._settings(limits, setting, paths, 0))
                super().__init__(command, env={"PYTHONHASHSEED": "0"}, **options)
        except OSError as error:
            self._errors.close()
            raise SandboxError(f"{error.filename}: {error.strerror}") from None

    def _settings(self, limits: Limits, setting: Setting, paths: list[str], user: int) -> str:
        bounds = {"seconds": limits.seconds, "mebibytes": limits.memory_mib, "output": self._most, "tasks": TASKS}
        filtered = "" if self._folder else program_filter().hex()
        return ascii({**bounds, **asdict(setting), "paths": paths, "user": user, "filter": filtered})

    def wait_until_ready(self) -> None:
        """Wait for the interpreter. Raises SandboxError when it does not start."""
        try:
            self.line(time.monotonic() + START_LIMIT)
        except (TimeoutError, EOFError):
            self.stop()
            status = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise SandboxError(said[-1] if said else f"exit status {status}") from None

    def run(self, test: Mapping[str, Any]) -> Ending:
        """Run the program once; a script on a test's `input`, `files` and `arguments`."""
        if self._gone:
            return Ending(why=self._gone)
        self.tell(test)
        ending = Ending()
        ending.output = b"".join(self._pieces(ending))
        return ending

    def evaluate(self, expressions: Sequence[str], values: Mapping[str, Any] | None = None) -> tuple[Report, Ending]:
        """Evaluate expressions in the program's namespace, into which (encoded) values are put by name first."""
        ending = self.run({"expressions": list(expressions), "values": values or {}})
        report = Report(len(expressions))
        for line in io.BytesIO(ending.output):  # one by one: there may be millions
            if not report.take(line):
                break
        return report, ending

    def tell(self, message: Any) -> None:
        """Message the process of a test, or start one; the next answer says if the sandbox has ended."""
        data = marshal.dumps(message)
        with suppress(EOFError, TimeoutError):
            self.send(len(data).to_bytes(4, "big") + data, time.monotonic() + START_LIMIT)

    def lines(self, ending: Ending) -> Iterator[bytes]:
        """The lines of a process that exchanges messages, as they come. At its end `ending` says how."""
        pending = b""
        for data in self._pieces(ending):
            *lines, pending = (pending + data).split(b"\n")
            yield from lines

    def _pieces(self, ending: Ending) -> Iterator[bytes]:
        """What a process writes, until it ends. The driver's frames are a letter, a length, and data."""
        deadline = time.monotonic() + self._patience
        try:
            while True:
                kind, length = struct.unpack(">cI", self.exactly(5, deadline))
                if length > self._most:
                    raise ValueError
                data = self.exactly(length, deadline)
                if kind == b"o":
                    yield data
                elif kind == b"e":
                    lines = data.decode(errors="replace").strip().splitlines()
                    ending.errors = lines[-1][:MOST_REASON] if lines else ""
                else:
                    status, ending.why, ending.seconds = json.loads(data)
                    ending.status = code = os.waitstatus_to_exitcode(status)
                    if code < 0 and not ending.why:
                        used_up = code in (-signal.SIGXCPU, -signal.SIGKILL)
                        ending.why = "used up its processor time or memory" if used_up else f"killed by signal {-code}"
                    return
        except (TimeoutError, EOFError, ValueError):
            self._gone = ending.why = "ended its sandbox"

    def kill(self) -> None:
        """End everything in the sandbox."""
        super().kill()
        self._errors.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class Sandbox:
    """Runs programs, each in a new sandbox. Use it from one thread: a sandbox dies with the thread that started it."""

    def __init__(self, mode: SandboxMode, limits: Limits, setting: Setting = Setting()) -> None:
        self._start = partial(Session, mode, limits, setting)
        self._spare: Session | None = None

    @contextmanager
    def session(self, program: Program, *, interactive: bool = False) -> Iterator[Session]:
        """A sandbox with a program. Raises SandboxError. `interactive`: a process exchanges several messages."""
        process, self._spare = self._spare, None
        if process is not None and process.ended:
            process.kill()
            process = None
        process = process or self._start()
        try:
            process.wait_until_ready()
            process.tell({**asdict(program), "interactive": interactive})
            with suppress(SandboxError, OSError):  # this program is not affected; the next session raises the error
                self._spare = self._start()  # it starts while this one works
            yield process
        finally:
            process.kill()

    def close(self) -> None:
        """End the spare sandbox."""
        if self._spare is not None:
            self._spare.kill()
            self._spare = None


def check_sandbox(mode: SandboxMode, limits: Limits, setting: Setting = Setting()) -> None:
    """Raises ConfigError, with the remedy, when programs cannot be run in this mode. Warns if the mode is unsafe."""
    if mode == "unsafe-subprocess":
        print(f"warning: {UNSAFE_WARNING}", file=sys.stderr, flush=True)
    try:
        with closing(Sandbox(mode, limits, setting)) as sandbox, sandbox.session(Program(_COUNT_TASKS)) as session:
            report, ending = session.evaluate(["21 * 2"])
            bounded = mode == "unsafe-subprocess" or session.evaluate(["tasks() < 200"])[0].values.get(0)
    except SandboxError as error:
        raise ConfigError(f"task.sandbox = {mode}: {error}; {_REMEDY}") from None
    if report.values != {0: 42}:
        raise ConfigError(f"task.sandbox = {mode}: a program cannot run in it ({ending}); raise task.code.memory_mib")
    if not bounded:
        raise ConfigError(
            f"task.sandbox = {mode}: neither a user nor a control group bounds the threads of a program here; start "
            "the run as an ordinary user"
        )
