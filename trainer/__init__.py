"""The loop and what surrounds it: checkpoints, run directory, metrics, console, evaluation."""
