"""The files of an evaluation: one line of numbers, and every response with its verdict (JSONL or Parquet)."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError
from core.records import Problem, Rollout
from core.run_directory import read_jsonl, write_atomically
from trainer.evaluation.scores import Evaluation, Scores
from trainer.evaluation.table import evaluation_table

if TYPE_CHECKING:
    from tasks.task import Task

SUFFIXES = (".jsonl", ".parquet")


def check_responses_path(path: Path) -> None:
    """Raises ConfigError if the file cannot be written, or is neither JSONL nor Parquet. It makes no folder."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--responses {path}: write to a file that ends with {' or '.join(SUFFIXES)}")
    path = path.absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    wrong = None
    if path.is_dir():
        wrong = errno.EISDIR
    elif there != path and not there.is_dir():
        wrong = errno.ENOTDIR
    elif not os.access(there, os.W_OK):
        wrong = errno.EACCES
    if wrong is not None:
        raise ConfigError(f"--responses {path}: {os.strerror(wrong)}; name a file that can be written")


def response_rows(result: Evaluation, task: Task, model: str) -> Iterator[dict[str, object]]:
    """All responses as plain rows."""
    problems = {problem.id: problem for problem in task.evaluated}
    for part in (result, *result.sets.values()):
        for kind, judged in (("greedy", part.greedy), ("sampled", part.sampled)):
            for item in judged:
                yield {"model": model, "kind": kind, **_row(item, problems[item.start.problem_id], task)}


def _row(item: Rollout, problem: Problem, task: Task) -> dict[str, object]:
    return {
        "problem": problem.id,
        "level": problem.level,
        **({"source": problem.source} if problem.source else {}),
        "prompt": problem.question,
        "reference": problem.reference,
        "sample": item.sample,
        "response": item.text(task.decode),  # from the root: there is no prefix
        "truncated": item.finish.truncated,
        "reward": item.reward,
        "correct": item.verdict.correct,
        "detail": item.verdict.detail,
        "judge_failed": item.verdict.judge_failed,
    }


def write_responses(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """Write rows as .jsonl or .parquet. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        plain = [{name: _encodable(value) for name, value in row.items()} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain), path)
    else:
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _encodable(value: object) -> object:
    """The value, with lone surrogates escaped: Parquet cannot store them."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def evaluation_record(result: Evaluation) -> dict[str, object]:
    """The numbers as plain data, for JSON. `pass` has pass@k by k; pass@1 is avg@k, the mean of all `samples`."""
    levels = [{"level": level} | _plain(scores) for level, scores in result.levels.items()]
    sources = [{"source": label} | _plain(scores) for label, scores in result.sources.items()]
    counts = {name: getattr(result, name) for name in ("truncated", "left_out", "judge_failures")}
    sets = [{"set": label} | evaluation_record(one) for label, one in result.sets.items()]
    numbers = {"samples": result.samples, **_plain(result.overall), **counts}
    return {**numbers, "levels": levels, "sources": sources, "sets": sets}


def _plain(scores: Scores) -> dict[str, object]:
    success = scores.success
    return {
        "problems": success.problems,
        "success": success.mean,
        "low": success.low,
        "high": success.high,
        "reward": asdict(scores.reward),
        "pass": {str(k): asdict(estimate) for k, estimate in scores.passes.items()},
        "majority": None if scores.majority is None else asdict(scores.majority),
    }


def append_evaluation(path: Path, iteration: int, result: Evaluation) -> None:
    """Add a line to evaluations.jsonl: success, interval and levels after `iteration` (0: before training)."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"iteration": iteration, **evaluation_record(result)}) + "\n")


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """The lines of evaluations.jsonl, without damaged ones."""
    return read_jsonl(path, _check_line)


def _check_line(line: dict[str, Any]) -> None:
    """Raises KeyError, TypeError, ... for a line that cannot be shown."""
    if not isinstance(line["iteration"], int):
        raise TypeError(f"iteration is {line['iteration']!r}")
    evaluation_table(line)


def lacks_evaluation(path: Path, iteration: int) -> bool:
    """Whether evaluations.jsonl has no line of this iteration."""
    return all(line["iteration"] != iteration for line in read_jsonl(path, lambda line: line["iteration"]))
