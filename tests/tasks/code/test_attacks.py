"""Attacks on the judging of programs: no forged pass, no way out, no bomb that reaches further than its own sandbox."""

import ctypes
import json
import os
import re
import secrets
import site
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import tasks.code.programs
from core.errors import ConfigError, DataError
from core.records import Verdict
from tasks.code import confinement
from tasks.code.formats import read_mbpp
from tasks.code.outcomes import FAILS, RAISES, Boxes
from tasks.code.programs import judge_program
from tasks.code.sandbox import Limits, Program, Sandbox, check_sandbox
from tests.tasks.code.bombs import BOMBS, REASONS, STOPPED
from tests.tasks.code.escapes import ESCAPES
from tests.tasks.code.forgeries import ASKED, FORGERIES, NAIVE, REFUSED
from tests.tasks.code.test_programs import MBPP

PATIENT = Limits(seconds=60.0, memory_mib=512)  # for what ends by itself, on a machine that may be busy
SHORT = Limits(seconds=0.4, memory_mib=256)  # for what uses its time up: 1.2 s by the clock


def judge_in(sandbox: Sandbox, program: str, *tests: str, setup: str = "") -> Verdict:
    return judge_program(
        Boxes(sandbox, sandbox), json.dumps({"format": "asserts", "setup": setup, "tests": tests}), program
    )


@pytest.fixture(scope="module")
def confined(bubblewrap: None) -> Iterator[Sandbox]:
    sandbox = Sandbox("bubblewrap", PATIENT)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def short(bubblewrap: None) -> Iterator[Sandbox]:
    sandbox = Sandbox("bubblewrap", SHORT)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def unconfined() -> Iterator[Sandbox]:
    """The mode that protects nothing: the attacks on it are harmless, and show that they work."""
    sandbox = Sandbox("unsafe-subprocess", PATIENT)
    yield sandbox
    sandbox.close()


def fools_a_naive_judge(program: str, test: str, folder: Path, setup: str = "") -> bool:
    """By its exit status or by what it prints."""
    (folder / "judge.py").write_text(NAIVE)
    (folder / "job.json").write_text(json.dumps({"program": program, "tests": [setup, test]}))
    command = [sys.executable, "-S", str(folder / "judge.py"), str(folder / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    return done.returncode == 0 or "PASSED" in done.stdout


def test_there_are_enough_attacks() -> None:
    assert len(FORGERIES) + len(ESCAPES) + len(BOMBS) >= 40


@pytest.mark.parametrize("name", FORGERIES)
def test_no_pass_is_forged(name: str, confined: Sandbox, tmp_path: Path) -> None:
    secret = "s" + secrets.token_hex(8)
    test = f"assert answer() == '{secret}'"
    assert fools_a_naive_judge(FORGERIES[name], test, tmp_path), "the attack itself does not work"
    verdict = judge_in(confined, FORGERIES[name], test, test)
    assert not verdict.correct
    assert verdict.reward == RAISES or verdict.detail.startswith("passed 0 of 2 tests")
    honest = judge_in(confined, f"def answer(): return '{secret}'", test, test)
    assert honest == Verdict(1.0, True)


@pytest.mark.parametrize("name", ASKED)
def test_no_question_is_answered_by_the_program(name: str, confined: Sandbox, tmp_path: Path) -> None:
    number = str(secrets.randbelow(10**9))
    setup, test, cheat, honest = (text.replace("@NUMBER@", number) for text in ASKED[name])
    assert fools_a_naive_judge(cheat, test, tmp_path, setup), "the attack itself does not work"
    verdict = judge_in(confined, cheat, test, setup=setup)
    assert (verdict.correct, verdict.judge_failed) == (False, False)
    assert judge_in(confined, honest, test, setup=setup) == Verdict(1.0, True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_forged_is_no_test(name: str, tmp_path: Path) -> None:
    setup, test, cheat = REFUSED[name]
    assert fools_a_naive_judge(cheat, test, tmp_path, setup), "the attack itself does not work"
    with pytest.raises(DataError, match="test 1"):
        read_mbpp({"text": "?", "test_list": [test], "test_setup_code": setup, "code": ""}, MBPP, "row 1")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What there is to reach outside the sandbox."""
    folder, token = tmp_path_factory.mktemp("outside"), f"t{secrets.token_hex(8)}"
    (folder / "canary").write_text("canary")
    shared = Path("/dev/shm") / token
    shared.write_text("canary")
    key = 0x5EC00000 + os.getpid() % 0xFFFFF
    segment = ctypes.CDLL(None).shmget(key, 4096, 0o1600)
    assert segment >= 0
    tcp = socket.create_server(("127.0.0.1", 0), backlog=16)
    named, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    named.bind(str(folder / "socket"))
    abstract.bind(f"\0{token}")
    named.listen(16)
    abstract.listen(16)
    with (folder / "canary").open() as held:
        yield {
            "CANARY": str(folder / "canary"),
            "FOLDER": str(folder),
            "TOKEN": token,
            "SOURCE": str(Path(tasks.code.programs.__file__)),
            "PACKAGES": site.getsitepackages()[0],
            "PARENT": str(os.getpid()),
            "DESCRIPTOR": str(held.fileno()),
            "TCP": str(tcp.getsockname()[1]),
            "SHARED": str(key),
            "HOST": os.uname().nodename,
        }
    for each in (tcp, named, abstract):
        each.close()
    ctypes.CDLL(None).shmctl(segment, 0, None)  # IPC_RMID
    shared.unlink()


def filled(program: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        program = program.replace(f"@{name}@", value)
    return program


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outside_is_reached(name: str, confined: Sandbox, unconfined: Sandbox, outside: dict[str, str]) -> None:
    program, test = filled(ESCAPES[name], outside), "assert attack() == True"
    assert not judge_in(confined, program, test).correct
    assert not (Path(outside["FOLDER"]) / "written").exists()
    assert judge_in(unconfined, program, test).correct, "the attack itself does not work"
    (Path(outside["FOLDER"]) / "written").unlink(missing_ok=True)


LEAVING = """
import os, sys
def attack():
    left = 0
    for folder in ["/tmp", ".", "/", "/dev", *sys.path, os.path.dirname(os.__file__), "/usr/lib"]:
        for name in ("@TOKEN@", "sitecustomize.py", "usercustomize.py", "@TOKEN@.pth"):
            try:
                open(os.path.join(folder, name), "x").write("raise SystemExit")
                left += 1
            except OSError:
                pass
    return left
"""


def test_nothing_is_left_for_the_next_program(confined: Sandbox) -> None:
    """There is no place that it can write to."""
    program = filled(LEAVING, {"TOKEN": secrets.token_hex(8)})
    for _ in range(2):
        assert judge_in(confined, program, "assert attack() == 0").correct


def test_what_is_inside(confined: Sandbox) -> None:
    """Who and where a program is: nobody, without capabilities to gain, in an almost empty environment and file
    system."""
    program = """
import os, ctypes
def inside(): return (os.getcwd(), dict(os.environ))
def nobody(): return min(os.getresuid() + os.getresgid()) > 60000 and os.getgroups() in ([], [65534])
def root(): return {name.partition(".")[0] for name in os.listdir("/")} - {"bin", "lib", "lib32", "lib64", "@TOP@"}
def no_new_privileges(): return ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)
def capabilities(): return sum(ctypes.CDLL(None).prctl(23, i, 0, 0, 0) == 1 for i in range(40))
def limits():
    from resource import getrlimit, RLIMIT_CPU, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_CORE
    return [getrlimit(each) for each in (RLIMIT_CPU, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_CORE)]
def descriptors():
    found = 0
    for fd in range(64):
        try: os.fstat(fd)
        except OSError: continue
        found += 1
    return found
"""
    verdict = judge_in(
        confined,
        program.replace("@TOP@", Path(sys.base_prefix).resolve().parts[1]),
        "assert inside() == ('/tmp', {'PWD': '/tmp', 'PYTHONHASHSEED': '0', 'OPENBLAS_NUM_THREADS': '1', 'LC_CTYPE': "
        "'C.UTF-8'})",
        "assert nobody() == True",
        "assert root() == {'usr', 'tmp', 'dev', 'sandbox_driver', 'sandbox_values'}",
        f"assert limits() == [(60, 61), ({512 << 20}, {512 << 20}), (0, 0), (64, 64), (64, 64), (0, 0)]",
        "assert no_new_privileges() == 1",
        "assert capabilities() == 0",  # not even in the bounding set
        "assert descriptors() == 4",  # /dev/null three times and the output
    )
    assert verdict.correct, verdict


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_reaches_no_further_than_its_sandbox(name: str, short: Sandbox, confined: Sandbox) -> None:
    begun = time.monotonic()
    verdict = judge_in(confined if name in REASONS else short, BOMBS[name], "assert attack() == 'nothing'")
    assert not verdict.correct
    assert not verdict.judge_failed
    assert re.search(REASONS.get(name, STOPPED), verdict.detail)
    assert time.monotonic() - begun < 400  # the sandbox stops it after 1.2 s, and the machine may be busy
    assert judge_in(confined, "def attack(): return 'nothing'", "assert attack() == 'nothing'").correct


def test_deep_lines_do_not_reach_a_question(confined: Sandbox) -> None:
    """An answer that no driver writes, nested deeper than a function of the judge could follow."""
    program = (
        "import os\ndef attack():\n    deep = b'[\"l\",' * 900 + b'1' + b']' * 900\n"
        "    for fd in range(3, 64):\n        try: os.write(fd, b'[0, \"value\", ' + deep + b']\\n')\n        except "
        "OSError: pass"
    )
    verdict = judge_in(confined, program, "assert attack() == 1 or 0 == 1")
    assert (verdict.reward, verdict.judge_failed) == (FAILS, False)


def test_a_spare_sandbox_that_cannot_start_fails_nobody(
    bubblewrap: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sandbox = Sandbox("bubblewrap", PATIENT)
    program, test = "def answer(): return 1", "assert answer() == 1"
    assert judge_in(sandbox, program, test).correct  # and a spare one waits
    monkeypatch.setenv("PATH", str(tmp_path))
    assert judge_in(sandbox, program, test).correct
    assert judge_in(sandbox, program, test).judge_failed
    sandbox.close()


def sandboxes(mebibytes: int) -> list[int]:
    """Process ids of the sandboxes with this much memory, which is on their command lines: others may be running."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:  # it is just ending
            continue
        if any(word.startswith("/sandbox_driver.py") for word in line) and f"'mebibytes': {mebibytes}," in line[-1]:
            found.append(process.pid)
    return found


THREADS = """
import threading, time
threading.stack_size(65536)
def started():
    for number in range(5000):
        try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        except RuntimeError: return number
"""


def test_a_program_has_few_threads_also_when_root_starts_it(confined: Sandbox) -> None:
    assert judge_in(confined, THREADS, "assert 50 < started() < 64").correct


def test_a_control_group_bounds_the_tasks_where_root_cannot_become_another_user(bubblewrap: None) -> None:
    """In a process of its own, because the group belongs to the judging process."""
    code = (
        "import tasks.code.sandbox as s\nimport tasks.code.confinement as c\n"
        "s.TASKS, c._root_can_drop = 1000, lambda _: False\n"
        f"program = s.Program({THREADS!r})\nsandbox = s.Sandbox('bubblewrap', s.Limits(60.0, 512))\n"
        "with sandbox.session(program) as session: found = session.evaluate(['started()'])[0].values[0]\n"
        "sandbox.close()\nprint(c.bounded(['true']) != ['true'], found < 256)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False" or done.stdout == "True True\n"


def test_programs_are_refused_where_nothing_bounds_their_threads(
    bubblewrap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root in a container that may neither change the user nor make a group; an ordinary user is always bounded."""
    monkeypatch.setattr(confinement, "_root_can_drop", lambda _: False)
    monkeypatch.setattr(confinement, "_task_group", lambda _: None)
    if os.geteuid():
        check_sandbox("bubblewrap", PATIENT)
        return
    with pytest.raises(ConfigError, match="threads"):
        check_sandbox("bubblewrap", Limits(seconds=10.0, memory_mib=512))


def test_a_test_leaves_nothing_for_the_next(bubblewrap: None) -> None:
    program = "import os\nprint(os.path.exists('kept'))\nos.rename('stdin', 'kept')\nos.chmod('kept', 0)"
    with Sandbox("bubblewrap", Limits(60.0, 512)).session(Program(program)) as session:
        assert [session.run({"input": "x"}).output for _ in range(2)] == [b"False\n"] * 2


def test_nothing_outlives_its_verdict(bubblewrap: None) -> None:
    """Threads, processes that left the session, and those whose parent's death would not end them."""
    patient, hasty = (Sandbox("bubblewrap", Limits(seconds, memory_mib=257)) for seconds in (60.0, 0.4))
    lingering = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\ndef attack(): return 1"
    )
    assert judge_in(patient, lingering, "assert attack() == 1").correct
    for name in ("no death with the parent", "stop", "everything closed"):
        assert not judge_in(hasty, BOMBS[name], "assert attack() == 1").correct
    patient.close()
    hasty.close()
    deadline = time.monotonic() + 60
    while left := sandboxes(257):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_judge_that_is_killed_takes_its_sandbox_along(bubblewrap: None) -> None:
    code = (
        "import sys\nfrom tasks.code.sandbox import *\nsandbox = Sandbox('bubblewrap', Limits(300.0, 258))\n"
        "with sandbox.session(Program('import time\\ntime.sleep(10000)')) as session:\n"
        "    print('begun', flush=True)\n    session.evaluate(['1'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout
        assert judge.stdout.readline() == "begun\n"
        deadline = time.monotonic() + 60
        while not sandboxes(258):
            assert time.monotonic() < deadline, "no sandbox came up"
            time.sleep(0.05)
        judge.kill()
    while left := sandboxes(258):
        assert time.monotonic() < deadline + 60, left
        time.sleep(0.05)
