"""States worth restarting from: boundaries, rankings, shards, the sharded store. Imports core only."""
