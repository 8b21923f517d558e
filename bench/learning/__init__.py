"""Does replay learn more than PPO? `python -m bench.learning`: a matrix of runs, its statistics, table and plots."""
