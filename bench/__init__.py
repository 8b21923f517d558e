"""Benchmarks: `python -m bench.NAME [--quick]`; results in bench/results/. This sets what Ray reads on import."""

import os

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
