"""Tests: pure ones start in a second, engine tests share one Ray cluster (tests/conftest.py)."""
