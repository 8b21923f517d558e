"""How fast is the whole loop? `python -m bench.loop`."""
