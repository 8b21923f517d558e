"""Programs per second: `python -m bench.sandbox [--quick]`.

Judges canonical solutions with `tasks.judge_pool.JudgePool`, as the loop does: those of MBPP by their asserts, and
programs with ten tests each that read standard input (APPS). Each program gets a new bubblewrap sandbox. It alternates
with the baseline, which has no confinement (`task.sandbox: unsafe-subprocess`). A program that sleeps shows what an
idle one costs.
"""

import json
import time
from contextlib import ExitStack, closing
from itertools import cycle, islice
from statistics import median

from bench.models import DATA, ROOT
from bench.report import Check, check, command_line, write
from core.config import Columns, SandboxMode, TaskConfig
from core.parts.judge import Case
from tasks.code.formats import read_apps, read_mbpp
from tasks.code.programs import verifier
from tasks.judge_pool import JudgePool

Pair = tuple[str, str]
GOALS = {"mbpp": 50.0, "apps": 25.0}
NAMES = {"mbpp": "canonical solutions of MBPP", "apps": "APPS programs with 10 tests"}
REPEATS = 3
WORKERS = 2  # judging processes
COLUMNS = Columns(prompt="text", tests="test_list", setup="test_setup_code", solution="code")
TESTS = 10


def mbpp_pairs(limit: int) -> list[Pair]:
    """References and canonical solutions; again from the first where there are fewer."""
    rows = map(json.loads, (DATA / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").splitlines())
    items = [read_mbpp(row, COLUMNS, "mbpp") for row in rows]
    return [(item.reference, item.solution or "") for item in islice(cycle(items), limit)]


def apps_pairs(limit: int) -> list[Pair]:
    """References with ten tests each (the problem's own, repeated) and canonical solutions."""
    items = []
    columns = Columns(prompt="question", tests="input_output", solution="solutions", checker="checker")
    for line in (ROOT / "tests" / "data" / "apps" / "stdin.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        told = json.loads(row["input_output"])
        ten = {side: list(islice(cycle(told[side]), TESTS)) for side in ("inputs", "outputs")}
        items.append(read_apps({**row, "input_output": {**told, **ten}}, columns, "apps"))
    return [(item.reference, item.solution or "") for item in islice(cycle(items), limit)]


def configuration(name: str, mode: SandboxMode) -> TaskConfig:
    """The task configuration for a sandbox mode."""
    return TaskConfig.model_validate({"name": name, "columns": COLUMNS, "sandbox": mode})


def pool(config: TaskConfig) -> JudgePool:
    """Start judging processes and wait until they are ready."""
    judges = JudgePool(
        "tasks.code.programs:verifier",
        workers=WORKERS,
        limit=60.0,
        memory_gib=8.0,
        failed_reward=config.code.worst,
        settings=config.model_dump_json(),
    )
    judges.wait_until_ready()
    return judges


def throughput(name: str, given: list[Pair]) -> list[Check]:
    """Alternate confined and unconfined judging."""
    modes: tuple[SandboxMode, ...] = ("bubblewrap", "unsafe-subprocess")
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    passed: list[bool] = []
    with ExitStack() as stack:
        pools = {mode: stack.enter_context(closing(pool(configuration(name, mode)))) for mode in modes}
        for mode in modes * REPEATS:
            begun = time.perf_counter()
            verdicts = pools[mode].judge([Case(*pair) for pair in given])
            rates[mode].append(len(given) / (time.perf_counter() - begun))
            passed += [verdict.correct for verdict in verdicts]
    confined, unconfined = (median(rates[mode]) for mode in modes)
    return [
        check(NAMES[name], confined, "programs/s", ">=", GOALS[name], baseline=unconfined),
        check(f"{NAMES[name]}: judged correct", sum(passed) / len(passed), "share", ">=", 1.0),
    ]


def idling(reference: str) -> Check:
    """Seconds that a program costs which sleeps in each of its ten tests, in limits of one test."""
    config = configuration("apps", "bubblewrap")
    judge = verifier(config.model_dump_json())
    begun = time.perf_counter()
    judge(reference, "import time\ntime.sleep(1000)")
    return check("a program that sleeps", (time.perf_counter() - begun) / config.judge_timeout, "limits", "<=", 2.0)


def main(quick: bool) -> None:
    """Measure and write bench/results/sandbox.json."""
    programs, scripts = mbpp_pairs(120 if quick else 974), apps_pairs(50 if quick else 300)
    checks = [*throughput("mbpp", programs), *throughput("apps", scripts), idling(scripts[0][0])]
    settings = {"workers": WORKERS, "programs": len(programs), "scripts": len(scripts), "repeats": REPEATS}
    write("sandbox", checks, settings, quick=quick)


if __name__ == "__main__":
    main(command_line(__doc__).parse_args().quick)
