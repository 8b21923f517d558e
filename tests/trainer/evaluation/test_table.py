"""The table of an evaluation with a level, a data set of a mixture and two evaluation sets."""

from typing import Any

from trainer.evaluation.table import evaluation_rows, evaluation_table


def part(name: dict[str, str], success: float, samples: int = 0, **more: Any) -> dict[str, Any]:
    passes = {}
    if samples:
        passes = {"1": {"mean": 0.25, "low": 0.2, "high": 0.3}, str(samples): {"mean": 0.5, "low": 0.4, "high": 0.6}}
    numbers = {"problems": 30, "success": success, "low": success - 0.1, "high": success + 0.1, "pass": passes}
    counts = {"truncated": 0.0, "left_out": 0, "judge_failures": 0}
    return {**name, **numbers, **counts, "levels": [], "sources": [], "sets": [], **more}


RECORD = part(
    {},
    0.5,
    levels=[part({"level": "Level 3"}, 0.4), part({"level": ""}, 0.9)],
    sources=[part({"source": "words"}, 0.6)],
    sets=[part({"set": "exam"}, 0.2), part({"set": "aime"}, 0.1, samples=8, truncated=0.125, judge_failures=2)],
)


def test_the_rows_are_all_problems_data_sets_levels_and_evaluation_sets_with_the_same_columns() -> None:
    rows = evaluation_rows(RECORD)
    names = ["all", "words", "Level 3", "exam", "aime"]  # a task without levels has an unnamed one
    assert [(row["set"], row["success"]) for row in rows] == list(zip(names, [0.5, 0.6, 0.4, 0.2, 0.1], strict=True))
    assert len({tuple(row) for row in rows}) == 1
    assert [(row["samples"], row["average"], row["any"]) for row in rows[-2:]] == [(0, None, None), (8, 0.25, 0.5)]
    assert list(evaluation_rows(part({}, 0.5))[0]) == ["set", "problems", "success", "low", "high"]  # nothing sampled


def test_the_same_rows_as_text() -> None:
    assert evaluation_table(RECORD) == [
        "         problems  greedy (95 % interval)",
        "all            30  50.0 % (40.0 to 60.0)",
        "words          30  60.0 % (50.0 to 70.0)",
        "Level 3        30  40.0 % (30.0 to 50.0)",
        "exam           30  20.0 % (10.0 to 30.0)",
        "aime           30  10.0 % (0.0 to 20.0)    avg@8 25.0 % (20.0 to 30.0), pass@8 50.0 %",
        "aime: 12.5 % truncated, 2 without a verdict",
    ]
