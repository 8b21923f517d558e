"""Programs per second: `python -m bench.sandbox [--quick]`.

Judges canonical solutions with `tasks.judging.JudgePool`, as the loop does: those of MBPP by their asserts, and programs with ten tests
each that read standard input (APPS). Each program gets a new bubblewrap sandbox. It alternates with the baseline, which has no
confinement (`task.sandbox: unsafe-subprocess`). A program that sleeps shows what an idle one costs.
"""

import json
import time
from pathlib import Path

from bench.report import Check, check, command_line, median, write
from core.config import Columns, SandboxMode, TaskConfig
from tasks.code.formats import read_apps, read_mbpp
from tasks.code.programs import limits_of, verifier
from tasks.code.sandbox import Program, Sandbox
from tasks.judging import JudgePool

Pair = tuple[str, str]
GOALS = {"mbpp": 50.0, "apps": 25.0}
NAMES = {"mbpp": "canonical solutions of MBPP", "apps": "APPS programs with 10 tests"}
REPEATS = 3
COLUMNS = Columns(prompt="text", tests="test_list", setup="test_setup_code", solution="code")
TESTS = 10


def mbpp_pairs(file: Path, limit: int) -> list[Pair]:
    """References and canonical solutions."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[:limit]]
    items = [read_mbpp(row, COLUMNS, "mbpp") for row in rows]
    return [(item.reference, item.solution or "") for item in items]


def apps_pairs(file: Path, limit: int) -> list[Pair]:
    """References with ten tests each (the problem's own, repeated) and canonical solutions."""
    pairs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        told = json.loads(row["input_output"])
        ten = {side: [told[side][i % len(told[side])] for i in range(TESTS)] for side in ("inputs", "outputs")}
        columns = Columns(prompt="question", tests="input_output", solution="solutions", checker="checker")
        item = read_apps({**row, "input_output": {**told, **ten}}, columns, "apps")
        pairs.append((item.reference, item.solution or ""))
    return [pairs[i % len(pairs)] for i in range(limit)]


def configuration(name: str, mode: SandboxMode) -> TaskConfig:
    """The task configuration for a sandbox mode."""
    return TaskConfig.model_validate({"name": name, "columns": COLUMNS, "sandbox": mode})


def pool(name: str, mode: SandboxMode, workers: int) -> JudgePool:
    """Start judging processes and wait until they are ready."""
    config = configuration(name, mode)
    judges = JudgePool(
        "tasks.code.programs:verifier",
        workers=workers,
        limit=60.0,
        memory_gib=8.0,
        failed_reward=config.code.worst,
        settings=config.model_dump_json(),
    )
    judges.wait_until_ready()
    return judges


def throughput(name: str, given: list[Pair], workers: int) -> list[Check]:
    """Alternate confined and unconfined judging."""
    modes: tuple[SandboxMode, ...] = ("bubblewrap", "unsafe-subprocess")
    pools = {mode: pool(name, mode, workers) for mode in modes}
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    passed: list[bool] = []
    for _ in range(REPEATS):
        for mode in modes:
            begun = time.perf_counter()
            verdicts = pools[mode].judge(given)
            rates[mode].append(len(given) / (time.perf_counter() - begun))
            passed += [verdict.correct for verdict in verdicts]
    for judges in pools.values():
        judges.close()
    confined, unconfined = (median(rates[mode]) for mode in modes)
    return [
        check(NAMES[name], confined, "programs/s", ">=", GOALS[name], baseline=unconfined),
        check(f"{NAMES[name]}: judged correct", sum(passed) / len(passed), "share", ">=", 1.0),
    ]


def latency(given: list[Pair]) -> list[Check]:
    """Latency of single verdicts in this process, with a spare sandbox and with a newly started one."""
    config = configuration("mbpp", "bubblewrap")
    judge = verifier(config.model_dump_json())
    judge(*given[0])
    verdicts, starts = [], []
    for pair in given[:50]:
        time.sleep(0.05)  # the spare sandbox starts
        begun = time.perf_counter()
        judge(*pair)
        verdicts.append(time.perf_counter() - begun)
        fresh = Sandbox("bubblewrap", limits_of(config))
        begun = time.perf_counter()
        with fresh.session(Program("")) as session:
            session.evaluate(["1"])
        starts.append(time.perf_counter() - begun)
        fresh.close()
    return [check("verdict, one at a time", 1e3 * median(verdicts), "ms", baseline=1e3 * median(starts))]


def idling(reference: str) -> Check:
    """Seconds that a program costs which sleeps in each of its ten tests, in limits of one test."""
    config = configuration("apps", "bubblewrap")
    judge = verifier(config.model_dump_json())
    begun = time.perf_counter()
    judge(reference, "import time\ntime.sleep(1000)")
    return check("a program that sleeps", (time.perf_counter() - begun) / config.judge_timeout, "limits", "<=", 2.0)


def main() -> None:
    """Command line."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with mbpp/")
    parser.add_argument("--workers", type=int, default=2, help="judging processes")
    given = parser.parse_args()
    programs = mbpp_pairs(given.data / "mbpp" / "mbpp.jsonl", 120 if given.quick else 974)
    scripts = apps_pairs(Path("tests/data/apps/stdin.jsonl"), 50 if given.quick else 300)
    checks = [
        *throughput("mbpp", programs, given.workers),
        *throughput("apps", scripts, given.workers),
        *latency(programs),
        idling(scripts[0][0]),
    ]
    settings = {"workers": given.workers, "programs": len(programs), "scripts": len(scripts), "repeats": REPEATS}
    write("sandbox", checks, settings, quick=given.quick)


if __name__ == "__main__":
    main()
