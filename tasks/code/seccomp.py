"""The system calls that a sandbox may not make, as seccomp filters: one for the sandbox, one for each program in it.

Namespaces and limits already confine the program. The filters deny what they still allow: child processes (one process
per test, so that one limit bounds all memory), new files, locks on files of the host, signals to other processes,
memory that outlives its mapping (memfd, System V), sockets of families without namespaces (vsock, netlink), the
kernel's keyring, tracing, new namespaces and mounts. Only the programs' processes have the second filter.

Invariant: for a machine whose system calls are not listed here there is no filter, and the sandbox refuses to start.
"""

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF: ld abs, jeq, jge, jset, ret
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument has 8 bytes
_X32 = 0x40000000  # bit of the x32 calls of an x86-64 kernel: the same calls with other numbers
_CLONE_THREAD = 0x00010000
_NEW_FILE = 0o100 | 0x400000  # O_CREAT, __O_TMPFILE
_LOCKS = (6, 7, 37, 38, 1024)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE
_CLONE3, _OPENAT2, _PIDFD_SEND_SIGNAL = 435, 437, 424
OWN_PROCESS = 0x7EC0FFEE  # stands in the programs' filter for the id of the process that installs it
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 447)
"""Denied calls with the same number on every machine: io_uring_*, open_tree, move_mount, fsopen, fsconfig, fsmount,
fspick, pidfd_getfd, process_madvise, mount_setattr, memfd_secret."""

# per machine: name of the architecture for seccomp, number of clone, and the denied calls
_X86_64 = {
    "socket": 41, "socketpair": 53, "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240,
    "memfd_create": 319, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "add_key": 248,
    "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "unshare": 272,
    "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "fanotify_init": 300, "quotactl": 179, "acct": 163, "syslog": 103, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "swapon": 167,
    "swapoff": 168, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
    "personality": 135, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "vhangup": 153,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "socketpair": 199, "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "mq_open": 180,
    "memfd_create": 279, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "add_key": 217,
    "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "unshare": 97,
    "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "fanotify_init": 262, "quotactl": 60, "acct": 89, "syslog": 116, "init_module": 105,
    "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294, "reboot": 142, "swapon": 224,
    "swapoff": 225, "settimeofday": 170, "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266, "personality": 92,
    "vhangup": 58,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Machine:
    """System calls of a processor that depend on it."""

    architecture: int  # its name for seccomp
    denied: Mapping[str, int]  # to everything in the sandbox
    forks: Sequence[int]  # start a process
    locks: Sequence[int]  # lock a file
    makes: Sequence[int]  # make a file, folder, link or device
    clone: int
    fcntl: int
    opens: Mapping[int, int]  # call -> index of its flags
    signals: Sequence[int]  # their first argument is a process


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, _X86_64, forks=(57, 58), locks=(73,), makes=(83, 85, 86, 88, 133, 258, 259, 265, 266),
        clone=56, fcntl=72, opens={2: 1, 257: 2}, signals=(62, 129, 200, 234, 297),
    ),
    "aarch64": _Machine(
        0xC00000B7, _AARCH64, forks=(), locks=(32,), makes=(33, 34, 36, 37),
        clone=220, fcntl=25, opens={56: 2}, signals=(129, 130, 131, 138, 240),
    ),
}  # fmt: skip


def sandbox_filter() -> bytes:
    """The filter of a sandbox, as an array of `struct sock_filter`. Raises KeyError on a machine that is not listed."""
    machine = _MACHINES[platform.machine()]
    return _start(machine) + b"".join(map(_deny, sorted({*machine.denied.values(), *_COMMON}))) + _ALLOWED


def program_filter() -> bytes:
    """The filter of a program's process, with `OWN_PROCESS` for its id. Raises as `sandbox_filter`. A denied call fails
    with EPERM, making a file with EROFS. clone3 and openat2 fail with ENOSYS, so the C library uses clone and openat,
    whose flags a filter can read: clone may start threads, but no processes."""
    machine = _MACHINES[platform.machine()]
    rules = [_deny(call) for call in (*machine.forks, *machine.locks, _PIDFD_SEND_SIGNAL)]
    rules += [_deny(call, errno.EROFS) for call in machine.makes]
    rules += [_deny(call, errno.ENOSYS) for call in (_CLONE3, _OPENAT2)]
    rules.append(_branch(machine.clone, 0, [(_ANY_BIT, _CLONE_THREAD)], hit=_ALLOWED, miss=_refusal()))
    rules.append(_branch(machine.fcntl, 1, [(_EQUAL, lock) for lock in _LOCKS], hit=_refusal(), miss=_ALLOWED))
    for call, flags in machine.opens.items():
        rules.append(_branch(call, flags, [(_ANY_BIT, _NEW_FILE)], hit=_refusal(errno.EROFS), miss=_ALLOWED))
    rules += [_branch(call, 0, [(_EQUAL, OWN_PROCESS)], hit=_ALLOWED, miss=_refusal()) for call in machine.signals]
    return _start(machine) + b"".join(rules) + _ALLOWED


def _start(machine: _Machine) -> bytes:
    """End the process for a call of another architecture. Load the number of the call."""
    return (
        _step(_LOAD, _ARCHITECTURE)
        + _step(_EQUAL, machine.architecture, 1, 0)
        + _step(_RETURN, _KILL)
        + _step(_LOAD, _NUMBER)
        + _step(_AT_LEAST, _X32, 0, 1)
        + _step(_RETURN, _KILL)
    )


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


_ALLOWED = _step(_RETURN, _ALLOW)


def _refusal(error: int = errno.EPERM) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _deny(call: int, error: int = errno.EPERM) -> bytes:
    return _step(_EQUAL, call, 0, 1) + _refusal(error)


def _branch(call: int, argument: int, tests: Sequence[tuple[int, int]], *, hit: bytes, miss: bytes) -> bytes:
    """For the call `call`: `hit` if one of the tests holds for the low half of an argument, otherwise `miss`."""
    body = _step(_LOAD, _ARGUMENTS + 8 * argument)
    for left, (code, value) in zip(range(len(tests), 0, -1), tests, strict=True):
        body += _step(code, value, left, 0)  # over the other tests and `miss`
    body += miss + hit
    return _step(_EQUAL, call, 0, len(body) // 8) + body
