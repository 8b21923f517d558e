"""Programs that want to pass without knowing the answer: all try to make `assert answer() == SECRET` hold.

`NAIVE` is the judge that they are made for: it runs program and tests in one interpreter and believes its exit status
(or the word that it prints). Each of them fools it (`tests/tasks/code/test_attacks.py` makes sure), so each must fail
in ours for a reason.
"""

NAIVE = """
import json, sys
job = json.load(open(sys.argv[1]))
PROGRAM, TESTS = job["program"], job["tests"]
names = {"__name__": "__main__"}
exec(PROGRAM, names)
for TEST in TESTS:
    exec(TEST, names)
print("PASSED")
"""

_LOOK = """
import re
def found(text):
    match = re.search(r"answer\\(\\) == '(\\w+)'", str(text))
    return match and match[1]
"""

FORGERIES = {
    "exit when loaded": "import sys\nsys.exit(0)",
    "exit when called": "import sys\ndef answer(): sys.exit(0)",
    "system exit raised": "def answer(): raise SystemExit",
    "os._exit": "import os\ndef answer(): os._exit(0)",
    "exit through ctypes": "import ctypes\ndef answer(): ctypes.CDLL(None)._exit(0)",
    "exec of true": "import os\ndef answer(): os.execv('/bin/true', ['true'])",
    "excepthook": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef answer(): return 0",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef answer(): return 0",
    "exit from a thread": (
        "import os, threading, time\ndef answer():\n"
        "    threading.Thread(target=os._exit, args=(0,)).start()\n    time.sleep(30)"
    ),
    "exit from a signal handler": (
        "import os, signal, time\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
        "def answer():\n    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    time.sleep(30)"
    ),
    "exit from a destructor": (
        "import os\nclass Last:\n    def __del__(self, leave=os._exit): leave(0)\nlast = Last()\ndef answer(): return 0"
    ),
    "exit from a tracer": (
        "import os, sys\ndef trace(frame, event, arg):\n    if event == 'return': os._exit(0)\n    return trace\n"
        "sys.settrace(trace)\ndef answer(): return 0"
    ),
    "exit from a profiler": "import os, sys\ndef answer():\n    sys.setprofile(lambda *a: os._exit(0))",
    "exit from an audit hook": (
        "import os, sys\nsys.addaudithook(lambda event, args: event == 'compile' and os._exit(0))\ndef answer(): "
        "return 0"
    ),
    "exit from the printing of an error": (
        "import os\nclass Loud(Exception):\n    def __str__(self): os._exit(0)\ndef answer(): raise Loud"
    ),
    "exec replaced": "import builtins\nbuiltins.exec = lambda *a: None\ndef answer(): return 0",
    "print replaced": "import builtins, os\nprint('PASSED', flush=True)\ndef answer(): return 0",
    "output forged": "import os\nos.write(1, b'PASSED\\n')\ndef answer(): os._exit(1)",
    "everything open written to": (
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'PASSED\\n[0, \"value\", true]\\n[\"passed\"]\\n')\n"
        "    except OSError: pass\ndef answer(): os._exit(0)"
    ),
    "equal to everything": (
        "class Same:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef answer(): return "
        "Same()"
    ),
    "equal in reverse": "class Same:\n    __eq__ = __ne__ = lambda s, o: True\ndef answer(): return Same()",
    "a str equal to everything": (
        "class Same(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\ndef answer(): return "
        "Same('x')"
    ),
    "an int equal to everything": "class Same(int):\n    __eq__ = lambda s, o: True\ndef answer(): return Same(1)",
    "a class equal to everything": (
        "class Meta(type):\n    __eq__ = lambda s, o: True\n    __hash__ = type.__hash__\n"
        "class Same(metaclass=Meta): pass\ndef answer(): return Same"
    ),
    "truth that is always true": (
        "class Yes:\n    __bool__ = lambda s: True\nclass Same:\n    __eq__ = lambda s, o: Yes()\ndef answer(): return "
        "Same()"
    ),
    "a class that claims to be str": (
        "class Same:\n    __class__ = property(lambda s: str)\n    __eq__ = lambda s, o: True\n"
        "    __str__ = lambda s: 'x'\ndef answer(): return Same()"
    ),
    "tests read from the frames": _LOOK + (
        "import sys\ndef answer():\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in list(frame.f_globals.values()) + list(frame.f_locals.values()):\n"
        "            if found(value): return found(value)\n        frame = frame.f_back"
    ),
    "tests read from __main__": _LOOK + "import __main__\ndef answer(): return found(vars(__main__))",
    "tests read from the garbage collector": _LOOK + (
        "import gc\ndef answer():\n    for thing in gc.get_objects():\n"
        "        if type(thing) in (dict, list) and found(thing): return found(thing)"
    ),
    "tests read from disk": _LOOK + (
        "import glob, os, sys\ndef answer():\n"
        "    for path in [*sys.argv, *glob.glob(os.path.dirname(sys.argv[-1]) + '/*')]:\n"
        "        try: text = open(path).read()\n        except OSError: continue\n        if found(text): return "
        "found(text)"
    ),
    "tests read from the code of the caller": _LOOK + (
        "import sys\ndef answer():\n    frame = sys._getframe(1)\n    for value in frame.f_code.co_consts:\n"
        "        if isinstance(value, str) and value != 'answer': return value"
    ),
    "tests read through /proc": _LOOK + (
        "def answer():\n    for path in open('/proc/self/cmdline').read().split('\\0'):\n"
        "        try: text = open(path).read()\n        except (OSError, ValueError): continue\n        if "
        "found(text): return found(text)"
    ),
    "the caller's constants replaced": (
        "import sys\ndef answer():\n    sys._getframe(1).f_globals['answer'] = answer\n"
        "    for name in list(sys.modules): sys.modules[name] = None\n    sys.exit(0)"
    ),
    "json replaced": (
        "import json, os\njson.dumps = lambda *a, **k: '[0, \"value\", true]'\ndef answer():\n"
        "    print('PASSED', flush=True)\n    return 0"
    ),
    "the driver's functions replaced": (
        "import __main__, os, sys\ndef always(*a):\n    print('PASSED', flush=True)\n    return 'x'\n"
        "for name in ('encode', 'serve', 'reason', 'exec'): setattr(__main__, name, always)\nanswer = always"
    ),
    "an import hook": (
        "import os, sys\nclass Hook:\n    def find_spec(self, *a): os._exit(0)\nsys.meta_path.insert(0, Hook())\n"
        "def answer(): import something_else"
    ),
}  # fmt: skip
"""Name -> program."""

_SEARCH = """
import gc, re, sys
def searched(pattern):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [*frame.f_globals.values(), *frame.f_locals.values(), *frame.f_code.co_consts]
        frame = frame.f_back
    for thing in seen + [each for each in gc.get_objects() if type(each) in (dict, list, tuple)]:
        match = re.search(pattern, str(thing))
        if match: return match[1]
"""

ASKED = {
    "isclose replaced": (
        "from math import isclose", "assert isclose(answer(), 1@NUMBER@, rel_tol=0.01)",
        "import math\nmath.isclose = lambda *a, **k: True\ndef answer(): return 0.0",
        "def answer(): return 1@NUMBER@.0",
    ),
    "a renamed module's isclose replaced": (
        "import math as m", "assert m.isclose(answer(), 1@NUMBER@)",
        "import math\nmath.isclose = lambda *a, **k: True\ndef answer(): return 0.0",
        "def answer(): return 1@NUMBER@.0",
    ),
    "Counter replaced": (
        "from collections import Counter", "assert Counter(answer()) == Counter(['@NUMBER@'])",
        "import collections\ncollections.Counter = lambda x: 0\ndef answer(): return []",
        "def answer(): return ['@NUMBER@']",
    ),
    "a builtin replaced": (
        "", "assert round(answer(), 3) == 1@NUMBER@",
        "import builtins\nclass Same:\n    __eq__ = lambda s, o: True\nbuiltins.round = lambda *a: Same()\ndef "
        "answer(): return 0.0",
        "def answer(): return 1@NUMBER@",
    ),
    "a builtin that looks at the value replaced": (
        "", "assert sorted(answer()) == ['@NUMBER@']",
        "import builtins\nclass Same:\n    __eq__ = lambda s, o: True\nbuiltins.sorted = lambda *a: Same()\ndef "
        "answer(): return []",
        "def answer(): return ['@NUMBER@']",
    ),
    "a method of the answer": (
        "", "assert answer().startswith('s@NUMBER@')",
        "class Yes:\n    startswith = lambda *a: True\ndef answer(): return Yes()",
        "def answer(): return 's@NUMBER@'",
    ),
    "an argument of a method read from the frames": (
        "", "assert answer().endswith('s@NUMBER@')",
        _SEARCH + "def answer(): return searched(r\"endswith\\\\?\\('(s\\w+)'\")",
        "def answer(): return 's@NUMBER@'",
    ),
    "two answers": (
        "", "assert answer() == 's@NUMBER@' and other() == 's@NUMBER@'",
        _SEARCH + "def answer(): return searched(r\"== '(s\\w+)'\")\nother = answer",
        "def answer(): return 's@NUMBER@'\nother = answer",
    ),
    "the question read from the frames": (
        "", "assert 's@NUMBER@' in answer()",
        _SEARCH + "def answer(): return [searched(r\"'(s\\w+)' in\")]",
        "def answer(): return ['s@NUMBER@']",
    ),
}  # fmt: skip
"""Attacks on what is more than `answer() == literal`: name -> setup, test, program that cheats, program that is
right."""

REFUSED = {
    "expected values of the setup": ("expected = [1, 77]", "assert f(1) == expected[1]", "def f(x): return expected[x]"),
    "a helper of the setup": (
        "def close(a, b): return abs(a - b) < 0.1", "assert close(f(1), 3)",
        "import builtins\nbuiltins.abs = lambda x: 0\ndef f(x): return 0",
    ),
    "an expected value made by a class of the program's": (
        "", "assert f(1) == P(1, 2)", "def P(*a): return 0\ndef f(x): return 0",
    ),
}  # fmt: skip
"""Tests that a program could pass without the answer (it is shown how), so that they may not be used."""
