"""Does replay learn more than PPO? `python -m bench.learning`: a matrix of runs, its statistics, its table and its
plots."""
