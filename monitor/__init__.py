"""Console, files, gauges and reports of a run."""
