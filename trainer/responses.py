"""The responses of an evaluation with their verdicts, as JSONL or Parquet, for a person or a notebook.

Called by `commands/evaluate.py` and, inside training, by `trainer/session.py`.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.records import Judged, Problem
from core.run_directory import write_atomically

if TYPE_CHECKING:
    from tasks.task import Task
    from trainer.evaluation import Evaluation

SUFFIXES = (".jsonl", ".parquet")


def check_place(path: Path) -> None:
    """Make the folder and find out, before there is anything to lose, whether the file can be written.

    Raises ConfigError where it cannot, and for a file that is neither JSONL nor Parquet.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--responses {path}: write to a file that ends with {' or '.join(SUFFIXES)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def response_rows(result: "Evaluation", task: "Task", model: str) -> Iterator[dict[str, object]]:
    """All responses as plain rows."""
    problems = {problem.id: problem for problem in task.evaluation}
    for kind, judged in (("greedy", result.greedy), ("sampled", result.sampled)):
        for item in judged:
            yield {"model": model, "kind": kind, **_row(item, problems[item.trajectory.start.problem_id], task)}


def _row(item: Judged, problem: Problem, task: "Task") -> dict[str, object]:
    return {
        "problem": problem.id,
        "level": problem.level,
        "prompt": task.decode(problem.prompt_ids),
        "reference": problem.reference,
        "sample": item.trajectory.sample,
        "response": task.decode(item.trajectory.response_ids),
        "truncated": item.trajectory.finish.truncated,
        "reward": item.verdict.reward,
        "correct": item.verdict.correct,
        "detail": item.verdict.detail,
        "judge_failed": item.verdict.judge_failed,
    }


def write_rows(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """Write rows as .jsonl or .parquet. Raises ConfigError when the place cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            plain = [{name: _whole(value) for name, value in row.items()} for row in rows]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain), path)
        else:
            write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--responses {path}: {error.strerror or error}; name a file that can be written")


def _whole(value: object) -> object:
    """The value; of a text with half characters (lone surrogates), which Parquet cannot hold, one with their escapes."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
