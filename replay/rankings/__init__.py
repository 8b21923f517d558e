"""The rankings of states, one class and one file each. `core.sections.replay.RANKINGS` names them; bench/rankings/ has
examples of one's own."""
