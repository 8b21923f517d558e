"""The script inside a sandbox: it runs a program once per test, each time in a new process, and reports what comes out.

`sandbox.py` starts it with its settings. It writes `ready`, reads the program, and then starts one process per test.
That process reads its test, gives up what a program may not do (`seccomp.py`), and runs the program. The driver never
runs code of the program: it measures time and output, ends what exceeds them, and passes on what is written. Messages
are frames: a length of 4 bytes, then what the judge marshalled (in); a letter, a length of 4 bytes, then data (out: `o`
output, `e` end of the error stream, `x` JSON: how the process ended).

Invariant: a program that tampers with its process can change only what comes out of its own test. No process here knows
an expected value, and a test is not in memory while another one runs.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False  # importing it from typing would cost a seventh of a sandbox's time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any
if TYPE_CHECKING or __name__ != "__main__":
    from tasks.code.sandbox_values import decode_value, encode_value, to_json
else:
    sys.path.insert(0, os.path.dirname(__file__))
    from sandbox_values import decode_value, encode_value, to_json

NOT_COMPILED = 65  # exit status of a script that does not compile
MODULE = "program"
MOST_ANSWER = 4 << 20  # bytes of one answer: parsed, they take up to 25 times as much of the judge's memory
TICK = 0.05  # seconds between two looks at the processor time of a program
_PRELOADED = ("collections", "heapq", "itertools", "re", "operator", "bisect", "math", "functools")
"""Modules that programs often import: loaded once for all tests of a program that imports them."""
_ERRORS = 2000  # bytes kept of the error stream, from its end


LIBRARY = ctypes.CDLL(None)


class Filter(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def read_frame(source: int) -> Any:
    """The next message, or None at the end of the pipe. Reads not one byte more: it belongs to another process."""

    def _exactly(count: int) -> bytes:
        data = b""
        while len(data) < count and (more := os.read(source, min(count - len(data), 1 << 20))):
            data += more
        return data

    return marshal.loads(_exactly(int.from_bytes(header, "big"))) if (header := _exactly(4)) else None


def write_all(sink: int, data: bytes) -> None:
    """Write all of it to a pipe."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sink, rest) :]


def reason(error: BaseException) -> str:
    """The text of an exception, also if its __str__ raises."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return "an exception that cannot be printed"


def limit(config: dict[str, Any]) -> None:
    """Bound this process: processor time, memory, file size, threads, open files, no core files."""
    cpu = int(-(-config["seconds"] // 1))
    memory = config["mebibytes"] << 20
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_NPROC, config["tasks"], config["tasks"]),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        present = resource.getrlimit(kind)[1]  # the hard limit of the parent can only be lowered
        if present != resource.RLIM_INFINITY:
            soft, hard = min(soft, present), min(hard, present)
        resource.setrlimit(kind, (soft, hard))


def drop_user(user: int) -> None:
    """Become an unprivileged user without any capability, so that the kernel counts and limits its processes."""
    for capability in range(64):
        LIBRARY.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def confine(filtered: str) -> None:
    """Install a program's seccomp filter, given in hexadecimal; its placeholder becomes this process."""
    code = bytes.fromhex(filtered).replace(
        (0x7EC0FFEE).to_bytes(4, sys.byteorder), os.getpid().to_bytes(4, sys.byteorder)
    )
    if LIBRARY.prctl(22, 2, ctypes.byref(Filter(len(code) // 8, code)), 0, 0):  # PR_SET_SECCOMP, a filter
        os._exit(1)


def stand_in(job: int, output: int) -> Callable[..., Any]:
    """A function of the program, for the process that checks it: calls go through the judge to the program."""

    def _call(*arguments: Any, **named: Any) -> Any:
        write_all(output, to_json(["call", encode_value(arguments), encode_value(named)]) + b"\n")
        match read_frame(job):
            case {"value": value}:
                return decode_value(value)
        raise RuntimeError("the program returned no plain value")

    return _call


def compiled(program: dict[str, Any]) -> list[CodeType]:
    """The code of what runs before the program, of the program, and of what runs after it."""
    parts = (("before", "<setup>"), ("source", "<program>"), ("after", "<setup>"))
    return [compile(program[part], name, "exec", dont_inherit=True) for part, name in parts]


def evaluate(
    test: dict[str, Any] | None, program: dict[str, Any], names: dict[str, Any], job: int, output: int, most: int
) -> None:
    """Run the program, then evaluate the test's expressions in its namespace, a line of JSON for each. A test with
    `more` is followed by others in this process, until one has no `more`."""

    def _say(*items: Any) -> None:
        text = to_json(items)
        write_all(output, (text if len(text) <= min(most, MOST_ANSWER) else to_json([items[0], "large"])) + b"\n")

    try:
        parts = compiled(program)
    except BaseException as error:
        return _say("syntax", reason(error))
    try:
        for part in parts:
            exec(part, names)
    except BaseException as error:
        return _say("failed", reason(error))
    while test:
        if test.get("caller"):
            names[test["caller"]] = stand_in(job, output)
        for name, value in test["values"].items():
            try:
                names[name] = decode_value(value)
            except Exception:  # not an encoding of the driver: only expressions that read it raise
                continue
        for index, expression in enumerate(test["expressions"]):
            try:
                value = eval(compile(expression, "<test>", "eval", dont_inherit=True), names)
                _say(index, "value", encode_value(value))
            except BaseException as error:
                _say(index, "raised", reason(error))
        test = read_frame(job) if test.get("more") else None
    return None


def run_script(program: dict[str, Any], names: dict[str, Any]) -> int:
    """Run the program as a script, up to the end of its threads. Returns its exit status, and prints its error."""
    try:
        parts = compiled(program)
    except BaseException as error:
        os.write(2, reason(error).encode(errors="replace"))
        return NOT_COMPILED
    status = 0
    try:
        for part in parts:
            exec(part, names)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.stdout.flush()
        os.write(2, f"\n{reason(error)}".encode(errors="replace"))
        status = 1
    if threading := sys.modules.get("threading"):
        threading._shutdown()
    __import__("atexit")._run_exitfuncs()
    sys.stdout.flush()
    return status


def child(
    config: dict[str, Any], program: dict[str, Any], module: ModuleType, job: int, pipes: tuple[int, int]
) -> None:
    """The process of one test: read it, give up all rights, run the program as a module, exit."""
    output, errors = pipes
    test = read_frame(job)
    script = "input" in test
    if script:
        for name in os.listdir():
            os.unlink(name)  # a program cannot make a file, but it can rename its input and so keep it
        for name, text in {**test.get("files", {}), "stdin": test["input"]}.items():
            with open(name, "wb") as file:
                file.write(text.encode("utf-8", "surrogatepass"))
        for number, descriptor in enumerate((os.open("stdin", os.O_RDONLY), output, errors)):
            os.dup2(descriptor, number)
        os.closerange(3, 64)
    else:
        os.close(errors)
        if not program["interactive"]:
            os.close(job)
    limit(config)
    if config["filter"]:
        confine(config["filter"])
    module.__name__ = "__main__" if script else MODULE
    sys.modules[module.__name__] = module  # where dataclasses and pickle look for it
    names = module.__dict__
    if script:
        sys.argv = ["program", *test.get("arguments", [])]
        os._exit(run_script(program, names))
    evaluate(test, program, names, job, output, config["output"])
    os._exit(0)  # no handler or thread of the program delays the end


class Watch:
    """Ends a process that uses more processor time, idles longer, or writes more than it may."""

    def __init__(self, config: dict[str, Any], sink: int) -> None:
        self._seconds, self._most, self._sink = config["seconds"], config["output"], sink
        self._patience = config["seconds"]  # seconds that all tests together may idle

    def follow(self, pid: int, output: int, errors: int, *, idles: bool) -> None:
        """Pass on what it writes, until it ends or is ended. `idles`: it waits for others in between."""
        allowed = 3 * self._seconds if idles else max(self._patience, self._seconds / 20)
        process = os.pidfd_open(pid)
        poller = select.poll()
        for descriptor in (output, errors, process):
            poller.register(descriptor, select.POLLIN)
        clock = ~pid << 3 | 2  # its processor time
        begun = looked = time.monotonic()
        used, idle, written, said, why, over = 0.0, 0.0, 0, b"", "", False
        while not why:
            ready = poller.poll(0 if over else 1000 * TICK)
            if over and not ready:
                break
            for descriptor, _ in ready:
                if descriptor == process:
                    over = True
                    poller.unregister(process)
                elif not (data := os.read(descriptor, 1 << 16)):
                    poller.unregister(descriptor)
                elif descriptor == errors:
                    said = (said + data)[-_ERRORS:]
                elif written + len(data) > self._most:
                    why = f"stopped after {self._most} bytes of output"
                else:
                    written += len(data)
                    self._send(b"o", data)
            now = time.monotonic()
            if over or now - looked < TICK:
                continue
            cpu = time.clock_gettime(clock)
            idle += now - looked if cpu - used < 1e-4 else 0.0  # a process that waits for a processor gets some of it
            looked, used = now, cpu
            if cpu > self._seconds:
                why = f"stopped after {self._seconds:g} s of processor time"
            elif idle > allowed:
                why = f"stopped after {idle:.3g} s without doing anything"
            elif now - begun > 3 * self._seconds:
                why = f"stopped after {3 * self._seconds:g} s"
        if not over:
            os.kill(pid, 9)
        _, status, used_up = os.wait4(pid, 0)
        for descriptor in (process, output, errors):
            os.close(descriptor)
        self._patience -= 0.0 if idles else idle
        used = used_up.ru_utime + used_up.ru_stime + idle
        lasted = time.monotonic() - begun  # a third of it counts at least: short naps are no idling
        if said:
            self._send(b"e", said)
        self._send(b"x", to_json([status, why, max(used, lasted / 3)]))

    def _send(self, kind: bytes, data: bytes) -> None:
        write_all(self._sink, kind + len(data).to_bytes(4, "big") + data)


def start() -> tuple[int, int, int]:
    """Fork. Returns the ends of the new process's output and error pipes on this side, and its id (0 inside it)."""
    (output, output_in), (errors, errors_in) = os.pipe(), os.pipe()
    pid = os.fork()
    ours, theirs = (output, errors), (output_in, errors_in)
    for descriptor in theirs if pid else ours:
        os.close(descriptor)
    return (*(ours if pid else theirs), pid)


def serve(config: dict[str, Any], module: ModuleType, job: int, sink: int) -> None:
    """Read the program, then start a process for every test that the judge sends, one after the other."""
    program = read_frame(job)
    if not program:
        return
    watch = Watch(config, sink)
    for name in _PRELOADED:
        if f"import {name}" in program["source"] or f"from {name} " in program["source"]:
            __import__(name)
    gc.freeze()
    gc.enable()
    poller = select.poll()
    poller.register(job, select.POLLIN)
    while poller.poll()[0][1] & select.POLLIN:
        output, errors, pid = start()
        if not pid:
            os.close(sink)
            try:
                child(config, program, module, job, (output, errors))
            finally:
                os._exit(1)
        watch.follow(pid, output, errors, idles=program["interactive"])
        if program["interactive"]:
            return  # it could read `job`, so what follows there may be its choice


def main() -> None:
    """Command line: the settings, as Python writes a dict."""
    gc.disable()  # nothing of what is loaded here is garbage
    config = eval(sys.argv[1], {})
    job, sink = os.dup(0), os.dup(1)
    if config["user"]:
        drop_user(config["user"])
    sys.path += config["paths"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # they come with the module site, which is not loaded
    prelude: dict[str, Any] = {}
    for name in config["packages"]:
        __import__(name)
    exec(config["prelude"], prelude)
    prelude.pop("__builtins__", None)
    module = type(sys)(MODULE)
    module.__dict__.update(prelude)  # once for all tests: it writes to the memory of every name
    compile("", "", "exec")  # what the first compilation sets up, the process of each test then has already
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):  # discard what a program prints, unless it is asked for
        os.dup2(null, standard)
    os.close(null)
    write_all(sink, b"ready\n")
    serve(config, module, job, sink)
    os._exit(0)


if __name__ == "__main__":
    main()
