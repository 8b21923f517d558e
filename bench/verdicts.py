"""Verdicts per second and judging process: `python -m bench.verdicts [--quick] [--data FOLDER]`.

Judges correct and wrong answers of the real data with `tasks.judge.JudgePool`, as the loop does. The baseline calls the
same verifier in this process, so the difference is the cost of processes and pipes.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import Check, check, command_line, median, write
from core.config import Columns
from core.records import Verdict
from tasks.judge import JudgePool
from tasks.mathematics.answers import boxed_answer, read_gsm8k, read_math, verify_gsm8k, verify_math
from tasks.synthetic.arithmetic import ARITHMETIC, verify_arithmetic
from tasks.synthetic.generated import puzzle_items

Pair = tuple[str, str]
GOAL = 300.0
"""Verdicts per second of one process on one core: fast enough that judging is a small part of an iteration."""
REPEATS = 3


def changed(text: str, answer: str) -> str:
    """The text with the last digit of its last answer changed by one; unchanged without a digit."""
    start = text.rfind(answer)
    found = re.search(r"[0-9](?=[^0-9]*$)", answer)
    if start < 0 or not found:
        return text
    place = start + found.start()
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def arithmetic_pairs(_folder: Path) -> list[Pair]:
    """Expressions with their solutions, every second one with a wrong answer."""
    problems = puzzle_items(ARITHMETIC, 0, range(4, 11), 4000, evaluation=False)
    return [
        (
            item.reference,
            (item.solution or "") if i % 2 else changed(item.solution or "", (item.solution or "").rsplit("#", 1)[1]),
        )
        for i, item in enumerate(problems)
    ]


def gsm8k_pairs(folder: Path) -> list[Pair]:
    """Real questions: the gold solution, then one with a wrong answer."""
    columns = Columns(prompt="question", answer="answer", solution="answer")
    rows = [json.loads(line) for line in (folder / "gsm8k" / "train.jsonl").read_text().splitlines()]
    items = [read_gsm8k(row, columns, "gsm8k") for row in rows]
    golds = [(item.reference, item.solution or "") for item in items]
    return [pair for gold, text in golds for pair in ((gold, text), (gold, changed(text, gold)))]


def math_pairs(folder: Path) -> list[Pair]:
    """Real problems: the gold solution, then one with a wrong answer."""
    columns = Columns(prompt="problem", answer="solution", solution="solution")
    rows = [json.loads(line) for line in (folder / "math" / "train.jsonl").read_text().splitlines()]
    items = [read_math(row, columns, "math") for row in rows]
    golds = [(item.reference, item.solution or "") for item in items]
    return [pair for gold, text in golds for pair in ((gold, text), (gold, changed(text, boxed_answer(text) or gold)))]


TASKS: dict[str, tuple[str, Callable[[str, str], Verdict], Callable[[Path], list[Pair]]]] = {
    "arithmetic": ("tasks.synthetic.arithmetic:verify_arithmetic", verify_arithmetic, arithmetic_pairs),
    "gsm8k": ("tasks.mathematics.answers:verify_gsm8k", verify_gsm8k, gsm8k_pairs),
    "math": ("tasks.mathematics.answers:verify_math", verify_math, math_pairs),
}


def verdict_rate(judge: Callable[[list[Pair]], list[Verdict]], pairs: list[Pair]) -> float:
    """Verdicts per second of one pass."""
    begun = time.perf_counter()
    judge(pairs)
    return len(pairs) / (time.perf_counter() - begun)


def verdict_checks(name: str, folder: Path, workers: int, limit: int) -> list[Check]:
    """Alternate processes and direct calls. The first pass of each (imports, cold caches) is reported separately."""
    path, verify, make = TASKS[name]
    pairs = make(folder)[:limit]
    pool = JudgePool(path, workers=workers, limit=5.0, memory_gib=8.0)
    pool.wait_until_ready()
    cold = verdict_rate(pool.judge, pairs) / workers
    rates: list[float] = []
    direct: list[float] = []
    for _ in range(REPEATS):
        rates.append(verdict_rate(pool.judge, pairs) / workers)
        direct.append(verdict_rate(lambda some: [verify(*pair) for pair in some], pairs))
    wrong = sum(not verdict.correct for verdict in pool.judge(pairs))
    pool.close()
    return [
        check(f"{name}: first pass", cold, "verdicts/s per core", ">=", GOAL),
        check(f"{name}: repeated", median(rates), "verdicts/s per core", ">=", GOAL, baseline=median(direct)),
        check(f"{name}: judged wrong", wrong / len(pairs), "share"),
    ]


def main() -> None:
    """Command line."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with gsm8k/ and math/")
    parser.add_argument("--workers", type=int, default=2, help="judging processes")
    given = parser.parse_args()
    limit = 1000 if given.quick else 20_000
    checks = [row for name in TASKS for row in verdict_checks(name, given.data, given.workers, limit)]
    write("verdicts", checks, {"workers": given.workers, "verdicts": limit, "repeats": REPEATS}, quick=given.quick)


if __name__ == "__main__":
    main()
