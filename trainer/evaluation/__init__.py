"""Evaluation on held-out problems, from the root only: scores with intervals, and the files they are written to."""
