"""Environments: what they are, and the processes that they live in (docs/environments.md). No Ray, no engines."""
