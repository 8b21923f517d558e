"""The replay store of states to start from: boundaries, rankings, shards, the sharded store. Imports core only."""
