"""Generated tasks of the experiments and tests. A recipe names one by its import path."""
