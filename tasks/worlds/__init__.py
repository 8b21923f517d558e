"""Tasks whose problems are played in an environment: text games, and the package verifiers."""
