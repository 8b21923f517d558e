"""The starter: a small model with its own tokenizer, warm-started here, that replaces a pretrained one. It is an
ordinary Hugging Face directory (Qwen2 architecture, tied embeddings, safetensors).

Invariants: the result depends only on the starter settings, the task's texts and the seed; its folder is named by their
hash. A folder in the cache is complete: it is renamed when built. No evaluation problem is trained on.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from core.config import StarterConfig, TaskConfig, task_title
from core.errors import DataError, ModelError, first_line
from core.seeds import derive
from tasks.corpus import Corpus, synthetic_corpus, text_corpus
from tasks.kinds import find_kind, task_items
from tasks.problems import Tokenizer, prompt_form

FORMAT = 3  # part of the cache key: raise it when a change of the code makes another model from the same settings
NO_FOLDER = (
    "for a local folder give its path (./NAME); for a model with restricted access run `hf auth login`; without a "
    "connection download the model first and set HF_HUB_OFFLINE=1"
)
"""What helps when a model is no folder on this machine and was not found on the hub."""
CONTEXT = 2048  # positions of the model. Unused positions cost nothing with rotary embeddings.


def resolve_model(model_path: str, starter: StarterConfig, task: TaskConfig, seed: int) -> str:
    """The model to train: 'starter' is a directory in the cache, perhaps newly built; else a directory or hub name.
    Directories are absolute, because actors have another working directory. A hub name stays, because each node has its
    own cache. Raises ModelError for a directory or name that does not exist, DataError for the task's data."""
    if model_path == "starter":
        return str(_starter(starter, task, seed))
    place = Path(model_path).expanduser()
    if place.is_dir():
        return str(place.resolve())
    if place.is_absolute() or model_path.startswith(".") or model_path.count("/") > 1:
        raise ModelError(f"model.path = {model_path}: no such directory; give a directory, a hub name or 'starter'")
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(model_path)
    except Exception as error:  # the hub client raises many unrelated types; all mean that there is no such model
        raise ModelError(
            f"model.path = {model_path}: neither a directory nor a model on the hub ({first_line(error)}); {NO_FOLDER}"
        ) from None
    return model_path


def _starter(config: StarterConfig, task: TaskConfig, seed: int) -> Path:
    corpus = _corpus(config, task, seed)
    settings = config.model_dump(mode="json", exclude={"cache"})
    task_name = task_title(task)
    known = json.dumps([FORMAT, task_name, settings, seed, corpus.fingerprint], sort_keys=True)
    name = f"{task_name}-{hashlib.blake2b(known.encode(), digest_size=8).hexdigest()}"
    place = config.cache.expanduser().resolve() / name
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    except OSError as error:
        raise ModelError(
            f"starter.cache {config.cache}: {error.strerror or error}; name a folder that can be written"
        ) from None
    try:
        partial = place.parent / f".{name}.partial"
        build(work, config, corpus, seed, f"{task_name} starter", partial)
        os.chmod(work, 0o755)
        os.rename(work, place)
        partial.unlink(missing_ok=True)
    except OSError:
        if not place.is_dir():  # false if another run has built the same one first
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def build(directory: Path, config: StarterConfig, corpus: Corpus, seed: int, label: str, partial: Path) -> None:
    """Make tokenizer and model, train, and save both. `partial`: file of an interrupted warm-start's state."""
    import torch
    from transformers.utils import logging as transformers_logging

    from tasks.warmstart import warm_start

    tokenizer = corpus.tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "starter", "model"))
        model = small_model(config, tokenizer)
    warm_start(model, corpus, tokenizer, config, label, partial)
    transformers_logging.disable_progress_bar()  # "Writing model shards", for a second
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def small_model(config: StarterConfig, tokenizer: Tokenizer) -> Any:
    """A randomly initialised `Qwen2ForCausalLM` (float32) with exactly the tokenizer's vocabulary."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=3 * config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            initializer_range=0.5 * config.hidden_size**-0.5,  # the usual 0.02 fits widths near 1000
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _corpus(config: StarterConfig, task: TaskConfig, seed: int) -> Corpus:
    puzzle = find_kind(task.name).puzzle
    if puzzle is not None and not task.sources:
        return synthetic_corpus(puzzle, config, prompt_form(task)[0], seed)
    train = task_items(task, seed).train
    if not any(item.solution for item in train):
        raise DataError(
            f"starter: task {task_title(task)} has no canonical solutions to learn from; set task.columns.solution or "
            "model.path"
        )
    return text_corpus(config, task, train, seed)
