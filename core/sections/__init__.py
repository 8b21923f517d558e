"""The sections of the configuration, one file per part; `core/config.py` puts them together."""
