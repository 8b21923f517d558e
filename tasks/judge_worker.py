"""A judging process: it reads chunks of cases from its input and writes one verdict per line.

`judge_pool.py` starts `python -m tasks.judge_worker MODULE:FUNCTION SECONDS PATIENCE GIB FAILED_REWARD [SETTINGS]`.
With SETTINGS the function returns the verifier for them. Its first line is `ready ASKS` or `cannot start: ...`.
Then lines are JSON: a list of `core.parts.judge.Case` in, a `Verdict` for each out. A reward that judges several
responses in a call answers when all are judged. What the verifier prints goes to the error stream.

Invariant: every case gets a verdict, for anything that the verifier raises or returns. Only a hang or a crash of the
interpreter is left to the driver. A verdict may take SECONDS of processor time; if the driver is killed, a worker that
sleeps ends after PATIENCE seconds.
"""

import json
import math
import os
import resource
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from core import imports
from core.errors import ConfigError
from core.imports import member, module_with
from core.parts.judge import Asks, Case
from core.records import Verdict
from tasks.rewards.shapes import NOT_APPLIED, RewardFunction, plain_number, read_shape

_OURS = (__file__, str(Path(__file__).with_name("rewards")), imports.__file__)
_LIBRARIES = tuple({path for name in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))})
_SENT = ("reference", "response", "where", "columns", "ids", "prompt", "query")  # of a case
MOST_REWARD = 1e6  # largest reward: above it float32 cannot tell advantages apart, and its square soon overflows
MOST_DETAIL = 300  # most characters of a verdict's reason
GRACE = 2.0  # seconds over the limit after which a worker ends itself: the driver has not ended it, so it must be dead


def load_verifier(path: str, settings: str | None = None) -> RewardFunction:
    """The function at 'module:function', or with settings what it returns for them. Raises ConfigError.
    `prepare_judge()` of the module, if any, loads things before the time limit of the first verdict."""
    module, _, name = path.partition(":")
    try:
        home = module_with(module, name)
        found = member(home, name)
        if hasattr(home, "prepare_judge"):
            home.prepare_judge()
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigError(
            f"verifier {path!r}: {type(error).__name__}: {error}{_place(error)}; write it as 'module:function'"
        ) from error
    if not callable(found):
        raise ConfigError(f"verifier {path!r}: {type(found).__name__} cannot be called; name a function")
    return read_shape(found if settings is None else found(settings), path)


def _place(error: BaseException) -> str:
    """Where in the user's code it was raised: " (mine.py, line 3)"; empty outside. A SyntaxError names its line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    frames = [frame for frame in frames if "importlib" not in frame.filename]
    frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def dump_cases(cases: Sequence[Case], asks: Asks) -> str:
    """One line of JSON for `load_cases`, with no more than reference and response if a judge asks for nothing else.
    Episodes are left out."""
    names = ("reference", "response") if asks.nothing else _SENT
    return json.dumps([{name: getattr(case, name) for name in names} for case in cases], default=str)


def load_cases(line: str) -> list[Case]:
    """What `dump_cases` wrote."""
    return [Case(**fields) for fields in json.loads(line)]


def load_verdict(line: str | bytes) -> Verdict:
    """A verdict as a judging process writes it."""
    fields = json.loads(line)
    return Verdict(**fields | {name: tuple(map(tuple, fields[name])) for name in ("steps", "parts")})


def judge_cases(
    reward: RewardFunction, cases: Sequence[Case], failed_reward: float, patience: float | None = None
) -> list[Verdict]:
    """A verdict for each case. A call that raises for several of them is made again for each."""
    if reward.alone is not None:
        return [judge_one(partial(reward.alone, case), failed_reward) for case in cases]
    assert reward.together is not None
    results: Sequence[object]
    try:
        results = reward.together(cases, patience)
    except (Exception, SystemExit) as error:
        if len(cases) > 1:
            return [judge_cases(reward, [case], failed_reward, patience)[0] for case in cases]
        results = [error]
    return [judge_one(partial(_returned, result), failed_reward) for result in results]


def _returned(result: object) -> object:
    if isinstance(result, BaseException):
        raise result
    return result


def judge_one(verify: Callable[[], object], failed_reward: float) -> Verdict:
    """The verdict; `failed_reward` with the reason if the verifier raises or returns no finite reward. It may
    return a Verdict, a bool or a number (correct when above 0), also of numpy, torch and the like."""

    def _failed(detail: str) -> Verdict:
        return Verdict(failed_reward, False, printable(detail), judge_failed=True)

    try:
        result = verify()
        if result is NOT_APPLIED:
            return NOT_APPLIED
        if (number := plain_number(result)) is not None:
            result = Verdict(number, number > 0, share=number if 0.0 < number < 1.0 else None)
        if not isinstance(result, Verdict):
            return _failed(f"judge returned {type(result).__name__}, expected a number or a Verdict")
        steps = tuple((int(end), float(reward)) for end, reward in result.steps)
        rewards = (result.reward, *(reward for _, reward in steps))
        if not all(math.isfinite(reward) and abs(reward) <= MOST_REWARD for reward in rewards):
            return _failed(f"judge returned a reward of {result.reward}" + (f" and steps of {steps}" if steps else ""))
        # the fields of a user's Verdict may be anything, and may raise when they are read
        detail = printable(str(result.detail))
        share = None if result.share is None else float(result.share)
        if share is not None and not 0.0 <= share <= 1.0:
            return _failed(f"judge returned a share of {share}, which is not between 0 and 1")
        return Verdict(float(result.reward), bool(result.correct), detail, bool(result.judge_failed), steps, (), share)
    except (Exception, SystemExit) as error:
        place = _place(error)
        return _failed(f"judge raised {said(error)}"[: MOST_DETAIL - len(place)] + place)


def seconds_of(responses: int, limit: float, patience: float) -> float:
    """Wall-clock time of one call of a verifier."""
    return patience + limit * (responses - 1)


def said(error: BaseException) -> str:
    """The text of an exception, also if its __str__ raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, which cannot be printed"


def printable(text: str) -> str:
    """One short line for files and terminals; unprintable characters and lone surrogates are escaped."""
    escaped = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in text[:MOST_DETAIL])
    return "".join(escaped)[:MOST_DETAIL]


def main() -> None:
    """Command line of the worker: judge chunks until the input ends."""
    path, (limit, patience, gib, failed_reward) = sys.argv[1], map(float, sys.argv[2:6])
    settings = sys.argv[6] if len(sys.argv) > 6 else None
    sink = os.fdopen(os.dup(1), "w", buffering=1, encoding="ascii")  # by line: the driver must know which item hangs
    os.dup2(2, 1)  # prints of the verifier must not reach the protocol
    for timer in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timer, signal.SIG_DFL)  # the default action ends the process even inside a long C call
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    if gib:
        resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30), int(gib * 2**30)))
    try:
        reward = load_verifier(path, settings)
    except ConfigError as error:
        sink.write(f"cannot start: {' '.join(str(error).split())}\n")
        return
    sink.write(f"ready {json.dumps(reward.asks)}\n")
    for line in sys.stdin:
        cases = load_cases(line)
        for part in [cases] if reward.asks.batch else [[case] for case in cases]:
            signal.setitimer(signal.ITIMER_PROF, limit * len(part))  # processor time of this process, all threads
            signal.setitimer(signal.ITIMER_REAL, seconds_of(len(part), limit, patience) + GRACE)
            for verdict in judge_cases(reward, part, failed_reward, patience):
                sink.write(json.dumps(asdict(verdict)) + "\n")
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
