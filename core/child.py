"""A child process that exchanges lines with this one. Every wait has a deadline; `kill` ends its process group."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from core import ROOT
from core.errors import ConfigError
from core.machine import peak_memory

EXIT_LIMIT = 10.0  # seconds in which a process that has closed its output must end
STARTED: WeakSet["ChildProcess"] = WeakSet()
"""Those that this process has started, some of which have ended."""


class ChildProcess:
    """A process and its two pipes. It has its own process group, so that the processes it starts end with it."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """`options`: as for `subprocess.Popen`. Raises OSError."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **options
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input, self.output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._pending = bytearray()
        STARTED.add(self)

    def send(self, data: bytes, deadline: float) -> None:
        """Write all data. Raises TimeoutError when the process does not read, EOFError when it has ended."""
        rest = memoryview(data)
        while rest:
            _wait_for(self._input, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._input, rest) :]
            except BrokenPipeError:
                raise EOFError from None

    def line(self, deadline: float) -> bytes:
        """Its next line. Raises TimeoutError, EOFError at the end of its output."""
        while (end := self._pending.find(b"\n")) < 0:
            self._read(deadline)
        line = self.exactly(end + 1, deadline)
        return line[:-1]

    def exactly(self, count: int, deadline: float) -> bytes:
        """Its next `count` bytes. Raises as `line`."""
        while len(self._pending) < count:
            self._read(deadline)
        data = bytes(self._pending[:count])
        del self._pending[:count]
        return data

    def _read(self, deadline: float) -> None:
        _wait_for(self.output, select.POLLIN, deadline)
        data = os.read(self.output, 1 << 16)
        if not data:
            raise EOFError
        self._pending += data

    @property
    def peak_memory(self) -> int:
        """The most resident bytes that it has had; 0 once it has ended."""
        return 0 if self.ended else peak_memory(self._process.pid).resident

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Kill the process group. A caller that waits for a line then gets EOFError."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def ending(self) -> str:
        """How a process that has closed its output has ended. Empty: it used up its processor time."""
        try:
            code = self._process.wait(EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            return "it closed its output but did not end"
        if code == -signal.SIGPROF:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"

    def kill(self) -> None:
        """Kill the process group, wait for the process and close its pipes."""
        self.stop()
        with self._process:  # it waits and closes
            pass


class PythonProcess(ChildProcess):
    """A module of this project that runs in a process of its own, and can import what this process can. Strings have
    the same hashes in all of them, so that sets are in the same order."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        paths = [str(ROOT), *(path for path in sys.path if path), os.getcwd()]
        environment = {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, "-P", "-m", module, *arguments]  # -P: a user's tasks.py is not ours
        super().__init__(command, env={**os.environ, **environment})

    def ready(self, name: str, seconds: float) -> Any:
        """Wait for its first line, `ready` and JSON. Raises ConfigError, which calls it by this name."""
        try:
            line = self.line(time.monotonic() + seconds).decode()
        except TimeoutError:
            raise ConfigError(f"{name} did not start in {seconds:g} s; see its output above") from None
        except EOFError:
            raise ConfigError(f"{name} ended before it was ready ({self.ending()}); see its output above") from None
        if not line.startswith("ready "):
            raise ConfigError(f"{name} {line}")
        return json.loads(line.removeprefix("ready "))


def _wait_for(descriptor: int, event: int, deadline: float) -> None:
    """Return when a pipe is ready or its other end is closed. Raises TimeoutError."""
    poller = select.poll()  # select() would refuse descriptors from 1024 on
    poller.register(descriptor, event)
    if not poller.poll(1000 * max(0.0, deadline - time.monotonic())):
        raise TimeoutError
