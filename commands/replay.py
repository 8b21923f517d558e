"""`launch.py replay`: shows the highest-priority states of each problem, with prefix, value, posterior, provenance, age, lineage and
solve rate. They can be filtered by problem, provenance and depth, or written as Parquet for pandas and DuckDB.

Called by `launch.py`. It reads only the run's files, so the run may still be running.
"""

from argparse import Namespace

from core.config import Config
from core.load import load_config
from core.records import IntArray
from core.run_directory import RunDirectory
from replay import inspection
from replay.stats import combine, shard_stats
from tasks.starter import resolve_model
from trainer.checkpoint import latest
from trainer.model_files import load_tokenizer, model_of


def show_states(options: Namespace) -> int:
    """Print the first `top` states of the first `problems` problems, or write all matching states to `export`."""
    run = RunDirectory.open(options.run)
    config = load_config(run.config)
    saved = latest(run) / "replay" if (run.checkpoints / "latest").is_file() else None
    shards = inspection.read_shards(run.replay, saved, config.replay)
    tokenizer = load_tokenizer(_model_with_tokenizer(run, config))
    table = inspection.states_table(shards)
    depth = None if options.depth is None else tuple(options.depth)  # prefix tokens, both ends included
    found = inspection.select(table, problem=options.problem, provenance=options.provenance, depth=depth)

    def _decode(ids: IntArray) -> str:
        return str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    if options.export is not None:
        inspection.export(inspection.with_prefixes(found, shards, _decode), options.export)
        print(f"{found.num_rows} states written to {options.export}")
        return 0
    best = inspection.first_problems(inspection.select(found, per_problem=options.top), options.problems)
    print(inspection.states_text(inspection.with_prefixes(best, shards, _decode), table))
    print(inspection.store_summary(combine([shard_stats(shard) for shard in shards])))
    print(f"{found.num_rows} of {table.num_rows} states match")
    return 0


def _model_with_tokenizer(run: RunDirectory, config: Config) -> str:
    """The run's policy; before the first checkpoint, its initial model."""
    if run.policy.is_dir() or (run.checkpoints / "latest").is_file():
        return model_of(run.path)
    return resolve_model(config.model.path, config.starter, config.task, config.run.seed)
