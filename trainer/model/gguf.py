"""Converts a `.gguf` file once to a Hugging Face folder, which the rest of the program uses. Invariant: a folder in the
cache is complete (written under another name, then renamed), and its name has the digest of the file's content."""

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from core.errors import ModelError, first_line
from core.machine import NoEnd, bounded

if TYPE_CHECKING:
    from gguf import GGUFReader

CACHE = Path(".cache/models")
FORMAT = 1  # part of the digest: raise it when a change of the code makes another folder from the same file
INSTALLED = "SmolLM2-135M-Instruct.Q4_1.gguf"  # the file that `make model` installs
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of plain weights. All others are quantised: saved in bfloat16, which has more digits than eight bits."""


def model_folder(path: str, field: str = "", cache: Path = CACHE) -> str:
    """The Hugging Face folder of a `.gguf` file, converted if the cache lacks it. Any other path or hub name is
    returned unchanged. `field`: the configuration field that names the file, for errors. Raises ModelError."""
    file = Path(path).expanduser()
    if file.suffix.lower() != ".gguf" or file.is_dir():
        return path
    where = f"{field} = {path}" if field else path
    if not file.is_file():
        remedy = "run `make model`, which installs it" if file.name == INSTALLED else "correct the path"
        raise ModelError(f"{where}: no such file; {remedy}")
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, partial(xxhash.xxh3_64, seed=FORMAT)).hexdigest()
    except OSError as error:
        raise ModelError(f"{where}: {error.strerror or error}") from None
    folder = cache.expanduser().resolve() / f"{file.stem}-{digest}"
    if not folder.is_dir():
        begun = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars of three libraries, for a few seconds
            model, tokenizer = _read(file, where)
        _save(model, tokenizer, folder)
        print(f"model: {path} converted to {folder} in {time.perf_counter() - begun:.0f} s", flush=True)
    return str(folder)


def _read(file: Path, where: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    weights_type = _check(file, where)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        plain = GgufConfig(dequantize=True)
        read, report = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=weights_type, quantization_config=plain, output_loading_info=True
        )
    except Exception as error:  # the readers raise many unrelated types; all mean that the file cannot be used
        raise ModelError(f"{where}: transformers cannot read it: {first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):  # transformers would leave random weights there
        raise ModelError(f"{where}: no weights for {len(missing)} tensors, such as {missing[0]}; use a complete file")
    return _plain(read), tokenizer


def _open(file: Path) -> "GGUFReader":
    """Header and sizes of a file. Raises whatever the package raises, and ValueError where the header counts more than
    the file has bytes: the package would take as many turns."""
    import numpy as np
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):
        """Refuses to read behind the end, where the package finds empty values."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            found = super()._get(offset, dtype, self._fitting(count), override_order)
            if len(found) < count:
                raise ValueError(f"the file ends within {count} values")
            return found

        def _fitting(self, count: int) -> int:
            if count > len(self.data):
                raise ValueError(f"its header counts {count} in a file of {len(self.data)} bytes")
            return count

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:  # its kind, then how many
                self._fitting(self._get(orig_offs + 4, np.uint64)[0])
            return super()._get_field_parts(orig_offs, raw_type)

        def _build_fields(self, offs: int, count: int) -> Any:
            return super()._build_fields(offs, self._fitting(count))

        def _build_tensor_info(self, offs: int, count: int) -> Any:
            return super()._build_tensor_info(offs, self._fitting(count))

    return Reader(file)


def _check(file: Path, where: str) -> str:
    """Read header and sizes of a file. Returns the type to save its weights in. Raises ModelError."""
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ModelError(f"{where}: not a GGUF file")
    try:
        with bounded(30.0, 2**31 + file.stat().st_size):
            reader = _open(file)
    except (Exception, NoEnd) as error:  # many unrelated types, by the place of the damage
        raise ModelError(f"{where}: damaged or incomplete ({first_line(error)}); copy or download it again") from error
    if _value(reader, "split.count", 1) > 1:
        raise ModelError(f"{where}: one part of several; join them with `llama-gguf-split --merge`")
    if not {"tokenizer.ggml.model", "tokenizer.ggml.tokens"} <= reader.fields.keys():
        raise ModelError(f"{where}: no tokenizer in it; use a file that has one, or a Hugging Face folder")
    sizes = Counter[str]()
    for tensor in reader.tensors:
        sizes[tensor.tensor_type.name] += tensor.n_elements
    if not sizes:
        raise ModelError(f"{where}: no weights in it; use a complete file")
    return FLOATS.get(sizes.most_common(1)[0][0], "bfloat16")


def _value(reader: "GGUFReader", name: str, default: int) -> int:
    field = reader.get_field(name)
    return default if field is None else int(field.contents())


def _plain(read: Any) -> Any:
    """The model without the mark of a quantised one, which `save_pretrained` refuses."""
    import torch

    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    return model


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    from transformers.utils import logging as transformers_logging

    work = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        transformers_logging.disable_progress_bar()  # "Writing model shards", for a second
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        os.chmod(work, 0o755)
        os.rename(work, folder)
    except OSError as error:
        if not folder.is_dir():  # true if another run has converted the same file first
            raise ModelError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
