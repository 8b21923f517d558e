"""What confines a sandbox from outside: the bubblewrap command, an unprivileged user, a control group.

The kernel does not limit the processes of root, also not of root inside a user namespace that root made. So a judge
that runs as root lets bubblewrap make the namespaces as root, and the driver becomes a user without any rights before
it reads a program. Where that is not allowed, a control group bounds the number of tasks. `sandbox.py` tries out which
of them works, and refuses programs if neither does.
"""

import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from core.errors import ConfigError
from tasks.code.seccomp import sandbox_filter

PYTHON = os.path.realpath(sys.executable)  # the interpreter itself, not a virtual environment's link to it
FLAGS = ("-s", "-S", "-P", "-B")  # no user packages, no site, no modules from the script's folder, no byte code
PACKAGES = "/packages"  # where a sandbox has the packages that the user allows
FOLDER_BYTES = 256 << 20  # bound on the files that the driver writes for a test: its input, and those of a checker
MOST_TASKS = 256  # processes and threads in the control group of a judge: two sandboxes, each program may have 64
_GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_FIRST_USER = 1 << 30  # the first of the user ids without an account that programs run as. Each judge has its own.
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")


class SandboxError(Exception):
    """The sandbox itself failed: no program ran."""


def bubblewrap() -> str:
    """The path of bubblewrap. Raises SandboxError without it."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxError("bubblewrap (bwrap) is not installed")
    return path


def program_user() -> int:
    """The user that the driver becomes, as a number; 0 if it already has no rights, or cannot change them."""
    return _FIRST_USER + os.getpid() if os.geteuid() == 0 and _root_can_drop(bubblewrap()) else 0


@cache
def _root_can_drop(bwrap: str) -> bool:
    """Whether root can make namespaces without a user namespace, and become another user in them."""
    become = f"import os; os.setuid({_FIRST_USER})"
    command = [bwrap, *_as_root(), "--ro-bind", "/", "/", "--", PYTHON, *FLAGS, "-c", become]
    return subprocess.run(command, env={}, capture_output=True, check=False).returncode == 0


def _as_root() -> list[str]:
    capabilities = [option for name in ("SETUID", "SETGID", "SETPCAP") for option in ("--cap-add", f"CAP_{name}")]
    return [*_NAMESPACES, "--cap-drop", "ALL", *capabilities]


def bubblewrap_command(seccomp: int, files: Sequence[Path], packages: Sequence[str]) -> list[str]:
    """`bwrap ... python driver`, to be followed by the driver's argument. Raises SandboxError. `seccomp`: descriptor of
    the filter. `files`: the driver and what it imports. `packages`: installed ones that programs may import."""
    options = _as_root() if program_user() else [
        *_NAMESPACES, "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"
    ]  # fmt: skip
    options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    options += ["--setenv", "PYTHONHASHSEED", "0"]  # a program's result may depend on the order of a set
    options += ["--setenv", "OPENBLAS_NUM_THREADS", "1", "--ro-bind", "/usr", "/usr"]
    for place in ("/bin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(place):
            options += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            options += ["--ro-bind", place, place]
    prefix = os.path.realpath(sys.base_prefix)
    if not prefix.startswith("/usr"):
        for parent in reversed(Path(prefix).parents[:-1]):
            options += ["--dir", str(parent)]  # readable by everybody, unlike a parent that bubblewrap makes by itself
        options += ["--ro-bind", prefix, prefix]
    for folder in ("site-packages", "dist-packages"):
        path = f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/{folder}"
        if os.path.isdir(path):
            options += ["--tmpfs", path, "--remount-ro", path]
    options += ["--dir", "/dev"]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--dir", PACKAGES] if packages else []
    for package in package_paths(packages):
        options += ["--ro-bind", str(package), f"{PACKAGES}/{package.name}"]
    for file in files:
        options += ["--ro-bind", str(compiled(file)), f"/{file.stem}{compiled(file).suffix}"]
    options += ["--symlink", "/tmp/stdin", "/dev/stdin"]
    options += ["--perms", "0777", "--size", str(FOLDER_BYTES), "--tmpfs", "/tmp"]
    options += ["--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(seccomp)]
    return [bubblewrap(), *options, "--", PYTHON, *FLAGS, f"/{files[0].stem}{compiled(files[0]).suffix}"]


@cache
def compiled(file: Path) -> Path:
    """The byte code of a file, which starts 5 ms earlier; the source where none can be written."""
    try:
        return Path(py_compile.compile(str(file), doraise=True) or file)
    except OSError:
        return file


def package_paths(packages: Sequence[str]) -> list[Path]:
    """Files and folders of installed packages, with the libraries that wheels keep beside them. Raises ConfigError."""
    paths = []
    for name in packages:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or spec.origin is None:
            raise ConfigError(f"task.code.packages: {name!r} is not installed; install it or leave it out")
        place = Path(spec.origin)
        place = place.parent if spec.submodule_search_locations else place
        paths += [place, *place.parent.glob(f"{name}.libs")]
    return paths


def filter_file() -> IO[bytes]:
    """The sandbox's seccomp filter in a file, as bubblewrap reads it. Raises SandboxError on an unknown processor."""
    try:
        program = sandbox_filter()
    except KeyError:
        raise SandboxError("no list of system calls for this processor") from None
    file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    file.write(program)
    file.seek(0)
    return file


def bounded(command: Sequence[str]) -> list[str]:
    """The command, in this judge's control group if root cannot become a user whose tasks the kernel counts."""
    group = None if os.geteuid() or program_user() else _task_group(os.getpid())
    enter = ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(group / "cgroup.procs")] if group else []
    return [*enter, *command]


@cache
def _task_group(process: int) -> Path | None:
    """The control group of this judging process, if one can be made. Removes those of judges that have ended."""
    for parent in _GROUPS:
        with suppress(OSError):
            for old in parent.glob("retrospect-*"):
                if not Path(f"/proc/{old.name.partition('-')[2]}").exists():
                    with suppress(OSError):  # busy, or another judge removes it
                        old.rmdir()
            group = parent / f"retrospect-{process}"
            group.mkdir(exist_ok=True)
            (group / "pids.max").write_text(str(MOST_TASKS))
            return group
    return None
