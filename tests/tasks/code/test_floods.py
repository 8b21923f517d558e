"""What a program writes or returns costs the judge little time and memory, whatever it is."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tasks.code.outcomes import Boxes
from tasks.code.programs import judge_program
from tasks.code.sandbox import Limits, Sandbox
from tests.processes import LONG
from tests.tasks.code.floods import ASSERTS, CALLS, CHECKS, SCRIPTS

SHORT = Limits(seconds=0.2, memory_mib=256)
SECONDS = 5.0
"""Most processor time of the judge for one verdict, as a program of MBPP may use itself. The slowest takes 0.5 s alone.
In a process with millions of other objects it takes several times as long, because the collector looks at those, too."""
MEBIBYTES = 150
"""Most memory of the judge for one verdict: a program may write 16 MiB, in answers of 4 MiB."""
REFERENCES = {
    "assert": {"format": "asserts", "setup": "", "tests": ["assert attack() == 1"]},
    "script": {"format": "script", "setup": "", "inputs": ["1"], "outputs": ["1"]},
    "call": {"format": "calls", "setup": "", "fn_name": "attack", "inputs": [[]], "outputs": [1]},
    "check": {
        "format": "check",
        "prompt": "def attack():\n    'The number one.'\n",
        "entry": "attack",
        "tests": ["def check(candidate):\n    for _ in range(3): assert candidate() == 1"],
    },
}
ATTACKS = [
    (kind, name, program)
    for kind, programs in (("assert", ASSERTS), ("script", SCRIPTS), ("call", CALLS), ("check", CHECKS))
    for name, program in programs.items()
]


@pytest.fixture(scope="module")
def short(bubblewrap: None) -> Iterator[Sandbox]:
    with closing(Sandbox("bubblewrap", SHORT)) as sandbox:
        yield sandbox


def peak() -> float:
    """The most memory that this process has had since the last `forget_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def test_there_are_enough_attacks() -> None:
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize(("kind", "name", "program"), ATTACKS, ids=[name for _, name, _ in ATTACKS])
def test_a_flood_costs_the_judge_little(kind: str, name: str, program: str, short: Sandbox) -> None:
    forget_peak()
    before, begun, used = peak(), time.monotonic(), time.thread_time()
    verdict = judge_program(Boxes(short, short), json.dumps(REFERENCES[kind]), program)
    spent, lasted, memory = time.thread_time() - used, time.monotonic() - begun, peak() - before
    print(f"{name}: {spent:.2f} s of the judge, {lasted:.2f} s, {memory:.0f} MiB: {verdict}")
    assert not verdict.judge_failed
    assert not verdict.correct
    assert spent < SECONDS
    assert lasted < LONG
    assert memory < MEBIBYTES
