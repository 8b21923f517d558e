"""A run's replay store as a person sees it: a table of states, the questions of its problems, a decoder of tokens.
Reading it imports neither torch nor transformers, so that `launch.py replay` and `inspect` open in a second."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from core.config import ReplayConfig
from core.errors import CheckpointError, first_line
from core.files import read_whole
from core.load import load_config
from core.records import IntArray
from core.run_directory import LARGEST, RunDirectory
from monitor.store_table import read_shards, states_table
from replay.coverage import Life, read_lives
from replay.store.shard import Shard
from trainer.checkpoint import latest, saved

if TYPE_CHECKING:
    from tasks.task import Task


@dataclass(frozen=True, slots=True)
class StoreView:
    """The store at one moment."""

    config: ReplayConfig
    shards: list[Shard]
    table: pa.Table  # of `states_table`
    problems: dict[str, tuple[str, str]]  # id -> prompt, level
    decode: Callable[[IntArray], str]
    lives: Mapping[str, Life]  # problem id -> what the run did with it, as of the latest checkpoint


def open_store(run: RunDirectory) -> StoreView:
    """Read the store of a run, running or not. Raises StoreError when there is none."""
    config = load_config(run.config)
    sources = latest(run) / "sources" if saved(run) is not None else None
    shards = read_shards(run.replay, sources and sources / "replay", config.replay)
    lives = {} if sources is None else read_lives(sources / "coverage")
    table = states_table(shards)
    return StoreView(config.replay, shards, table, read_problems(run.problems), _decoder(run), lives)


def _decoder(run: RunDirectory) -> Callable[[IntArray], str]:
    """Token ids -> text, with the tokenizer that the run's first start has written."""
    from tokenizers import Tokenizer

    file = run.tokenizer / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{run.path}: no tokenizer.json in it yet; wait until its start has read the task")
    try:
        tokenizer = Tokenizer.from_str(read_whole(file, LARGEST).decode("utf-8"))
    except Exception as error:  # tokenizers raises a plain one
        raise CheckpointError(
            f"{file}: damaged ({first_line(error)}); copy the tokenizer of model.path there"
        ) from None
    # a prefix has special tokens only where turns begin and end, and there they are to be seen
    return lambda ids: str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def write_problems(run: RunDirectory, task: "Task") -> None:
    """Write id, level and question of the training problems, and the tokenizer, unless the run has them."""
    if run.problems.exists():
        return
    task.tokenizer.save_pretrained(str(run.tokenizer))
    columns = {
        "problem": [problem.id for problem in task.train],
        "level": [problem.level for problem in task.train],
        "prompt": [problem.question.encode("utf-8", "backslashreplace").decode("utf-8") for problem in task.train],
    }
    temporary = run.problems.with_suffix(".tmp")
    pq.write_table(pa.table(columns, pa.schema({name: pa.string() for name in columns})), temporary)
    temporary.replace(run.problems)


def read_problems(path: Path) -> dict[str, tuple[str, str]]:
    """Problem id -> (prompt, level); empty for a run without the file. Raises CheckpointError."""
    if not path.exists():
        return {}
    try:
        table = pq.read_table(pa.BufferReader(read_whole(path, LARGEST)))
        names, prompts, levels = (table[name].to_pylist() for name in ("problem", "prompt", "level"))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CheckpointError(
            f"{path}: damaged ({first_line(error)}); delete it, and a resume writes it again"
        ) from None
    return dict(zip(names, zip(prompts, levels, strict=True), strict=True))
