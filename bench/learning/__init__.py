"""Do replay and imitation learn more than PPO on generated tasks? `python -m bench.learning` (bench/README.md)."""
