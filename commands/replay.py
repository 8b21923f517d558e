"""`launch.py replay`: shows the states of highest priority, filtered by problem, provenance and depth, or writes them
as Parquet for pandas and DuckDB. It reads only the run's files, so the run may still be running."""

from argparse import Namespace

from core.errors import ConfigError
from core.run_directory import RunDirectory
from monitor import store_table
from monitor.store_view import open_store
from replay.store.stats import combine, shard_stats


def show_states(options: Namespace) -> int:
    """Print the first `top` states of the first `problems` problems, or write all matching states to `export`."""
    if options.depth is not None and options.depth[0] > options.depth[1]:
        raise ConfigError(f"--depth {options.depth[0]} {options.depth[1]}: give the smaller one first")
    view = open_store(RunDirectory.open(options.run))
    table, shards = view.table, view.shards
    depth = None if options.depth is None else tuple(options.depth)  # prefix tokens, both ends included
    states = store_table.select(table, problem=options.problem, provenance=options.provenance, depth=depth)
    if options.export is not None:
        store_table.export(store_table.with_prefixes(states, shards, view.decode), options.export)
        print(f"{states.num_rows} states written to {options.export}")
        return 0
    if not table.num_rows:
        print("no state is stored yet")
        return 0
    best = store_table.first_states(states, options.problems, options.top)
    prompts = {name: prompt for name, (prompt, _) in view.problems.items()}
    print(store_table.states_text(store_table.with_prefixes(best, shards, view.decode), table, prompts))
    print(store_table.store_summary(combine([shard_stats(shard) for shard in shards])))
    print(f"{states.num_rows} of {table.num_rows} states match")
    return 0
