"""A run's replay store as a person sees it: one table of states, the prompts of its problems, and a decoder of tokens.

Used by `launch.py replay` and `launch.py inspect`. It reads the run's files only, and imports neither torch nor transformers, so that
it opens in a second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from core.config import ReplayConfig
from core.errors import CheckpointError
from core.load import load_config
from core.records import IntArray
from core.run_directory import RunDirectory
from monitor.problem_texts import read_problems
from replay.inspection import read_shards, states_table
from replay.shard import Shard
from trainer.checkpoint import latest, saved


@dataclass(frozen=True, slots=True)
class StoreView:
    """The store at one moment."""

    config: ReplayConfig
    shards: list[Shard]
    table: pa.Table  # of `states_table`
    problems: dict[str, tuple[str, str]]  # id -> prompt, level
    decode: Callable[[IntArray], str]


def open_store(run: RunDirectory) -> StoreView:
    """Read the store of a run, running or not. Raises StoreError when there is none."""
    config = load_config(run.config)
    checkpoint = latest(run) / "replay" if saved(run) is not None else None
    shards = read_shards(run.replay, checkpoint, config.replay)
    table = states_table(shards, config.replay)
    return StoreView(config.replay, shards, table, read_problems(run.problems), _decoder(run, config.model.path))


def _decoder(run: RunDirectory, model: str) -> Callable[[IntArray], str]:
    """Token ids -> text, with the tokenizer of the run's policy; before the first checkpoint, of its initial model."""
    from tokenizers import Tokenizer

    folders = [run.checkpoints / f"{saved(run) or 0:06d}" / "policy", run.policy, run.tokenizer, Path(model)]
    found = next((folder / "tokenizer.json" for folder in folders if (folder / "tokenizer.json").is_file()), None)
    if found is None:
        raise CheckpointError(f"{run.path}: no tokenizer.json in it yet; wait for the first checkpoint")
    tokenizer = Tokenizer.from_file(str(found))
    return lambda ids: str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))
