"""Programs that attack the time and the memory of the judge that reads their answers, not its verdict.

By the format of their tests: `assert attack() == 1`, a script that must print 1, a call of `attack`, or a check that
calls it.
"""

_EVERY_PIPE = "import os\nfor fd in range(1, 64):\n    try:\n        for _ in range(300): os.write(fd, {})\n    except OSError: pass\n"
_ANSWER = "def attack(): return 1\n"
_RETURN = "def attack(): return {}\n"
_PRINT = "import sys\ntext = {}\nwhile True: sys.stdout.write(text)\n"


def _one_answer(part: str) -> str:
    """It writes one answer of just under 4 MiB, made of many parts, as nobody but the driver should."""
    return (
        f"import os\npart = {part}\ndata = b'[0,\"value\",[\"l\",' + part * ((4190000) // len(part)) + b'1]]\\n'\n"
        "for fd in range(3, 64):\n    try:\n        rest = data\n        while rest: rest = rest[os.write(fd, rest):]\n"
        "    except OSError: pass\n" + _ANSWER
    )


def _written(data: str) -> str:
    """It writes `data` into every pipe, 300 times, and then answers."""
    return _EVERY_PIPE.format(data) + _ANSWER


ASSERTS = {
    "empty lines": _written("b'\\n' * 65536"),
    "lines of a space": _written("b' \\n' * 32768"),
    "carriage returns": _written("b'\\r' * 65536"),
    "brackets": _written("b'[]\\n' * 20000"),
    "numbers as lines": _written("b'1\\n' * 32768"),
    "answers to no question": _written("b'[7, \"value\", 1]\\n' * 4000"),
    "answers of a negative number": _written("b'[-1, \"value\", 1]\\n' * 3500"),
    "the same answer again": _written("b'[0, \"value\", 2]\\n' * 4000"),
    "failures without end": _written("b'[\"failed\", \"\"]\\n' * 4000"),
    "syntax errors without end": _written("b'[\"syntax\", \"no\"]\\n' * 3500"),
    "half an answer": _written("b'[0, \"value\", [' * 4000"),
    "one line of brackets": _written("b'[' * 65536"),
    "one line of quotes": _written("b'\"' * 65536"),
    "one line of digits": _written("b'9' * 65536"),
    "one line of escapes": _written("b'\\\\u0041' * 10000"),
    "lines of half a character": _written("b'\\xff\\n' * 32768"),
    "lines of NUL": _written("b'\\0\\n' * 32768"),
    "byte order marks": _written("b'\\xef\\xbb\\xbf\\n' * 16000"),
    "lines in UTF-16": _written("'[]\\n'.encode('utf-16') * 8000"),
    "a frame of its own": _written("b'x\\0\\0\\0\\7[0,\"\",0]' * 5000"),
    "a large frame of its own": _written("b'o\\xff\\xff\\xff\\xff' * 13000"),
    "an answer of lists": _one_answer("b'[],'"),
    "an answer of encoded lists": _one_answer("b'[\"l\"],'"),
    "an answer of objects": _one_answer("b'{},'"),
    "an answer of objects with names": _one_answer("b''.join(b'{\"%d\":[]},' % i for i in range(1000))"),
    "an answer of floats": _one_answer("b'.1,'.replace(b'.', b'0.')"),
    "an answer of long numbers": _one_answer("b'123456789012345678,'"),
    "an answer of texts": _one_answer("b''.join(b'\"%d\",' % i for i in range(1000))"),
    "an answer of sets": _one_answer("b'[\"s\",1],'"),
    "an answer of fractions": _one_answer("b'[\"q\",\"0x1\",\"0x2\"],'"),
    "an answer of numbers of many digits": _one_answer("b'1' * 4000 + b','"),
    "many entries": _RETURN.format("{i: i for i in range(20000)}"),
    "many members": _RETURN.format("set(range(20000))"),
    "a huge number": _RETURN.format("1 << 60_000_000"),
    "a huge fraction": "from fractions import Fraction\n" + _RETURN.format("Fraction(1 << 9_000_000, 3)"),
    "a huge decimal": "from decimal import Decimal\n" + _RETURN.format("Decimal('1e999999999999999999')"),
    "a decimal of many digits": "from decimal import Decimal\n" + _RETURN.format("Decimal('9' * 3_000_000)"),
    "a huge text": _RETURN.format("'x' * (1 << 27)"),
    "a text of escapes": _RETURN.format("chr(0x10ffff) * 2_000_000"),
    "huge bytes": _RETURN.format("b'x' * (1 << 26)"),
    "deep lists": "def attack():\n    v = 1\n    for _ in range(99): v = [v] * 2\n    return v\n",
    "a list that repeats itself": "def attack():\n    v = [0] * 1000\n    for _ in range(9): v = [v] * 10\n    return v\n",
    "an endless generator": "def attack():\n    while True: yield 1\n",
    "a list of generators": _RETURN.format("[(i for i in range(9)) for _ in range(10000)]"),
    "a mapping without end": (
        "class D(dict):\n    def items(self):\n        while True: yield 1, 1\ndef attack(): return D()\n"
    ),
    "a text of its own": "class S(str):\n    def __str__(self): return 'x' * 10**9\ndef attack(): return S('x' * 10**7)\n",
    "an equality of its own": "class I(int):\n    def __eq__(self, other):\n        while True: pass\ndef attack(): return I(2)\n",
    "a huge exception": "def attack(): raise ValueError('x' * 10**8)\n",
    "an exception that prints without end": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef attack(): raise E\n"
    ),
    "a name of many letters": "def attack(): return type('x' * 10**7, (), {})()\n",
    "a chain of exceptions": (
        "def attack():\n    e = None\n    for i in range(10**6):\n        n = ValueError(i)\n        n.__cause__ = e\n "
        "       e = n\n    raise e\n"
    ),
    "a group of exceptions": "def attack(): raise ExceptionGroup('x' * 10**6, [ValueError('y' * 10**6)] * 1000)\n",
    "an error in every destructor": (
        "class A:\n    def __del__(self): raise ValueError('x' * 10**6)\ndef attack():\n    for _ in range(10**6): "
        "A()\n    return 2\n"
    ),
    "an exit that waits": "import atexit, time\natexit.register(time.sleep, 1000)\ndef attack(): return 2\n",
    "threads that stay": (
        "import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()\ndef "
        "attack(): return 2\n"
    ),
    "a trace of every line": (
        "import sys\ndef t(*a): return t\nsys.settrace(t)\ndef attack():\n    while True: pass\n"
    ),
    "an alarm without end": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 1e-5, "
        "1e-5)\n"
        "def attack():\n    while True: pass\n"
    ),
    "builtins replaced": (
        "import builtins\nfor name in ('isinstance', 'len', 'print', 'list', 'map', 'repr', 'str'):\n"
        "    setattr(builtins, name, lambda *a, **k: [0] * 10**6)\ndef attack(): return 2\n"
    ),
    "another encoding of values": (
        "import sys\nfor m in list(sys.modules.values()):\n    if hasattr(m, 'encode_value'):\n"
        "        m.encode_value = lambda *a: ['l'] * 3_000_000\n        m.to_json = lambda v: b'[' * 10**7\ndef "
        "attack(): return 2\n"
    ),
    "a locale of its own": "import locale, os\nos.environ['LC_ALL'] = 'x' * 10**5\nlocale.setlocale(locale.LC_ALL, 'C')\ndef attack(): return 2\n",
    "imports without end": (
        "import sys, types\nfor i in range(10**6): sys.modules[str(i)] = types.ModuleType(str(i))\ndef attack(): "
        "return 2\n"
    ),
    "a hash that collides": (
        "class K(int):\n    def __hash__(self): return 0\ndef attack(): return {K(i): 1 for i in range(5000)}\n"
    ),
    "garbage without end": "def attack():\n    while True:\n        v = []\n        v.append(v)\n",
    "a regular expression of many groups": "import re\ndef attack(): return re.match('(a?)' * 90 + 'a' * 90, 'a' * 90).groups() * 10**5\n",
    "a large source": "x = [" + "1," * 1_000_000 + "]\n" + _ANSWER.replace("1", "2"),
    "a wide source": "x = " + "+".join(["1"] * 20_000) + "\n" + _ANSWER.replace("1", "2"),
    "many names": "\n".join(f"v{i} = {i}" for i in range(60_000)) + "\n" + _ANSWER.replace("1", "2"),
}  # fmt: skip
SCRIPTS = {
    "script: empty lines": _PRINT.format("'\\n' * 65536"),
    "script: separators of lines": _PRINT.format("'\\x1c\\x85\\u2028' * 20000"),
    "script: words": _PRINT.format("'1 ' * 32768"),
    "script: words in lines": _PRINT.format("'1\\n' * 32768"),
    "script: one word": _PRINT.format("'1' * 65536"),
    "script: spaces": _PRINT.format("' ' * 65536"),
    "script: the answer, then empty lines": "import sys\nprint(1)\nfor _ in range(240): sys.stdout.write('\\n' * 65536)\nprint(2)\n",
    "script: empty lines, then half the answer": "import sys\nfor _ in range(250): sys.stdout.write('\\n' * 65536)\nprint('1' * 9)\n",
    "script: half characters": "import os\nwhile True: os.write(1, b'\\xff' * 65536)\n",
    "script: characters of four bytes": "import os\nwhile True: os.write(1, '\\U0001f600'.encode() * 16384)\n",
    "script: numbers of many digits": _PRINT.format("'9' * 400 + 'e999 '"),
    "script: errors without end": "import sys\nwhile True: sys.stderr.write('\\n' * 65536)\n",
    "script: one error of many lines": "raise ValueError('\\n' * 10**7)\n",
    "script: input read again and again": "while True:\n    open('/dev/stdin').read()\n",
    "script: an exit of many letters": "import sys\nsys.exit('x' * 10**8)\n",
}  # fmt: skip
CALLS = {
    "call: empty lines": _written("b'\\n' * 65536"),
    "call: a large list": _RETURN.format("[1] * 4_000_000"),
    "call: many entries": _RETURN.format("{str(i): i for i in range(200000)}"),
}
CHECKS = {
    "check: empty lines": "def attack():\n    import os\n    while True:\n        for fd in range(3, 64):\n            try: os.write(fd, b'\\n' * 65536)\n            except OSError: pass\n",
    "check: one line": "def attack():\n    import os\n    while True:\n        for fd in range(3, 64):\n            try: os.write(fd, b'[' * 65536)\n            except OSError: pass\n",
    "check: a large list": _RETURN.format("[[]] * 1_000_000"),
}  # fmt: skip
