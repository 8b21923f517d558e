"""Programs per second: `python -m bench.sandbox [--quick]`.

Judges the canonical solutions of MBPP with `tasks.judge.JudgePool`, as the loop does: each program gets a new bubblewrap
sandbox. It alternates with the baseline, which has no confinement (`task.sandbox: unsafe-subprocess`).
"""

import argparse
import json
import time
from pathlib import Path

from bench.report import Check, check, median, write
from core.config import Columns, SandboxMode, TaskConfig
from tasks.code.programs import limits_of, read_mbpp, verifier
from tasks.code.sandbox import ProgramJob, Sandbox
from tasks.judge import JudgePool

Pair = tuple[str, str]
GOAL = 50.0
REPEATS = 3
COLUMNS = Columns(prompt="text", tests="test_list", setup="test_setup_code", solution="code")


def pairs(file: Path, limit: int) -> list[Pair]:
    """References and canonical solutions."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[:limit]]
    items = [read_mbpp(row, COLUMNS, "mbpp") for row in rows]
    return [(item.reference, item.solution or "") for item in items]


def configuration(mode: SandboxMode) -> TaskConfig:
    """The task configuration for a sandbox mode."""
    return TaskConfig(name="mbpp", columns=COLUMNS, sandbox=mode)


def pool(mode: SandboxMode, workers: int) -> JudgePool:
    """Start judging processes and wait until they are ready."""
    config = configuration(mode)
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


def throughput(given: list[Pair], workers: int) -> list[Check]:
    """Alternate confined and unconfined judging."""
    modes: tuple[SandboxMode, ...] = ("bubblewrap", "unsafe-subprocess")
    pools = {mode: pool(mode, workers) for mode in modes}
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
    return [
        check(
            "canonical solutions of MBPP",
            median(rates["bubblewrap"]),
            "programs/s",
            ">=",
            GOAL,
            baseline=median(rates["unsafe-subprocess"]),
        ),
        check("judged correct", sum(passed) / len(passed), "share", ">=", 1.0),
    ]


def latency(given: list[Pair]) -> list[Check]:
    """Latency of single verdicts in this process, with a spare sandbox and with a newly started one."""
    config = configuration("bubblewrap")
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
        fresh.run(ProgramJob("", ["1"]))
        starts.append(time.perf_counter() - begun)
        fresh.close()
    return [check("verdict, one at a time", 1e3 * median(verdicts), "ms", baseline=1e3 * median(starts))]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer programs")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with mbpp/")
    parser.add_argument("--workers", type=int, default=2, help="judging processes")
    given = parser.parse_args()
    programs = pairs(given.data / "mbpp" / "mbpp.jsonl", 120 if given.quick else 974)
    checks = [*throughput(programs, given.workers), *latency(programs)]
    settings = {"workers": given.workers, "programs": len(programs), "repeats": REPEATS}
    write("sandbox", checks, settings, quick=given.quick)


if __name__ == "__main__":
    main()
