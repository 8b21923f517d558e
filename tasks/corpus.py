"""The corpus of a starter: its tokenizer and an endless, seeded stream of solved problems, none for evaluation."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from core.config import StarterConfig, TaskConfig
from core.seeds import generator
from tasks.problems import Item, PromptForm, Tokenizer, render_item, respond
from tasks.synthetic.generated import Puzzle, is_for_evaluation, shown

PAD, END = "<|pad|>", "<|endoftext|>"
DECAY = 0.6  # generated tasks: frequency of a length relative to the one before, so that success falls slowly

WORD_PROBLEMS = 512  # problems from which the words of `Puzzle.words` are learnt


@dataclass(frozen=True, slots=True)
class Example:
    """A solved problem: prompt, response, end of sequence. The loss is taken from token `loss_from` on."""

    ids: list[int]
    loss_from: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """The training data of a starter. `fingerprint`: hash of all its texts; `pool`: see `tasks.warmstart.batches`."""

    tokenizer: Callable[[], Tokenizer]
    examples: Callable[[Tokenizer], Iterator[Example]]
    fingerprint: str
    pool: int


def synthetic_corpus(puzzle: Puzzle, starter: StarterConfig, form: PromptForm, seed: int) -> Corpus:
    """Problems of 1 to starter.max_operations operations, each length `DECAY` times as frequent as the one before."""
    lengths = range(1, starter.max_operations + 1)
    weights = [DECAY**length for length in lengths]

    def _examples(tokenizer: Tokenizer) -> Iterator[Example]:
        rng = generator(seed, "starter", puzzle.name)
        shares = [weight / sum(weights) for weight in weights]
        while True:
            text = puzzle.draw(rng, int(rng.choice(lengths, p=shares)))
            if not is_for_evaluation(text):
                item = replace(puzzle.item(text), solution=shown(puzzle, text, starter, rng), form=form)
                yield _example(item, tokenizer, whole=False)

    def _tokenizer() -> Tokenizer:
        if not puzzle.words:
            return character_tokenizer(puzzle.alphabet + form.text(""))
        rng = generator(seed, "words", puzzle.name)
        drawn = (puzzle.draw(rng, int(rng.choice(lengths))) for _ in range(WORD_PROBLEMS))
        return byte_pair_tokenizer(
            [f"{form.text(text)}\n{puzzle.solution(text)}" for text in drawn], starter.vocabulary
        )

    return Corpus(_tokenizer, _examples, form.text("{prompt}") + "words" * puzzle.words, pool=1)


def text_corpus(starter: StarterConfig, task: TaskConfig, items: list[Item], seed: int) -> Corpus:
    """The training problems of a text task that have a canonical solution, in a new order every epoch."""
    solved = [item for item in items if item.solution is not None]
    texts = [f"{item.prompt if item.messages else item.form.text(item.prompt)}{item.solution}" for item in solved]

    def _examples(tokenizer: Tokenizer) -> Iterator[Example]:
        encoded = [_example(item, tokenizer, whole=True) for item in solved]
        epoch = 0
        while True:
            for index in generator(seed, "starter", task.name, epoch).permutation(len(encoded)):
                yield encoded[index]
            epoch += 1

    state = hashlib.blake2b(digest_size=16)
    for text in texts:
        state.update(text.encode("utf-8", "surrogatepass") + b"\x00")
    return Corpus(lambda: byte_pair_tokenizer(texts, starter.vocabulary), _examples, state.hexdigest(), pool=16)


def _example(item: Item, tokenizer: Tokenizer, *, whole: bool) -> Example:
    """`whole`: the loss also covers the prompt (a text model learns language from both)."""
    assert item.solution is not None
    prompt = render_item(tokenizer, item)
    return Example(prompt + respond(tokenizer, item.solution), 1 if whole else len(prompt))


def character_tokenizer(characters: str) -> Tokenizer:
    """One token per byte of these characters (ASCII: per character): a BPE without merges."""
    from tokenizers import pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    mapped = dict.fromkeys("".join(piece for piece, _ in level.pre_tokenize_str(characters)))
    return _qwen2_tokenizer({token: i for i, token in enumerate([PAD, END, *mapped])}, [])


def byte_pair_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of `vocabulary` tokens (fewer if the texts yield no more), trained on the texts."""
    from tokenizers import pre_tokenizers, trainers

    backend = _qwen2_tokenizer({PAD: 0, END: 1}, []).backend_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    trained = json.loads(backend.to_str())["model"]
    return _qwen2_tokenizer(trained["vocab"], [tuple(merge) for merge in trained["merges"]])


def _qwen2_tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """A tokenizer of Qwen2's own class: AutoTokenizer ignores the class and the pre-tokenizer in a qwen2 directory
    (models/auto/tokenization_auto.py), so another would silently be loaded as a different one."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer(vocab=vocabulary, merges=merges, eos_token=END, pad_token=PAD, unk_token=END)
