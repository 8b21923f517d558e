"""Checkpoints: everything a run needs to continue as if it had not stopped.

checkpoints/NNNNNN/ holds

    learner/         models, optimizers, random states (DeepSpeed)
    policy/          the policy in Hugging Face format
    sources/         of each start source: cursor of the problems, snapshot of the store, own successes
    progress.json    iteration, tokens, starts in flight
    digests.json     of each file, checked on a resume

The files `best` and `latest` name one of them. Invariant: `latest` names a complete one. A checkpoint is written under
a temporary name, flushed and renamed before `latest` names it.
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import TypeAdapter, ValidationError

from core import PROGRAM
from core.errors import CheckpointError, FullDiskError, first_line
from core.files import open_regular, read_whole
from core.run_directory import LARGEST, RunDirectory, sync, write_atomically

if TYPE_CHECKING:
    from trainer.run import Run

logger = logging.getLogger("retrospect.checkpoint")

DIGESTS = "digests.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SAID_FULL = (*map(os.strerror, FULL), "iostream error", "inline_container.cc")  # the last two are of torch.save
WEIGHTS = re.compile(r"policy/[^/]*\.safetensors")
REQUIRED = ("learner/learner.json", "policy/config.json", "progress.json")
"""Files of every complete checkpoint, besides those of the learner's ranks; other nodes may have written them."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is after an iteration."""

    iteration: int  # last complete iteration
    total_tokens: int  # generated in training rollouts so far
    engines: dict[str, Any] | None = None  # asynchronous mode: starts in flight


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint whose policy has the highest held-out success."""

    iteration: int
    success: float


def save(directory: RunDirectory, run: "Run", progress: RunProgress, keep: int, success: float | None = None) -> Path:
    """Write a checkpoint atomically, then delete all but the newest `keep` and the best (`success`: on held-out
    problems). Raises CheckpointError, and leaves `latest`, when it cannot be written or a part is on another disk."""
    final = directory.checkpoints / f"{progress.iteration:06d}"
    try:
        with replacing(final) as temporary:  # `final` exists if the run was resumed from an earlier checkpoint
            files = run.learner.save(temporary / "learner")
            run.learner.export(temporary / "policy")
            (temporary / "sources").mkdir()
            run.sources.save(temporary / "sources")
            write_atomically(temporary / "progress.json", json.dumps(asdict(progress)))
            wanted = [*REQUIRED, *(f"learner/{name}" for name in files)]
            if missing := [name for name in wanted if not (temporary / name).exists()]:
                raise CheckpointError(
                    f"{temporary}: {', '.join(missing)} missing after writing; run.root must be on storage that all "
                    "nodes see"
                )
            write_digests(temporary)
        name_best(directory, progress.iteration, success)
        write_atomically(directory.checkpoints / "latest", final.name)
    except OSError as error:
        raise CheckpointError(
            f"{final}: cannot write the checkpoint: {error.strerror or error}; free space or fix the permissions"
        ) from error
    finally:
        shutil.rmtree(_sibling(final, "tmp"), ignore_errors=True)  # left by a failure; it may fill the disk
    for old in superfluous(directory, progress.iteration, keep):
        try:
            shutil.rmtree(old)
        except OSError as error:  # the next save tries again
            logger.warning("%s: cannot delete old checkpoint: %s; fix the permissions", old, error.strerror or error)
    return final


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder that replaces `folder` when the block ends without an error. `folder` is always the complete old or
    new one; if the process is killed between the two renames, `latest` or the next call restores the old one first."""
    temporary, old = _sibling(folder, "tmp"), _sibling(folder, "old")
    _restore(folder)
    for stale in (temporary, old):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    for path in [temporary, *temporary.rglob("*")]:  # the renamed folder must have its contents after a power cut
        sync(path)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _restore(folder: Path) -> None:
    """Bring back a folder that `replacing` had moved away when its process was killed."""
    if (old := _sibling(folder, "old")).exists() and not folder.exists():
        old.rename(folder)


def write_digests(folder: Path) -> None:
    """Write digests.json: the digest of every file below the folder."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    write_atomically(folder / DIGESTS, json.dumps({name: _digest(folder / name) for name in names}, indent=0) + "\n")


def check_digests(folder: Path) -> None:
    """Raises CheckpointError that names the first changed file. An older checkpoint has no digests."""
    if damage := _damage(folder):
        raise CheckpointError(f"{damage}; {_another(folder)}")


def exported(directory: RunDirectory, folder: Path) -> bool:
    """Whether the final policy is that of the checkpoint `folder`; False if an older checkpoint has no digests."""
    digests = _read_json(folder / DIGESTS) if (folder / DIGESTS).exists() else {}
    weights = {Path(name).name: digest for name, digest in digests.items() if WEIGHTS.match(name)}
    files = [directory.policy / name for name in weights]
    return bool(files) and all(file.is_file() and _digest(file) == weights[file.name] for file in files)


def _damage(folder: Path) -> str:
    """What is wrong with the first changed file; empty if nothing is."""
    try:
        digests = json.loads(read_whole(folder / DIGESTS, LARGEST)) if (folder / DIGESTS).exists() else {}
        for name, digest in digests.items():
            if _digest(folder / name) != digest:
                return f"{folder / name}: damaged, its content is not what was written"
    except OSError as error:
        return f"{error.filename}: {error.strerror or error}"
    except (ValueError, AttributeError) as error:
        return f"{folder / DIGESTS}: cannot be read ({first_line(error)})"
    return ""


def _digest(path: Path) -> str:
    state = xxhash.xxh3_128()
    with open_regular(path) as file:
        while piece := file.read(1 << 24):
            state.update(piece)
    return state.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_whole(path, LARGEST)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)}); {_another(path.parent)}") from None


def _another(folder: Path) -> str:
    others = sorted(one for one in folder.parent.iterdir() if one.name.isdigit() and one.name != folder.name)
    if whole := [one.name for one in others if (one / "progress.json").is_file() and not _damage(one)]:
        return f"put the name of another checkpoint into {folder.parent / 'latest'} (undamaged: {', '.join(whole)})"
    return "no other checkpoint is undamaged, so start a new run"


def full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, is that of a full disk. Some libraries say so in their text alone."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in FULL) or any(text in str(error) for text in SAID_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def one_line_if_full(run: RunDirectory) -> Iterator[None]:
    """Inside the block the error of a full disk becomes a FullDiskError that says what is safe."""
    try:
        yield
    except Exception as error:
        if not full_disk(error):
            raise
        iteration = saved(run)
        safe = f"the checkpoint of iteration {iteration} is safe" if iteration else "there is no checkpoint yet"
        then = f"continue with `{PROGRAM} train --resume {run.path}`" if iteration else "start it again"
        full = f"{run.path}: the disk is full ({first_line(error)})"
        raise FullDiskError(f"{full}; {safe}; free space, then {then}") from error


def _sibling(folder: Path, end: str) -> Path:
    return folder.with_name(f".{folder.name}.{end}")


def superfluous(run: RunDirectory, iteration: int, keep: int) -> list[Path]:
    """The checkpoints to delete: all but `iteration`'s, `keep` - 1 before it, and the best; later ones are oldest."""
    others = {int(path.name): path for path in run.checkpoints.iterdir() if path.is_dir() and path.name.isdigit()}
    others.pop(iteration, None)
    order = sorted(others, key=lambda number: (number < iteration, number))
    top = best(run)
    old = order[: max(0, len(order) - (keep - 1))]
    return [others[number] for number in old if top is None or number != top.iteration]


def best(run: RunDirectory) -> Best | None:
    """The best checkpoint so far; None before the first evaluated one."""
    pointer = run.checkpoints / "best"
    with suppress(OSError, ValueError):  # there is none, or it is damaged: the next evaluation writes another
        name, success = pointer.read_text().split()
        return Best(int(name), float(success)) if (run.checkpoints / name).is_dir() else None
    return None


def is_best(run: RunDirectory, success: float) -> bool:
    """Whether this held-out success is higher than that of the best checkpoint."""
    top = best(run)
    return top is None or success > top.success


def name_best(run: RunDirectory, iteration: int, success: float | None) -> None:
    """Make the new checkpoint of `iteration` the best if its success (None: not evaluated) is the highest. If it has
    replaced the best checkpoint, it stays the best with its new success; without an evaluation `best` is removed."""
    top = best(run)
    replaced = top is not None and top.iteration == iteration
    if success is not None and (replaced or is_best(run, success)):
        write_atomically(run.checkpoints / "best", f"{iteration:06d} {success!r}\n")
    elif replaced:
        (run.checkpoints / "best").unlink()


def saved(run: RunDirectory) -> int | None:
    """The iteration that `latest` names; None before the first checkpoint."""
    pointer = run.checkpoints / "latest"
    if not os.path.lexists(pointer):
        return None
    try:
        return int(read_whole(pointer, LARGEST))
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else "damaged"
        raise CheckpointError(f"{pointer}: {why}; write the name of a checkpoint beside it into it") from None


def is_saved(run: RunDirectory, iteration: int) -> bool:
    """Whether the state after an iteration is saved: its checkpoint, or the final policy where none is kept."""
    newest = saved(run)
    return newest == iteration or (newest is None and run.policy.is_dir())


def latest(run: RunDirectory) -> Path:
    """The newest complete checkpoint. Raises CheckpointError when there is none."""
    iteration = saved(run)
    if iteration is None and next(run.checkpoints.glob("checkpoint-*"), None):
        raise CheckpointError(
            f"{run.path} is a run of `launch.py sft` or `reward-model`; resume it with the command that began it"
        )
    if iteration is None:
        raise CheckpointError(f"{run.path}: no checkpoint yet (the run stopped before the first); start a new run")
    path = run.checkpoints / f"{iteration:06d}"
    _restore(path)
    if not (path / "progress.json").is_file():
        raise CheckpointError(f"{path}: incomplete, it has no file progress.json; {_another(path)}")
    return path


def progress_of(path: Path) -> RunProgress:
    """The progress of the run when the checkpoint was written."""
    found = _read_json(path / "progress.json")
    try:
        return TypeAdapter(RunProgress).validate_python(found, extra="forbid")
    except ValidationError as error:  # damaged, or of a newer version
        raise CheckpointError(f"{path / 'progress.json'}: {first_line(error)}; {_another(path)}") from None


def in_flight(progress: RunProgress) -> int:
    """Number of starts of asynchronous mode that are submitted and not yet trained on."""
    return len(progress.engines["in_flight"]) if progress.engines else 0


def continue_from(path: Path, run: "Run") -> RunProgress:
    """Restore all parts from a checkpoint. Raises ConfigError when the settings would lose starts in flight."""
    progress = progress_of(path)
    run.learner.restore(path / "learner")
    run.sources.restore(path / "sources")
    _set_up(run, progress)
    return progress


def start_over(run: "Run") -> RunProgress:
    """Reset all parts, with new ranks, to the beginning of a run."""
    progress = RunProgress(0, 0)
    run.sources.restore(None)
    _set_up(run, progress)
    return progress


def _set_up(run: "Run", progress: RunProgress) -> None:
    run.learner.version -= 1  # the broadcast adds 1, so the version stays the same
    if run.learner.broadcast(run.pool).gap is None:
        run.learner.check_engines(run.pool)
    run.engines.restore(progress.engines, run.at(progress.iteration))
