"""The system calls that a sandboxed program may not make, as a seccomp filter for `bwrap --seccomp`.

Called by `tasks/code/sandbox.py`. Namespaces and limits already confine the program. The filter denies what they still allow:
child processes (one process, so that one limit bounds all memory), memory that outlives its mapping (memfd, System V), sockets of
families without namespaces (vsock, netlink), the kernel's keyring, tracing, new namespaces and mounts.

Invariant: for a machine whose system calls are not listed here there is no filter, and the sandbox refuses to start.
"""

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF: ld abs, jeq, jge, jset, ret
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # bit of the x32 calls of an x86-64 kernel: the same calls with other numbers
_CLONE_THREAD = 0x00010000
_CLONE3 = 435
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 447)
"""Denied calls with the same number on every machine: io_uring_*, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,
pidfd_getfd, process_madvise, mount_setattr, memfd_secret."""

# per machine: name of the architecture for seccomp, number of clone, and the denied calls
_X86_64 = {
    "socket": 41, "socketpair": 53, "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240,
    "memfd_create": 319, "fork": 57, "vfork": 58, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
    "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "quotactl": 179, "acct": 163, "syslog": 103,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
    "reboot": 169, "swapon": 167, "swapoff": 168, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "clock_adjtime": 305, "personality": 135, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "vhangup": 153,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "socketpair": 199, "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "mq_open": 180,
    "memfd_create": 279, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "add_key": 217,
    "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "unshare": 97, "setns": 268,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "fanotify_init": 262, "quotactl": 60, "acct": 89, "syslog": 116, "init_module": 105, "finit_module": 273,
    "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294, "reboot": 142, "swapon": 224, "swapoff": 225,
    "settimeofday": 170, "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266, "personality": 92, "vhangup": 58,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, 56, _X86_64), "aarch64": (0xC00000B7, 220, _AARCH64)}


def denied_calls() -> bytes | None:
    """The filter as an array of `struct sock_filter`; None on a machine whose system calls are not listed.

    A denied call fails with EPERM. clone3 fails with ENOSYS, so the C library uses clone, whose flags a filter can read: it allows
    threads and denies processes. A call of another architecture ends the process.
    """
    known = _MACHINES.get(platform.machine())
    if known is None:
        return None
    architecture, clone, denied = known

    def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    refuse = _step(_RETURN, _ERRNO | errno.EPERM)
    allow = _step(_RETURN, _ALLOW)
    program = [
        _step(_LOAD, _ARCHITECTURE) + _step(_EQUAL, architecture, 1, 0) + _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER) + _step(_AT_LEAST, _X32, 0, 1) + _step(_RETURN, _KILL),
        _step(_EQUAL, _CLONE3, 0, 1) + _step(_RETURN, _ERRNO | errno.ENOSYS),
        *(_step(_EQUAL, number, 0, 1) + refuse for number in sorted({*denied.values(), *_COMMON})),
        _step(_EQUAL, clone, 1, 0) + allow,
        _step(_LOAD, _ARGUMENT_0) + _step(_ANY_BIT, _CLONE_THREAD, 0, 1) + allow + refuse,
    ]
    return b"".join(program)
