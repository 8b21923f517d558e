"""Generation: vLLM engine, rollout actor, pool. Nothing here knows the learner, the store or the loop."""
