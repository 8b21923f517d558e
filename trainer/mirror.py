"""A copy of the run directory at a URI (S3, GCS, HDFS, any fsspec file system). Invariant: `latest` and `best` there
name complete checkpoints: they are written last, and deleted before a checkpoint of their name is written again."""

import logging
from contextlib import suppress
from pathlib import Path

from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileSystem, FileType, FSSpecHandler, LocalFileSystem, PyFileSystem, copy_files

from core.errors import CheckpointError, ConfigError, first_line
from core.run_directory import RunDirectory, write_atomically

FAILURES = (OSError, ArrowException, ValueError, ImportError)
POINTERS = ("best", "latest")
"""The files that name a checkpoint, in the order in which they are copied."""
logger = logging.getLogger("retrospect.mirror")


def open_store(uri: str) -> tuple[FileSystem, str]:
    """The file system of a URI, and the path in it. Raises ConfigError when it cannot be opened."""
    try:
        try:
            store, path = FileSystem.from_uri(uri)
        except ArrowException:  # a scheme that Arrow does not know
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            found, path = url_to_fs(uri)
            store = PyFileSystem(FSSpecHandler(found))
    except FAILURES as error:
        raise ConfigError(f"{uri}: {first_line(error)}; name a folder such as s3://bucket/path") from None
    return store, path.rstrip("/")


def upload(run: RunDirectory, uri: str, checkpoint: str = "") -> str:
    """Copy the run to uri/NAME: its `checkpoint`, if one is named, and all files that are not of checkpoints or of the
    live store. The newest and the best checkpoint are copied, too, if the copy has other ones. Returns the end of a
    line for a person. A failure is a warning: the next call tries again."""
    try:
        store, root = open_store(uri)
        _upload(run, store, f"{root}/{run.name}", checkpoint)
    except (ConfigError, *FAILURES) as error:
        then = "the next checkpoint tries again" if checkpoint else f"copy {run.path} there"
        line = f"not copied to {uri} ({first_line(error)}); {then}"
        logger.warning(line)
        return f"; {line}"
    return f"; copied to {uri}"


def _upload(run: RunDirectory, store: FileSystem, root: str, checkpoint: str) -> None:
    here, checkpoints = LocalFileSystem(), {checkpoint} - {""}
    for name in POINTERS:
        pointer = run.checkpoints / name
        text = pointer.read_text(encoding="utf-8") if pointer.exists() else ""
        if text != _text(store, f"{root}/checkpoints/{name}"):  # it is new, or an earlier copy failed
            checkpoints |= {named for named in text.split()[:1] if (run.checkpoints / named).is_dir()}
    for named in sorted(checkpoints):
        target = f"{root}/checkpoints/{named}"
        if store.get_file_info(target).type != FileType.NotFound:  # the run was resumed from an earlier one
            for name in POINTERS:
                if _text(store, there := f"{root}/checkpoints/{name}").startswith(named):  # another one is complete
                    store.delete_file(there)
            store.delete_dir(target)
        _copy(here, str(run.checkpoints / named), store, target)
    for path in run.path.iterdir():
        if not path.name.startswith(".") and path not in (run.checkpoints, run.replay):
            _copy(here, str(path), store, f"{root}/{path.name}")
    if not run.policy.exists() and store.get_file_info(f"{root}/policy").type == FileType.Directory:
        store.delete_dir(f"{root}/policy")  # the run had finished, and goes on
    for name in POINTERS if checkpoints else ():
        if (run.checkpoints / name).exists():
            _copy(here, str(run.checkpoints / name), store, f"{root}/checkpoints/{name}")
    for info in store.get_file_info(FileSelector(f"{root}/checkpoints", allow_not_found=True)):
        if info.type == FileType.Directory and not (run.checkpoints / info.base_name).exists():
            store.delete_dir(info.path)


def _text(store: FileSystem, path: str) -> str:
    """The content of a file; empty if there is none."""
    with suppress(FileNotFoundError):
        return str(store.open_input_stream(path).read().decode())
    return ""


def download(uri: str, root: Path) -> Path:
    """Copy the run at `uri` (newest and best checkpoint) to root/NAME, if it is not there. Raises CheckpointError."""
    store, base = open_store(uri)
    run = RunDirectory(root.expanduser().resolve() / base.rpartition("/")[2])
    if (run.checkpoints / "latest").exists():
        print(f"{run.path} is here: it continues from its own last checkpoint", flush=True)
        return run.path
    try:
        latest = store.open_input_stream(f"{base}/checkpoints/latest").read().decode()
        for folder in run.folders():
            folder.mkdir(parents=True, exist_ok=True)
        here = LocalFileSystem()
        for info in store.get_file_info(FileSelector(base)):
            if info.base_name not in ("checkpoints", ""):
                _copy(store, info.path, here, str(run.path / info.base_name))
        for info in store.get_file_info(FileSelector(f"{base}/checkpoints")):
            if info.base_name not in ("latest", ""):
                _copy(store, info.path, here, str(run.checkpoints / info.base_name))
        write_atomically(run.checkpoints / "latest", latest)
    except FAILURES as error:
        raise CheckpointError(f"{uri}: no run to resume ({first_line(error)}); name the folder of a run") from None
    print(f"copied {uri} to {run.path}", flush=True)
    return run.path


def _copy(source: FileSystem, path: str, target: FileSystem, to: str) -> None:
    if source.get_file_info(path).type == FileType.Directory:
        target.create_dir(to)
    copy_files(path, to, source_filesystem=source, destination_filesystem=target)
