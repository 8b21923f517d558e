"""What every part shares: typed records, config, weights, seeds, errors. No Ray, no engines."""

from pathlib import Path

__version__ = "0.1.0"

ROOT = Path(__file__).resolve().parents[1]
"""The folder of all parts: the clone, or the package `retrospect` of an installed copy."""
PROGRAM = "retrospect" if (ROOT / "__init__.py").exists() else "python launch.py"
"""How a user starts the command line."""
