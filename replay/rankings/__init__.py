"""The rankings of states, one file each."""
