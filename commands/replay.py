"""Looks into the replay store of a run: the most promising states per problem, with prefix, value, posterior, provenance,
age, lineage and solve rate, filtered by problem, provenance and depth; or all of them as Parquet for pandas and DuckDB.

Called by `launch.py replay`; reads the run's files only, so the run may be going on.
"""

from dataclasses import dataclass
from pathlib import Path

from core.config import Config
from core.load import load_config
from core.records import IntArray
from core.run_directory import RunDirectory
from trainer.checkpoint import latest
from trainer.model_files import load_tokenizer, model_of


@dataclass(frozen=True, slots=True)
class Filter:
    """Which states are meant; None: all."""

    problem: str | None
    provenance: str | None
    depth: tuple[int, int] | None  # prefix tokens, both ends included


def replay(path: Path, chosen: Filter, top: int, problems: int, export: str | None) -> int:
    """Print the `top` states of the first `problems` problems, or write all matching states to `export`."""
    from replay import inspection
    from replay.stats import combine, shard_stats

    run = RunDirectory.open(path)
    config = load_config(run.config)
    saved = latest(run) / "replay" if (run.checkpoints / "latest").is_file() else None
    shards = inspection.read_shards(run.replay, saved, config.replay)
    tokenizer = load_tokenizer(_tokenizer_of(run, config))
    table = inspection.states_table(shards)
    found = inspection.select(table, problem=chosen.problem, provenance=chosen.provenance, depth=chosen.depth)

    def decode(ids: IntArray) -> str:
        return str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    if export is not None:
        inspection.export(inspection.with_prefixes(found, shards, decode), export)
        print(f"{found.num_rows} states written to {export}")
        return 0
    best = inspection.first_problems(inspection.select(found, per_problem=top), problems)
    print(inspection.states_text(inspection.with_prefixes(best, shards, decode), table))
    print(inspection.store_summary(combine([shard_stats(shard) for shard in shards], requested=0, sampled=0)))
    print(f"{found.num_rows} of {table.num_rows} states match")
    return 0


def _tokenizer_of(run: RunDirectory, config: Config) -> str:
    """Where the run's tokenizer is: beside its policy; before the first checkpoint beside the model that it trains."""
    from tasks.starter import resolve_model

    if run.policy.is_dir() or (run.checkpoints / "latest").is_file():
        return model_of(run.path)
    return resolve_model(config.model.path, config.starter, config.task, config.run.seed)
