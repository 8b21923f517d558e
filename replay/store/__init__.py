"""The store of states: shards of bytes and columns, with their files. It knows no reinforcement learning."""
