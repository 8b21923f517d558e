"""The rankings of states, one class and one file each. `core/sections/registry.py` names them; bench/rankings/ has
examples of one's own."""
