"""What every part shares: typed records, config, weights, seeds, errors. No Ray, no engines."""

__version__ = "0.1.0"
