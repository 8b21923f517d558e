"""From rows to micro-batches under a token budget."""
