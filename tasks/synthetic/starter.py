"""The starter (`model.path: starter`): a small model with its own tokenizer, warm-started here on chained arithmetic. A
run with it needs no download. It is an ordinary Hugging Face directory (Qwen2 architecture, tied embeddings,
safetensors).

Invariants: the result depends only on the settings, the prompts' template and the seed; its folder is named by their
hash. A folder in the cache is complete: it is renamed when built. No evaluation problem is trained on.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from core.config import TaskConfig, task_title
from core.errors import ConfigError, ModelError
from core.seeds import derive
from tasks.problems import Tokenizer, prompt_form
from tasks.synthetic.arithmetic import ARITHMETIC
from tasks.synthetic.corpus import Corpus, StarterSettings, careless, character_tokenizer, solved_puzzles

FORMAT = 4  # part of a folder's name: raise it when a change of the code makes another model from the same settings
CACHE = Path(".cache/starters")  # where built starters are kept
USUAL = StarterSettings()
CONTEXT = 2048  # positions of the model. Unused positions cost nothing with rotary embeddings.


def arithmetic_starter(task: TaskConfig, seed: int, settings: StarterSettings = USUAL, cache: Path = CACHE) -> Path:
    """The directory of the starter for a task, built if need be. Raises ConfigError, ModelError."""
    check_task(task)
    form, _ = prompt_form(task)

    def _shown(text: str, rng: np.random.Generator) -> str:
        return careless(ARITHMETIC.solution(text), settings.slip, rng)

    known = json.dumps([FORMAT, asdict(settings), form.text("{prompt}"), seed])
    name = f"{ARITHMETIC.name}-{hashlib.blake2b(known.encode(), digest_size=8).hexdigest()}"
    place = cache.resolve() / name
    corpus = Corpus(
        lambda: character_tokenizer(ARITHMETIC.alphabet + form.text("")),
        solved_puzzles(ARITHMETIC, settings.max_operations, _shown, form, seed),
    )
    build_once(place, settings, corpus, seed, ARITHMETIC.name)
    return place


def check_task(task: TaskConfig) -> None:
    """Raises ConfigError for a task that the starter is not made for."""
    if task.sources or task.name != ARITHMETIC.name:
        raise ConfigError(
            f"model.path = starter is a model for task {ARITHMETIC.name} only; name a model for task {task_title(task)}"
        )


def build_once(place: Path, settings: StarterSettings, corpus: Corpus, seed: int, name: str) -> None:
    """Build a starter in the folder `place`, unless it is there. Several processes may do so at once; a build that was
    interrupted continues. `name`: for the line that shows progress. Raises ModelError."""
    if place.is_dir():
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise ModelError(
            f"{place.parent}: {error.strerror or error}; the starter is built there; start in a folder that can be "
            "written"
        ) from None
    try:
        partial = place.parent / f".{place.name}.partial"
        _build(work, settings, corpus, seed, f"{name} starter", partial)
        os.chmod(work, 0o755)
        os.rename(work, place)
        partial.unlink(missing_ok=True)
    except OSError:
        if not place.is_dir():  # false if another run has built the same one first
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build(directory: Path, settings: StarterSettings, corpus: Corpus, seed: int, label: str, partial: Path) -> None:
    """Make tokenizer and model, train, and save both. `partial`: file of an interrupted warm-start's state."""
    import torch
    from transformers.utils import logging as transformers_logging

    from tasks.synthetic.warm_start import warm_start

    tokenizer = corpus.tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "starter", "model"))
        model = _small_model(settings, tokenizer)
    warm_start(model, corpus, tokenizer, settings, label, partial)
    transformers_logging.disable_progress_bar()  # "Writing model shards", for a second
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _small_model(settings: StarterSettings, tokenizer: Tokenizer) -> Any:
    """A randomly initialised `Qwen2ForCausalLM` (float32) with exactly the tokenizer's vocabulary."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=3 * settings.hidden_size,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            initializer_range=0.5 * settings.hidden_size**-0.5,  # the usual 0.02 fits widths near 1000
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
