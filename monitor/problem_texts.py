"""The prompts of a run's training problems as text, kept in the run directory for a person to read.

Written by `commands/train.py`, read by `launch.py replay`, the inspector and the report: a replay store knows its problems by id only.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from core.run_directory import RunDirectory

if TYPE_CHECKING:
    from tasks.task import Task


def write_problems(run: RunDirectory, task: "Task") -> None:
    """Write id, level and prompt of the training problems, and the tokenizer, unless a start of the run has done so."""
    if run.problems.exists():
        return
    task.tokenizer.save_pretrained(str(run.tokenizer))
    prompts = task.tokenizer.batch_decode(
        [problem.prompt_ids.tolist() for problem in task.train], skip_special_tokens=True
    )
    columns = {
        "problem": [problem.id for problem in task.train],
        "level": [problem.level for problem in task.train],
        "prompt": [prompt.encode("utf-8", "backslashreplace").decode("utf-8") for prompt in prompts],
    }
    temporary = run.problems.with_suffix(".tmp")
    pq.write_table(pa.table(columns, pa.schema({name: pa.string() for name in columns})), temporary)
    temporary.replace(run.problems)


def read_problems(path: Path) -> dict[str, tuple[str, str]]:
    """Problem id -> (prompt, level); empty for a run without the file."""
    if not path.exists():
        return {}
    table = pq.read_table(path)
    names, prompts, levels = (table[name].to_pylist() for name in ("problem", "prompt", "level"))
    return dict(zip(names, zip(prompts, levels, strict=True), strict=True))
