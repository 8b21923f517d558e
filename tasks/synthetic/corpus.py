"""What a starter is, and what it learns from: a tokenizer, and an endless, seeded stream of solved problems. None of
them is for evaluation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from core.seeds import generator
from tasks.problems import Item, PromptForm, Tokenizer, render_item, respond
from tasks.synthetic.generated import Puzzle, is_for_evaluation

PAD, END = "<|pad|>", "<|endoftext|>"
DECAY = 0.6  # frequency of a length relative to the one before, so that success falls slowly
Shown = Callable[[str, np.random.Generator], str]  # text of a problem -> what a starter is shown as its response


@dataclass(frozen=True)
class StarterSettings:
    """The size of a starter, and its warm-start. The defaults are those of configs/arithmetic.yaml."""

    hidden_size: int = 128  # heads x a head size that vLLM's CPU engine has: 32, 64, 80, 96, 112, 128
    layers: int = 3
    heads: int = 4
    steps: int = 700  # optimizer steps; 0: random weights
    batch_size: int = 64  # solutions per step
    lr: float = 2e-3  # at its peak
    max_operations: int = 8  # of the longest problem; problems with one more operation are 0.6 times as frequent
    slip: float = 0.6  # share of solutions without their last line; training must correct this habit


@dataclass(frozen=True, slots=True)
class Example:
    """A solved problem: prompt, response, end of sequence. The loss is taken from token `loss_from` on."""

    ids: list[int]
    loss_from: int


Examples = Callable[[Tokenizer], Iterator[Example]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The training data of a starter. `pool`: see `tasks.synthetic.warm_start.batches`."""

    tokenizer: Callable[[], Tokenizer]
    examples: Examples
    pool: int = 1


def solved_puzzles(puzzle: Puzzle, longest: int, shown: Shown, form: PromptForm, seed: int) -> Examples:
    """Problems of 1 to `longest` operations, each length `DECAY` times as frequent as the one before."""
    lengths = range(1, longest + 1)
    weights = [DECAY**length for length in lengths]

    def _examples(tokenizer: Tokenizer) -> Iterator[Example]:
        rng = generator(seed, "starter", puzzle.name)
        shares = [weight / sum(weights) for weight in weights]
        while True:
            text = puzzle.draw(rng, int(rng.choice(lengths, p=shares)))
            if not is_for_evaluation(text):
                item = replace(puzzle.item(text), solution=shown(text, rng), form=form)
                yield example(item, tokenizer, whole=False)

    return _examples


def careless(solution: str, slip: float, rng: np.random.Generator) -> str:
    """A solution that lacks its last line with probability `slip`: a starter then often does not finish, as supervised
    models often do not, and learns to finish from the reward."""
    return solution[: solution.rfind("\n") + 1] if slip > 0 and rng.random() < slip else solution


def example(item: Item, tokenizer: Tokenizer, *, whole: bool) -> Example:
    """The example of a problem with a solution. `whole`: the loss also covers the prompt (a text model learns language
    from both)."""
    assert item.solution is not None
    prompt = render_item(tokenizer, item)
    return Example(prompt + respond(tokenizer, item.solution), 1 if whole else len(prompt))


def character_tokenizer(characters: str) -> Tokenizer:
    """One token per byte of these characters (ASCII: per character): a BPE without merges."""
    from tokenizers import pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    mapped = dict.fromkeys("".join(piece for piece, _ in level.pre_tokenize_str(characters)))
    return qwen2_tokenizer({token: i for i, token in enumerate([PAD, END, *mapped])}, [])


def qwen2_tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """A tokenizer of Qwen2's own class: AutoTokenizer ignores the class and the pre-tokenizer in a qwen2 directory
    (models/auto/tokenization_auto.py), so another would silently be loaded as a different one."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer(vocab=vocabulary, merges=merges, eos_token=END, pad_token=PAD, unk_token=END)
