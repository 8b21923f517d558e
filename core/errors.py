"""Errors that a user can act on: one line that names the field, file or actor and what to do. `launch.py` prints the
line and exits with status 2. Of any other exception it prints a line, too (`commands/boundary.py`)."""


class RetrospectError(Exception):
    """Base of all errors that are meant for the user. The message is one line."""


def first_line(error: BaseException) -> str:
    """The first line with text of another library's error, without its full stop; the name of its type if it has no
    text. Pydantic's first line only counts ("1 validation error for ..."), and that of the hub's client only names a
    field: the lines after it are joined instead."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0].lower():
        return " ".join(lines[1:])[:300]
    return lines[0].rstrip(".") if lines else type(error).__name__


class ConfigError(RetrospectError):
    """A field of the configuration is unknown, out of range, or contradicts another."""


class DataError(RetrospectError):
    """A data set or one of its rows cannot be used."""


class ModelError(RetrospectError):
    """A model or tokenizer directory cannot be used."""


class ClusterError(RetrospectError):
    """The cluster does not have the resources that the run asks for, or cannot be reached."""


class ActorError(RetrospectError):
    """A rollout actor or a judge died, hung or raised, and restarts did not help."""


class LearnerError(RetrospectError):
    """A learner rank died, hung or raised. The others would wait for it, so all restart from the last checkpoint."""


class StoreError(RetrospectError):
    """The replay store cannot write or read its files."""


class LostShardError(StoreError):
    """A replay shard died with its files: the run continues from its last checkpoint."""


class CheckpointError(RetrospectError):
    """A checkpoint is missing, incomplete, or belongs to another configuration."""


class FullDiskError(RetrospectError):
    """The disk of the run directory is full."""


class WeightError(RetrospectError):
    """An engine acknowledged other weights than the learner sent, or computes other log-probabilities."""


class DivergenceError(RetrospectError):
    """Too many optimizer steps in a row were skipped for a NaN or Inf. `problem_ids`: the problems of their batches."""

    def __init__(self, message: str, problem_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problem_ids = problem_ids
