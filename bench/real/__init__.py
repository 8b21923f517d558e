"""Does it help a pretrained model? `python -m bench.real PART` (PROTOCOL.md)."""
