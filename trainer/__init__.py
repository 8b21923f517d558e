"""The training loop and its support: starts, sessions, checkpoints, metrics, evaluation."""
