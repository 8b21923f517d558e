"""Policy, critic and reward model around Hugging Face models."""
