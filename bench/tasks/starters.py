"""Small warm-started models for experiments and tests. `python -m bench.tasks.starters bench/recipes/rule.yaml` builds
the model of a recipe. Invariant: the same settings, task and seed give the same weights (on the same machine, with as
many threads)."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.tasks.guesses import shown
from core.config import TaskConfig, task_title
from core.errors import DataError
from core.load import load_config
from core.seeds import generator
from tasks.kinds import find_kind, task_items
from tasks.problems import Item, PromptForm, Tokenizer, prompt_form
from tasks.synthetic.corpus import (
    END,
    PAD,
    Corpus,
    Example,
    StarterSettings,
    character_tokenizer,
    example,
    qwen2_tokenizer,
    solved_puzzles,
)
from tasks.synthetic.generated import Puzzle
from tasks.synthetic.starter import FORMAT, build_once

WORD_PROBLEMS = 512  # generated problems from which the words of a vocabulary are learnt


@dataclass(frozen=True)
class Settings(StarterSettings):
    """A starter of any task."""

    slip: float = 0.0
    guess: float = 0.0  # share of answers that have the right form but random choices (`GuessedPuzzle`)
    vocabulary: int = 0  # tokens of a byte-level BPE; 0: one token per character of a generated task


SMALL = Settings(hidden_size=64, layers=2, heads=2)
GUESSING = replace(SMALL, guess=1.0, steps=800, lr=5e-3, max_operations=9)
STARTERS: Mapping[str, Settings] = {
    "rule": GUESSING,
    "calculator": replace(SMALL, steps=400, max_operations=3, slip=0.5),
    "guess": replace(SMALL, vocabulary=300, steps=400, max_operations=4, guess=0.9),
    "tiny": replace(SMALL, steps=300, lr=3e-3, max_operations=2),
    "gsm8k": Settings(hidden_size=64, layers=1, heads=2, vocabulary=400, steps=0),
    "dialogue": Settings(hidden_size=64, layers=1, heads=2, vocabulary=300, steps=20, batch_size=8),
    "apps": Settings(hidden_size=192, layers=3, heads=6, vocabulary=2048, steps=40, batch_size=16, lr=3e-3),
}
"""The starters of bench/recipes and tests/recipes, by the name of the recipe."""


def build_starter(folder: Path, settings: Settings, task: TaskConfig, seed: int = 0) -> str:
    """Build the starter of a task in `folder`, unless it is there with the same settings. Returns the folder. Raises
    DataError, ConfigError, ModelError."""
    known = json.dumps([FORMAT, asdict(settings), task_title(task), task.template, seed])
    note = folder.parent / f"{folder.name}.json"
    if folder.is_dir() and note.is_file() and note.read_text(encoding="utf-8") != known:
        shutil.rmtree(folder)
    build_once(folder, settings, corpus_of(settings, task, seed), seed, task_title(task))
    note.write_text(known, encoding="utf-8")
    return str(folder)


def corpus_of(settings: Settings, task: TaskConfig, seed: int) -> Corpus:
    """What the starter of a task learns from: generated problems, or rows with canonical solutions."""
    puzzle = find_kind(task.name).puzzle
    if puzzle is None or task.sources:
        return text_corpus(settings.vocabulary, task, task_items(task, seed).train, seed)
    form, _ = prompt_form(task)
    answer = partial(_shown, puzzle, settings)
    examples = solved_puzzles(puzzle, settings.max_operations, answer, form, seed)
    return Corpus(partial(_puzzle_tokenizer, puzzle, settings, form, seed), examples)


def _shown(puzzle: Puzzle, settings: Settings, text: str, rng: np.random.Generator) -> str:
    return shown(puzzle, text, settings.guess, settings.slip, rng)


def _puzzle_tokenizer(puzzle: Puzzle, settings: Settings, form: PromptForm, seed: int) -> Tokenizer:
    if not settings.vocabulary:
        return character_tokenizer(puzzle.alphabet + form.text(""))
    rng, lengths = generator(seed, "words", puzzle.name), range(1, settings.max_operations + 1)
    drawn = (puzzle.draw(rng, int(rng.choice(lengths))) for _ in range(WORD_PROBLEMS))
    return byte_pair_tokenizer([f"{form.text(text)}\n{puzzle.solution(text)}" for text in drawn], settings.vocabulary)


def text_corpus(vocabulary: int, task: TaskConfig, items: list[Item], seed: int) -> Corpus:
    """The training problems of a text task that have a canonical solution, in a new order every epoch. Raises
    DataError when there is none."""
    solved = [item for item in items if item.solution is not None]
    if not any(item.solution for item in solved):
        raise DataError(f"task {task_title(task)} has no canonical solutions to learn from; set task.columns.solution")
    texts = [f"{item.prompt if item.messages else item.form.text(item.prompt)}{item.solution}" for item in solved]

    def _examples(tokenizer: Tokenizer) -> Iterator[Example]:
        encoded = [example(item, tokenizer, whole=True) for item in solved]
        epoch = 0
        while True:
            for index in generator(seed, "starter", task.name, epoch).permutation(len(encoded)):
                yield encoded[index]
            epoch += 1

    return Corpus(lambda: byte_pair_tokenizer(texts, vocabulary), _examples, pool=16)


def byte_pair_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of `vocabulary` tokens (fewer if the texts yield no more), trained on the texts."""
    from tokenizers import pre_tokenizers, trainers

    backend = qwen2_tokenizer({PAD: 0, END: 1}, []).backend_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    trained = json.loads(backend.to_str())["model"]
    return qwen2_tokenizer(trained["vocab"], [tuple(merge) for merge in trained["merges"]])


def main(recipe: Path) -> None:
    """Build the starter that a recipe names as its `model.path`."""
    config = load_config(recipe)
    print(build_starter(Path(config.model.path), STARTERS[recipe.stem], config.task, config.run.seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
