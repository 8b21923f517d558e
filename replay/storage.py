"""Files of the store on any `pyarrow.fs` storage: open a URI, write a file as a whole, name what went wrong.

Used by the shards and the driver. Invariant: a manifest is read as it was written last, or as it was before that, never as
half of either; other files count from the moment that a manifest, or their own checksum, says so.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash

from core.errors import StoreError, first_line
from replay.records import Counters
from replay.snapshot import Snapshot

_PLAIN: dict[str, Any] = {"compression": "lz4", "use_dictionary": False}
_PARQUET = {
    "problems": _PLAIN,
    "states": _PLAIN,
    # Parquet has no 16-bit integers: with the bytes of its 32 bits apart, the empty ones compress to nothing
    "trajectories": _PLAIN | {"use_byte_stream_split": ["tokens.list.element"]},
}

_CREDENTIALS = re.compile(r"://[^/@\s]*@")

Manifest = dict[str, Any]
"""JSON that names a snapshot's files, with their rows and hashes."""


@contextmanager
def explained(action: str, path: str) -> Iterator[None]:
    """Turn errors of the storage into one line that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"cannot {action} {path}: {_CREDENTIALS.sub('://', first_line(error))}; check the path, its permissions and the free space"
        ) from error


def joined(uri: str, name: str) -> str:
    """The path or URI of something inside a folder; what follows a `?` (the storage's options) stays at the end.

    >>> joined("s3://bucket/runs?region=eu-west-1", "shard-0")
    's3://bucket/runs/shard-0?region=eu-west-1'
    """
    path, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def shown(uri: str) -> str:
    """A URI for messages and logs: without options and credentials.

    >>> shown("s3://key:secret@bucket/runs?region=eu-west-1")
    's3://bucket/runs'
    """
    return _CREDENTIALS.sub("://", uri.partition("?")[0]) if "://" in uri else uri


class Folder:
    """A folder on some storage."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        with explained("open", shown(uri)):
            if "://" in uri:
                self.files, self.path = pafs.FileSystem.from_uri(uri)
            else:
                self.files, self.path = pafs.LocalFileSystem(), os.path.abspath(uri)
        self.local = isinstance(self.files, pafs.LocalFileSystem)

    def make(self) -> "Folder":
        """Create the folder and its parents where they are missing."""
        with explained("create the folder", shown(self.uri)):
            self.files.create_dir(self.path, recursive=True)
        return self

    def child(self, name: str) -> "Folder":
        """A folder inside this one."""
        return Folder(joined(self.uri, name))

    def names(self) -> list[str]:
        """Names of the files in it, sorted; none when the folder is missing."""
        with explained("list", shown(self.uri)):
            found = self.files.get_file_info(pafs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.File)

    def where(self, name: str) -> str:
        """Path of a file on the storage."""
        return f"{self.path.rstrip('/')}/{name}"

    def named(self, name: str) -> str:
        """A file of it for messages."""
        return joined(shown(self.uri), name)

    def read(self, name: str) -> pa.Buffer:
        """A whole file."""
        with explained("read", self.named(name)), self.files.open_input_stream(self.where(name)) as stream:
            return stream.read_buffer()

    def write_whole(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file; on disk when this returns. On local storage it is complete or not there, whatever happens."""
        with explained("write", self.named(name)):
            partial = f"{name}.partial" if self.local else name
            with self.files.open_output_stream(self.where(partial)) as stream:
                stream.write(data)
            if self.local:
                self.sync(partial)
                os.replace(self.where(partial), self.where(name))
                self.sync("")

    def sync(self, name: str) -> None:
        """Force a file (or with "" the folder's entries) of a local storage to disk; others do so on closing."""
        if self.local:
            handle = os.open(self.where(name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def remove(self, names: list[str]) -> None:
        """Delete files, missing ones are no error."""
        present = set(self.names())
        with explained("delete a file of", shown(self.uri)):
            for name in names:
                if name in present:
                    self.files.delete_file(self.where(name))


class _Hashed:
    """What is written to a stream, hashed on the way. Parquet's own checksums leave out its page headers."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash = stream, xxhash.xxh3_64()
        self.closed = False

    def write(self, data: Any) -> int:
        """Hash and pass on; bytes written."""
        self._hash.update(data)
        return int(self._stream.write(data))

    def flush(self) -> None:
        """Of the stream behind it."""
        self._stream.flush()

    def close(self) -> None:
        """Nothing more comes; the stream is closed by whoever opened it."""
        self.closed = True

    def digest(self) -> str:
        """Of all that was written, in hexadecimal digits."""
        return str(self._hash.hexdigest())


def write_snapshot(
    folder: Folder, prefix: str, parts: Iterator[Snapshot], rest: Callable[[float], object] | None = None
) -> Manifest:
    """Write the tables as PREFIX-TABLE.parquet; the manifest that makes them a snapshot, to be written by the caller.

    `rest` is called after each part with the seconds it took, to leave the processor to others.
    """
    rows = dict.fromkeys(_PARQUET, 0)
    names = {table: f"{prefix}-{table}.parquet" for table in _PARQUET}
    with explained("write", folder.named(f"{prefix}-*.parquet")), ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        streams: dict[str, _Hashed] = {}
        start = time.monotonic()
        for part in parts:
            for table, name in names.items():
                content = getattr(part, table)
                if table not in writers:
                    opened = stack.enter_context(folder.files.open_output_stream(folder.where(name)))
                    streams[table] = _Hashed(opened)
                    writer = pq.ParquetWriter(streams[table], content.schema, **_PARQUET[table])
                    writers[table] = stack.enter_context(writer)
                writers[table].write_table(content)
                rows[table] += content.num_rows
            if rest is not None:
                rest(time.monotonic() - start)
            start = time.monotonic()
    for name in names.values():
        with explained("write", folder.named(name)):
            folder.sync(name)
    files = {table: {"name": names[table], "rows": rows[table], "hash": streams[table].digest()} for table in names}
    return {"files": files, "counters": asdict(part.counters), "version": part.version, "gate": part.gate}


def read_snapshot(folder: Folder, manifest: Manifest) -> Snapshot:
    """The snapshot that a manifest names."""
    tables = {}
    for table, entry in manifest["files"].items():
        path, data = folder.named(entry["name"]), folder.read(entry["name"])
        if xxhash.xxh3_64_hexdigest(data) != entry["hash"]:
            raise StoreError(f"{path}: its hash does not match its manifest; the file is damaged, restore a checkpoint")
        with explained("read", path):
            tables[table] = pq.read_table(pa.BufferReader(data))
        if tables[table].num_rows != entry["rows"]:
            raise StoreError(
                f"{path}: {tables[table].num_rows} rows, but its manifest says {entry['rows']}; restore an older checkpoint"
            )
    return Snapshot(
        **tables, counters=Counters(**manifest["counters"]), version=manifest["version"], gate=manifest["gate"]
    )


def manifest_files(folder: Folder, name: str) -> list[str]:
    """The files that hold, or were to hold, a manifest, the newest first: NAME.json, and NAME-NUMBER.json one per version."""
    pattern = re.compile(re.escape(name).replace(r"\.json", r"(-\d{16})?\.json"))
    found = [file for file in folder.names() if pattern.fullmatch(file)]
    return sorted(found, key=lambda file: (len(file), file), reverse=True)


def write_manifest(folder: Folder, name: str, manifest: Manifest) -> None:
    """Write a manifest with a hash of itself, in the place of an older one.

    Local files are replaced as a whole. Other storages may show half of an object that is written anew: there it gets a number
    of its own, and the older ones are deleted when it is complete; what they name must be deleted after that.
    """
    text = json.dumps(manifest, sort_keys=True)
    record = {"hash": xxhash.xxh3_64_hexdigest(text.encode()), "manifest": manifest}
    data = json.dumps(record, indent=1).encode()
    older = manifest_files(folder, name)
    stem, target = name.removesuffix(".json"), name
    if not folder.local:
        number = 1 + max((int(file[len(stem) + 1 : -5]) for file in older if file != name), default=0)
        target = f"{stem}-{number:016d}.json"
    folder.write_whole(target, data)
    folder.remove([file for file in older if file != target])


def find_manifest(folder: Folder, name: str) -> Manifest | None:
    """The newest manifest whose writing came to its end; None when there is none. StoreError for a damaged one."""
    for file in manifest_files(folder, name):
        try:
            data = folder.read(file).to_pybytes()
        except StoreError:
            if file in folder.names():
                raise
            return find_manifest(folder, name)  # replaced meanwhile
        if folder.local or _whole(data):
            return _checked(folder.named(file), data)
    return None


def read_manifest(folder: Folder, name: str) -> Manifest:
    """A manifest that must be there."""
    manifest = find_manifest(folder, name)
    if manifest is None:
        raise StoreError(f"{folder.named(name)}: not there; name the folder of a replay store or of a checkpoint")
    return manifest


def _whole(data: bytes) -> bool:
    """Whether JSON is not cut off."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def _checked(where: str, data: bytes) -> Manifest:
    try:
        found = json.loads(data)
        manifest: Manifest = found["manifest"]
        if xxhash.xxh3_64_hexdigest(json.dumps(manifest, sort_keys=True).encode()) != found["hash"]:
            raise StoreError(f"{where}: its hash does not match; the file is damaged, restore an older checkpoint")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{where}: not a manifest of a replay store") from error
    return manifest
