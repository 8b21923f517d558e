"""What a person or a dashboard sees of a run."""
