"""The learner: PPO on policy and critic with DeepSpeed, scoring, weight broadcast and its checkpoints."""
