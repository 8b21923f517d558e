"""Programs that want out of the sandbox. Each `attack()` returns True when it got out.

`@NAME@` stands for what the test prepares outside. Each one gets out where nothing confines it (`unsafe-subprocess`:
`tests/tasks/code/test_attacks.py` makes sure), so each must fail in the sandbox for a reason.
"""

ESCAPES = {
    "read a file": "def attack(): return open('@CANARY@').read() == 'canary'",
    "read the system's users": "def attack(): return 'root' in open('/etc/passwd').read()",
    "read the judge's source": "def attack(): return 'judge_program' in open('@SOURCE@').read()",
    "import an installed package": "import sys\nsys.path.append('@PACKAGES@')\nimport pytest\ndef attack(): return True",
    "write a file": "def attack():\n    open('@FOLDER@/written', 'w').write('x')\n    return True",
    "symbolic link": (
        "import os\ndef attack():\n    os.symlink('@CANARY@', 'link-@TOKEN@')\n    return open('link-@TOKEN@').read() "
        "== 'canary'"
    ),
    "hard link": (
        "import os\ndef attack():\n    os.link('@CANARY@', '@FOLDER@/hard')\n    return open('@FOLDER@/hard').read() "
        "== 'canary'"
    ),
    "way up from the working directory": (
        "import os\ndef attack(): return open(os.path.join(*['..'] * 30, '@CANARY@'.lstrip('/'))).read() == 'canary'"
    ),
    "root of another process": "def attack(): return open('/proc/@PARENT@/root@CANARY@').read() == 'canary'",
    "file descriptors of another process": (
        "import os\ndef attack(): return open('/proc/@PARENT@/fd/@DESCRIPTOR@').read() == 'canary'"
    ),
    "command line of another process": "def attack(): return bool(open('/proc/@PARENT@/cmdline').read())",
    "memory of another process": "def attack(): return bool(open('/proc/@PARENT@/maps').read())",
    "signal to the judge": "import os\ndef attack():\n    os.kill(@PARENT@, 0)\n    return True",
    "signal to everybody": "import os\ndef attack():\n    os.kill(-1, 0)\n    return True",
    "TCP": "import socket\ndef attack():\n    socket.create_connection(('127.0.0.1', @TCP@), 5)\n    return True",
    "UDP": (
        "import socket\ndef attack():\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    return s.sendto(b'x', ('127.0.0.1', @TCP@)) == 1"
    ),
    "listening": "import socket\ndef attack():\n    socket.create_server(('127.0.0.1', 0))\n    return True",
    "unix socket": (
        "import socket\ndef attack():\n    s = socket.socket(socket.AF_UNIX)\n    s.connect('@FOLDER@/socket')\n    "
        "return True"
    ),
    "abstract unix socket": (
        "import socket\ndef attack():\n    s = socket.socket(socket.AF_UNIX)\n    s.connect('\\0@TOKEN@')\n    return "
        "True"
    ),
    "netlink": "import socket\ndef attack():\n    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\n    return True",
    "socket pair": "import socket\ndef attack(): return len(socket.socketpair()) == 2",
    "shared memory file": "def attack(): return open('/dev/shm/@TOKEN@').read() == 'canary'",
    "shared memory of the system": (
        "import ctypes\ndef attack(): return ctypes.CDLL(None).shmget(@SHARED@, 4096, 0) >= 0"
    ),
    "memory without an address": "import os\ndef attack(): return os.memfd_create('x') > 0",
    "start a program": "import subprocess\ndef attack(): return subprocess.run(['/bin/true']).returncode == 0",
    "fork": (
        "import os\ndef attack():\n    child = os.fork()\n    if not child: os._exit(0)\n    return os.waitpid(child, "
        "0)[1] == 0"
    ),
    "posix_spawn": (
        "import os\ndef attack(): return os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1] == 0"
    ),
    "lock on a file of the host": (
        "import fcntl\ndef attack():\n    fcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n    return "
        "True"
    ),
    "record lock on a file of the host": (
        "import fcntl\ndef attack():\n    fcntl.lockf(open('/usr/bin/env'), fcntl.LOCK_SH | fcntl.LOCK_NB)\n    return "
        "True"
    ),
    "trace": "import ctypes\ndef attack(): return ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "new user namespace": "import ctypes\ndef attack(): return ctypes.CDLL(None).unshare(0x10000000) == 0",
    "name of the machine": "import os\ndef attack(): return os.uname().nodename == '@HOST@'",
    "devices": "import os\ndef attack(): return len(os.listdir('/dev')) > 4",
    "kernel settings": "def attack(): return bool(open('/proc/sys/kernel/core_pattern').read())",
    "kernel objects": "import os\ndef attack(): return bool(os.listdir('/sys'))",
    "list the root": "import os\ndef attack(): return 'proc' in os.listdir('/')",
}  # fmt: skip
"""Name -> program."""
