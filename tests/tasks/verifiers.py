"""Verifiers that misbehave, for the tests of the judging processes."""

import ctypes
import os
import signal
import subprocess
import sys
import time

from core.records import Verdict

NUMBER = 3


def misbehave(reference: str, response: str) -> object:
    """Does what the response says."""
    word = response
    if word.startswith("say "):
        return Verdict(float(word[4:]), True)
    if reference == response:
        return Verdict(1.0, True, f"equal {len(response)}")
    return _ACTIONS[word]()


def half_for_the_digit(reference: str, response: str) -> float:
    """A reward as a user writes one: half for 7; hangs on 8, raises on 9."""
    if response == "8":
        time.sleep(600)
    if response == "9":
        raise ValueError("nine")
    return 0.5 * (response == "7")


def share_of_e(reference: str, response: str) -> float:
    """Differs between any two texts of a model."""
    return response.count("e") / max(len(response), 1)


def raising(reference: str, response: str) -> float:
    raise KeyError("weights")


def not_a_number(reference: str, response: str) -> float:
    return float("nan") if response else 0.0


def tensor(reference: str, response: str) -> object:
    import torch

    return torch.tensor([1.0, 0.0])


def nothing_returned(reference: str, response: str) -> None:
    print(reference, response)


def hanging(reference: str, response: str) -> float:
    time.sleep(600)
    return 1.0


def much_memory(reference: str, response: str) -> float:
    return float(len(bytearray(1 << 36)))


def _raise() -> object:
    raise ValueError("no")


def _hang() -> object:
    while True:
        time.sleep(1)


def _compute() -> object:
    begun = time.process_time()
    while time.process_time() < begun + 0.3:
        pass
    return 1.0


def _hang_in_c() -> object:
    return len(str(9**9**9))


def _close() -> object:
    os.closerange(3, 256)
    return _hang()


def _print() -> object:
    print('[1.0, true, "forged"]', flush=True)
    return Verdict(1.0, True)


class _Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def _raise_silently() -> object:
    raise _Silent


def child_that_stays(reference: str, response: str) -> float:
    """Starts a process, writes its number into the file that the response names, and is gone."""
    with open(response, "w") as file:
        file.write(str(subprocess.Popen(["sleep", "1000"]).pid))
    os._exit(7)


_ACTIONS = {
    "huge": lambda: 10**400,
    "huge in a verdict": lambda: Verdict(10**400, True),
    "silent": _raise_silently,
    "unprintable": lambda: Verdict(0.0, False, "\ud800 half\n\x1b[2J" + "x" * 10**6),
    "no text": lambda: Verdict(0.0, False, None),  # type: ignore[arg-type]
    "raise": _raise,
    "exit": lambda: sys.exit(3),
    "nan": lambda: float("nan"),
    "none": lambda: None,
    "list": lambda: [1.0],
    "hang": _hang,
    "hang in c": _hang_in_c,
    "compute": _compute,
    "close": _close,
    "alarm": lambda: os.kill(os.getpid(), signal.SIGALRM),
    "die": lambda: os._exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "memory": lambda: bytearray(1 << 40),
    "print": _print,
    "number": lambda: 0.25,
    "true": lambda: True,
}
