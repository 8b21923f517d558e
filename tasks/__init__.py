"""The tasks: problems, verifiers, the judging processes, the starter model."""
