"""Rewards of the user's own: functions in the shapes of this project, TRL and verl, and servers."""
