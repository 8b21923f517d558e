"""States with a parent."""

from dataclasses import replace

from replay.cutting import States


def continued(found: States, parent: int) -> States:
    """The same states of a rollout that was started from the state of this key."""
    start = replace(found.rollout.start, state_key=parent)
    return found._replace(rollout=replace(found.rollout, start=start))
