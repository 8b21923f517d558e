"""Checkpoints: everything a run needs to go on as if it had never stopped.

    checkpoints/000010/learner/      policy, critic, optimizers, schedules, random states (DeepSpeed)
    checkpoints/000010/policy/       the policy in Hugging Face format, with its tokenizer
    checkpoints/000010/replay/       snapshot of the replay store
    checkpoints/000010/progress.json iteration, problem cursor, token count, starts in flight (asynchronous mode)
    checkpoints/best                 name of the one with the highest success on held-out problems, and that success
    checkpoints/latest               name of the newest complete checkpoint, switched last

Called by `trainer/session.py`. Invariant: `latest` names a complete checkpoint at every moment: a checkpoint is written
under a temporary name, flushed, renamed, and only then named by `latest`.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import CheckpointError, ConfigError
from core.run_directory import RunDirectory, write_atomically

if TYPE_CHECKING:
    from trainer.loop import Parts

logger = logging.getLogger("retrospect.checkpoint")

PIECES = (
    "learner/learner.json",
    "policy/config.json",
    "replay/store.json",
    "progress.json",
)
"""What a checkpoint must hold to be one, beside the files of the learner's ranks. Other processes, perhaps on other nodes, write most of it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after an iteration."""

    iteration: int  # the last complete one
    cursor: dict[str, Any]  # of the problem sampler
    total_tokens: int  # generated in training rollouts
    pipeline: dict[str, Any] | None = None  # asynchronous mode: what was in flight


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint whose policy did best on held-out problems."""

    iteration: int
    success: float


def save(run: RunDirectory, parts: "Parts", progress: Progress, keep: int, success: float | None = None) -> Path:
    """Write a checkpoint atomically and delete all but the newest `keep` and the best.

    `success`: on held-out problems, where this iteration was evaluated. Raises CheckpointError when it cannot be written or a part has written elsewhere; `latest` is then what it was.
    """
    final = run.checkpoints / f"{progress.iteration:06d}"
    try:
        with replacing(final) as temporary:  # it is there already if the run was resumed from an earlier one
            files = parts.learner.save(temporary / "learner")
            parts.learner.export(temporary / "policy")
            parts.replay.save(temporary / "replay")
            write_atomically(temporary / "progress.json", json.dumps(asdict(progress)))
            check_complete(temporary, [*PIECES, *(f"learner/{name}" for name in files)])
        name_best(run, progress.iteration, success)
        write_atomically(run.checkpoints / "latest", final.name)
    except OSError as error:
        raise CheckpointError(
            f"{final}: cannot write the checkpoint: {error.strerror or error}; free space or fix the rights"
        ) from error
    finally:
        shutil.rmtree(_beside(final, "tmp"), ignore_errors=True)  # there only if something failed; it may fill the disk
    for old in superfluous(run, progress.iteration, keep):
        try:
            shutil.rmtree(old)
        except OSError as error:  # the new one is complete; the next save tries again
            logger.warning("%s: cannot delete this old checkpoint: %s; fix the rights", old, error.strerror or error)
    return final


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when the block ends well.

    `folder` is at every moment the old one or the new one, whole, or (if killed between two renames) not there; the next call
    brings the old one back before it begins.
    """
    temporary, old = _beside(folder, "tmp"), _beside(folder, "old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for left in (temporary, old):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    flush(temporary)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path, end: str) -> Path:
    return folder.with_name(f".{folder.name}.{end}")


def superfluous(run: RunDirectory, iteration: int, keep: int) -> list[Path]:
    """All checkpoints but that of `iteration`, the `keep` - 1 newest before it, and the best.

    Checkpoints of later iterations (the run was resumed from an earlier one) count as the oldest: they will be repeated.
    """
    others = {int(path.name): path for path in run.checkpoints.iterdir() if path.is_dir() and path.name.isdigit()}
    others.pop(iteration, None)
    order = sorted(others, key=lambda number: (number < iteration, number))
    top = best(run)
    old = order[: max(0, len(order) - (keep - 1))]
    return [others[number] for number in old if top is None or number != top.iteration]


def best(run: RunDirectory) -> Best | None:
    """The best checkpoint so far; None before the first that was evaluated."""
    pointer = run.checkpoints / "best"
    if not pointer.is_file():
        return None
    name, success = pointer.read_text().split()
    return Best(int(name), float(success)) if (run.checkpoints / name).is_dir() else None


def is_best(run: RunDirectory, success: float) -> bool:
    """Whether a policy with this success on held-out problems is better than that of the best checkpoint."""
    top = best(run)
    return top is None or success > top.success


def name_best(run: RunDirectory, iteration: int, success: float | None) -> None:
    """Give the name `best` to the checkpoint of `iteration`, now in place, where its success (None: not evaluated) is the highest.

    If it has taken the place of the best one it is the best by its own success, and not evaluated it loses the name: only
    now, for a run that was killed while it was written must still know the one that was there.
    """
    top = best(run)
    replaced = top is not None and top.iteration == iteration
    if success is not None and (replaced or is_best(run, success)):
        write_atomically(run.checkpoints / "best", f"{iteration:06d} {success!r}\n")
    elif replaced:
        (run.checkpoints / "best").unlink()


def check_complete(folder: Path, pieces: Sequence[str]) -> None:
    """Raises CheckpointError when a part's files are not in `folder`: its process sees another disk."""
    missing = [name for name in pieces if not (folder / name).exists()]
    if missing:
        raise CheckpointError(
            f"{folder}: {', '.join(missing)} not there after writing; run.root must lie on storage that all nodes see"
        )


def saved(run: RunDirectory) -> int | None:
    """The iteration that `latest` names; None before the first checkpoint."""
    pointer = run.checkpoints / "latest"
    return int(pointer.read_text()) if pointer.is_file() else None


def flush(folder: Path) -> None:
    """fsync every file and folder below `folder`: a rename must not outlive its contents in a power cut."""
    for path in [folder, *folder.rglob("*")]:
        sync(path)


def sync(path: Path) -> None:
    """fsync one file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def latest(run: RunDirectory) -> Path:
    """The newest complete checkpoint. Raises CheckpointError when there is none."""
    pointer = run.checkpoints / "latest"
    if not pointer.is_file():
        raise CheckpointError(f"{run.path}: no checkpoint yet (the run stopped before the first); start it anew")
    path = run.checkpoints / pointer.read_text().strip()
    if not (path / "progress.json").is_file():
        raise CheckpointError(
            f"{path}: named by {pointer} but incomplete; put the name of another checkpoint into that file"
        )
    return path


def in_flight(path: Path) -> int:
    """Starts of asynchronous mode that a checkpoint has not trained on."""
    pipeline = json.loads((path / "progress.json").read_text()).get("pipeline")
    return len(pipeline["in_flight"]) if pipeline else 0


def restore(path: Path, parts: "Parts") -> Progress:
    """Load a checkpoint into the parts. The engines have other weights still."""
    progress = Progress(**json.loads((path / "progress.json").read_text()))
    parts.learner.restore(path / "learner")
    parts.replay.restore(path / "replay")
    parts.problems.restore(progress.cursor)
    return progress


def go_on(path: Path, parts: "Parts") -> Progress:
    """Bring all parts, freshly started or not, to where the checkpoint was written, as if the run had never stopped.

    Raises ConfigError when starts of asynchronous mode are in flight there and the run is synchronous.
    """
    progress = restore(path, parts)
    in_flight = progress.pipeline["in_flight"] if progress.pipeline else []
    if parts.pipeline is None and in_flight:
        raise ConfigError(
            f"rollout.max_staleness = 0: {path} has {len(in_flight)} starts of asynchronous mode in flight; leave "
            f"rollout.max_staleness as it was"
        )
    hand_out(parts)
    if parts.pipeline is not None:
        parts.pipeline.restore(progress.pipeline, progress.iteration, parts.learner.version)
    return progress


def start_over(cursor: dict[str, Any], parts: "Parts") -> Progress:
    """Bring all parts to where a new run begins, as if it had never begun: what a run without a checkpoint goes back to.

    `cursor`: of the problem sampler at that time. The learner's ranks must be fresh.
    """
    parts.replay.clear()
    parts.problems.restore(cursor)
    hand_out(parts)
    if parts.pipeline is not None:
        parts.pipeline.restore(None, 0, parts.learner.version)
    return Progress(0, cursor, 0)


def hand_out(parts: "Parts") -> None:
    """Give the engines the learner's weights under the version that it has."""
    parts.learner.version -= 1  # which a broadcast raises
    parts.learner.broadcast(parts.actors, [parts.task.train[0].prompt_ids])
