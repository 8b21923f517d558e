"""Dialogues, judged by a reward model."""
