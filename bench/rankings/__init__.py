"""Rankings of one's own, as examples: `replay.ranking` names each as `bench.rankings.FILE:CLASS`."""
