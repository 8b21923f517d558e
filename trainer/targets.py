"""What a path on the command line or in a recipe names: a run, a checkpoint of it, or a model.

Called by `launch.py`, `commands/evaluate.py` and `trainer/preflight.py`.
"""

from pathlib import Path

from core.errors import CheckpointError
from core.run_directory import RunDirectory
from trainer import checkpoint


def run_of(target: Path) -> RunDirectory | None:
    """The run that `target` is or lies in: a run, or a checkpoint or policy of it."""
    place = target.expanduser().resolve()
    for folder in (place, *place.parents[:3]):  # RUN/checkpoints/NNNNNN/policy is the deepest
        if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
            return RunDirectory.open(folder)
    return None


def model_of(target: Path) -> str:
    """The Hugging Face directory of a run, a checkpoint or a model. A name that is no path is taken for a hub model.

    Of a run the newest checkpoint's: its policy/ is the same at the end, and older while the run is extended. Runs of `sft`
    have no policy in their checkpoints.

    Raises CheckpointError when the path exists and is none of them.
    """
    place = target.expanduser().resolve()
    if (place / "config.yaml").is_file():
        run = RunDirectory.open(place)
        newest = run.checkpoints / f"{checkpoint.saved(run) or 0:06d}" / "policy"
        if newest.is_dir() or not run.policy.is_dir():
            return str(checkpoint.latest(run) / "policy")
        return str(run.policy)
    if (place / "progress.json").is_file():
        return str(place / "policy")
    if place.exists() and not (place / "config.json").is_file():
        raise CheckpointError(f"{target} is neither a run, nor a checkpoint, nor a model directory")
    return str(place) if place.exists() else str(target)
