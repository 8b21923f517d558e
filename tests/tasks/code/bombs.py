"""Programs that want to use up the machine, hang the judge or live on. None may; none has a pass to gain.

`attack()` is called; whatever it returns is no answer to the test.
"""

_CATCH = "    while True:\n        try:\n            {}\n        except BaseException: pass\n"

BOMBS = {
    "busy loop": "def attack():\n    while True: pass",
    "busy loop while loading": "while True: pass\ndef attack(): return 1",
    "sleep": "import time\ndef attack(): time.sleep(1000)",
    "every signal ignored": (
        "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ndef attack():\n    while True: pass"
    ),
    "every exception caught": "def attack():\n" + _CATCH.format("while True: pass"),
    "one long call": "def attack(): return len(str(9 ** 9 ** 9))",
    "regular expression": "import re\ndef attack(): return re.match('(a+)+$', 'a' * 40 + 'b')",
    "fork bomb": "import os\ndef attack():\n" + _CATCH.format("os.fork()"),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(65536)\ndef attack():\n"
        + _CATCH.format("threading.Thread(target=time.sleep, args=(1000,)).start()")
    ),
    "memory bomb": "def attack():\n    held = []\n    while True: held.append(bytearray(1 << 20))",
    "one large allocation": "def attack(): return bytearray(1 << 40)",
    "large pages of memory": (
        "import mmap\ndef attack():\n    held = []\n    while True:\n        held.append(mmap.mmap(-1, 1 << 24))\n"
        "        held[-1].write(b'x' * (1 << 24))"
    ),
    "memory in shared segments": (
        "import ctypes\nc = ctypes.CDLL(None)\ndef attack():\n    for i in range(100):\n"
        "        if c.shmget(0, 1 << 28, 0o1600) < 0: raise OSError('refused')\n    return 1"
    ),
    "files in /tmp": (
        "def attack():\n    for i in range(1000): open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))\n    return 1"
    ),
    "empty files in /tmp": "import os\ndef attack():\n    for i in range(200000): os.mknod(f'/tmp/{i}')\n    return 1",
    "folders": "import os\ndef attack():\n    for i in range(200000): os.mkdir(f'{i}')\n    return 1",
    "links": "import os\ndef attack():\n    for i in range(200000): os.symlink('x' * 4000, f'{i}')\n    return 1",
    "one large file": "def attack():\n    with open('/tmp/x', 'wb') as f: f.truncate(1 << 40)\n    return 1",
    "open files": "def attack():\n    held = [open('/dev/null') for _ in range(10000)]\n    return 1",
    "limits raised": (
        "import resource\ndef attack():\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    return 1"
    ),
    "endless printing": "def attack():\n    while True: print('x' * 1000)",
    "endless output": (
        "import os\ndef attack():\n    while True:\n        for fd in range(3, 64):\n"
        "            try: os.write(fd, b'x' * 65536)\n            except OSError: pass"
    ),
    "endless lines": (
        "import os\ndef attack():\n    while True:\n        for fd in range(3, 64):\n"
        "            try: os.write(fd, b'[0]\\n' * 9999)\n            except OSError: pass"
    ),
    "large answer": "def attack(): return 'x' * (1 << 24)",
    "deep answer": "def attack():\n    value = []\n    for _ in range(100000): value = [value]\n    return value",
    "deep lines": (
        "import os\ndef attack():\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'[' * 200000 + b'\\n')\n        except OSError: pass"
    ),
    "number of many digits": (
        "import os\ndef attack():\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'[0, \"value\", ' + b'9' * 200000 + b']\\n')\n        except OSError: pass"
    ),
    "endless answer": "class L(list):\n    def __iter__(self):\n        while True: yield 1\ndef attack(): return L()",
    "cyclic answer": "def attack():\n    value = []\n    value.append(value)\n    return value",
    "colliding answer": "def attack(): return {i * (2 ** 61 - 1) for i in range(3000)}",
    "endless recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef attack(): return attack()",
    "segmentation fault": "import ctypes\ndef attack(): return ctypes.string_at(0)",
    "abort": "import os\ndef attack(): os.abort()",
    "stop": "import os, signal\ndef attack(): os.kill(os.getpid(), signal.SIGSTOP)",
    "everything closed": "import os, time\ndef attack():\n    os.closerange(0, 256)\n    time.sleep(1000)",
    "everything closed and gone": "import os\ndef attack():\n    os.closerange(0, 256)\n    os._exit(0)",
    "the init killed": (
        "import os, signal, time\ndef attack():\n    for number in (9, 15, 19):\n        os.kill(1, number)\n    "
        "time.sleep(1000)"
    ),
    "no death with the parent": (
        "import ctypes, os, time\ndef attack():\n    ctypes.CDLL(None).prctl(1, 0)\n    os.setsid()\n    "
        "time.sleep(1000)"
    ),
    "nested source": "def attack(): return " + "(" * 100_000 + ")" * 100_000,
    "source of many tokens": "def attack(): return " + "-" * 300_000 + "1",
    "zero bytes": "def attack():\0 return 1",
    "half a character": "def attack(): return '\ud800'",
}  # fmt: skip
"""Name -> program."""

_NO_PLACE = r"OSError: \[Errno 30\] Read-only file system"
_COMPARED = "passed 0 of 1 tests"

REASONS = {
    "memory bomb": "MemoryError",
    "one large allocation": "MemoryError",
    "large pages of memory": r"\[Errno 12\] Cannot allocate memory",
    "memory in shared segments": "OSError: refused",
    "files in /tmp": _NO_PLACE,
    "empty files in /tmp": _NO_PLACE,
    "folders": _NO_PLACE,
    "links": _NO_PLACE,
    "one large file": _NO_PLACE,
    "open files": r"\[Errno 24\] Too many open files",
    "limits raised": "ValueError: not allowed to raise maximum limit",
    "endless output": "stopped after [0-9]+ bytes of output",
    "endless lines": "stopped after [0-9]+ bytes of output",
    "large answer": "a value too large to compare",
    "deep answer": _COMPARED,
    "deep lines": _COMPARED,
    "number of many digits": _COMPARED,
    "cyclic answer": _COMPARED,
    "colliding answer": _COMPARED,
    "segmentation fault": "killed by signal 11",
    "abort": "killed by signal 6",
    "the init killed": r"PermissionError: \[Errno 1\] Operation not permitted",
    "everything closed and gone": "ended itself with status 0",
    "nested source": "does not compile: SyntaxError: too many nested parentheses",
    "source of many tokens": "does not compile: (MemoryError|RecursionError)",
    "zero bytes": "does not compile: SyntaxError: source code string cannot contain null bytes",
    "half a character": "does not compile: UnicodeEncodeError",
}
"""Name -> what the verdict says, given time: which of the limits it is that ends it."""
STOPPED = r"stopped after \S+ s( of processor time| without doing anything|$)|used up its processor time or memory|MemoryError"
"""What it says of all others."""
