"""What is trained on: problems, verifiers, the processes that judge, the starter model."""
