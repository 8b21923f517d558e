"""`python -m bench.learner`: the learner against a bare DeepSpeed loop (see `bench.learner.__main__`)."""
