"""The starter: an ordinary Hugging Face directory, cached, repeatable, never trained on evaluation problems."""

import itertools
import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.config import Columns, StarterConfig, TaskConfig
from core.errors import DataError, ModelError
from tasks.corpus import Example, synthetic_corpus, text_corpus
from tasks.problems import Item, PromptForm
from tasks.starter import resolve_model
from tasks.synthetic.arithmetic import ARITHMETIC, steps
from tasks.synthetic.generated import is_for_evaluation
from tasks.warmstart import batches, tensors

TINY = StarterConfig(hidden_size=32, layers=1, heads=1, vocabulary=300, steps=12, batch_size=8, max_operations=2)


def resolve(model_path: str, starter: StarterConfig, task: TaskConfig, seed: int) -> Path:
    return Path(resolve_model(model_path, starter, task, seed))


def starter(cache: Path, **changes: object) -> StarterConfig:
    return TINY.model_copy(update={"cache": cache, **changes})


def gsm8k(tmp_path: Path) -> TaskConfig:
    rows = [
        {"q": f"Tom has {i} and gets {i + 1}?", "a": f"{i}+{i + 1}={2 * i + 1}\n#### {2 * i + 1}"} for i in range(40)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(prompt="q", answer="a", solution="a")
    return TaskConfig(name="gsm8k", path=str(file), columns=columns, eval_problems=8, template="Q: {prompt}\nA: ")


def test_the_starter_loads_as_any_model_and_its_tokenizer_comes_back_as_it_was(tmp_path: Path) -> None:
    for task in (TaskConfig(), gsm8k(tmp_path)):
        place = resolve("starter", starter(tmp_path / "cache"), task, 0)
        model = AutoModelForCausalLM.from_pretrained(place)
        tokenizer = AutoTokenizer.from_pretrained(place)
        assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
        assert model.config.tie_word_embeddings
        assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
        assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
        assert (place / "model.safetensors").is_file()
        text = ARITHMETIC.solution("7+5-3*2") if task.name == "arithmetic" else "Tom has 12 é\n#### 3"
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert (
            tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True) == text
        )
        if task.name == "arithmetic":
            assert len(ids) == len(text)  # one token per character, after loading too


def test_a_starter_is_built_once_and_the_same_again(tmp_path: Path) -> None:
    first = resolve("starter", starter(tmp_path / "a"), TaskConfig(), 0)
    written = os.stat(first / "model.safetensors").st_mtime_ns
    assert resolve("starter", starter(tmp_path / "a"), TaskConfig(), 0) == first
    assert os.stat(first / "model.safetensors").st_mtime_ns == written
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name]  # nothing half-built beside it
    torch.rand(3)  # the state of the global generator does not matter
    second = resolve("starter", starter(tmp_path / "b"), TaskConfig(), 0)
    assert first.name == second.name
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert resolve("starter", starter(tmp_path / "a", steps=13), TaskConfig(), 0) != first
    assert resolve("starter", starter(tmp_path / "a"), TaskConfig(), 1) != first


def test_an_interrupted_warm_start_continues_and_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 steps, saved after every 5, interrupted in step 8: steps 6 to 12 follow."""
    monkeypatch.setattr("tasks.warmstart.SAVE_EVERY", 5)
    whole = resolve("starter", starter(tmp_path / "whole"), TaskConfig(), 0)
    steps: list[int] = []

    def progress(_label: str, step: int, *_: object) -> None:
        steps.append(step)
        if len(steps) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr("tasks.warmstart._progress", progress)
    with pytest.raises(KeyboardInterrupt):
        resolve("starter", starter(tmp_path / "cut"), TaskConfig(), 0)
    cut = resolve("starter", starter(tmp_path / "cut"), TaskConfig(), 0)
    assert steps == [*range(1, 9), *range(6, 13)]
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [cut.name]  # nothing half-built


def test_two_runs_may_build_the_same_starter_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one writes its state, another process takes its own away."""
    monkeypatch.setattr("tasks.warmstart.SAVE_EVERY", 5)
    save = torch.save

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def also_by_another(state: object, path: Path) -> None:
        save(state, path)
        if os.getpid() != 7:
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 7)
                other.setattr("tasks.warmstart._progress", stop)  # after its first step, and so its first state
                other.setattr("tasks.warmstart.SAVE_EVERY", 1)
                with pytest.raises(KeyboardInterrupt):
                    resolve("starter", starter(tmp_path), TaskConfig(), 0)

    monkeypatch.setattr(torch, "save", also_by_another)
    built = resolve("starter", starter(tmp_path), TaskConfig(), 0)
    assert [path.name for path in tmp_path.iterdir()] == [built.name]


def test_models_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(ModelError, match=f"model.path = {name}: no such directory"):
            resolve(name, TINY, TaskConfig(), 0)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"nor a model on the hub .*give its path \(\./NAME\); .*hf auth login"):
        resolve("nobody/nothing-here", TINY, TaskConfig(), 0)
    assert resolve_model(str(tmp_path), TINY, TaskConfig(), 0) == str(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    assert resolve_model(f"./{tmp_path.name}", TINY, TaskConfig(), 0) == str(tmp_path)  # actors have another directory


def test_a_hub_name_stays_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has a cache of its own: the path in the driver's would lead nowhere."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda _: "/cache/of/this/machine")
    assert resolve_model("someone/model", TINY, TaskConfig(), 0) == "someone/model"


def test_a_text_starter_needs_solutions(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    task = task.model_copy(update={"columns": Columns(prompt="q", answer="a")})
    with pytest.raises(
        DataError, match=r"no canonical solutions to learn from; set task\.columns\.solution or model\.path"
    ):
        resolve("starter", starter(tmp_path), task, 0)


def test_the_arithmetic_corpus_has_short_chains_mostly_and_no_evaluation_problem() -> None:
    corpus = synthetic_corpus(ARITHMETIC, TINY.model_copy(update={"max_operations": 4}), PromptForm(), seed=0)
    tokenizer = corpus.tokenizer()
    drawn = list(itertools.islice(corpus.examples(tokenizer), 2000))
    again = list(itertools.islice(corpus.examples(tokenizer), 2000))
    assert drawn == again
    lengths: Counter[int] = Counter()
    for example in drawn:
        prompt = tokenizer.decode(example.ids[: example.loss_from])
        expression = prompt.removesuffix("=\n")
        assert not is_for_evaluation(expression)
        assert tokenizer.decode(example.ids[example.loss_from : -1]) == ARITHMETIC.solution(expression)
        assert example.ids[-1] == tokenizer.eos_token_id
        lengths[len(steps(expression))] += 1
    # 0.6^1..0.6^4 = 0.6 0.36 0.216 0.1296, sum 1.3056: 919 551 331 198 of 2000, standard deviations below 23
    assert [abs(lengths[n] - want) < 100 for n, want in enumerate((919, 551, 331, 198), 1)] == [True] * 4


def test_the_text_corpus_trains_on_prompt_and_solution() -> None:
    form = PromptForm("{prompt} A: ")
    items = [Item(f"q{i}", str(i), solution=f"s{i}\n#### {i}", form=form) for i in range(9)] + [Item("none", "1")]
    corpus = text_corpus(TINY, TaskConfig(name="gsm8k"), items, seed=0)
    tokenizer = corpus.tokenizer()
    epoch = list(itertools.islice(corpus.examples(tokenizer), 9))
    texts = [tokenizer.decode(example.ids, skip_special_tokens=True) for example in epoch]
    assert sorted(texts) == [f"q{i} A: s{i}\n#### {i}" for i in range(9)]
    assert {example.loss_from for example in epoch} == {1}


def test_batches_use_every_example_once_and_ignore_padding_and_prompt() -> None:
    examples = [Example([7] * n, n - 1) for n in (5, 2, 4, 3)]
    cut = list(itertools.islice(batches(iter(examples), 2, 2), 2))
    assert sorted(sorted(len(example.ids) for example in batch) for batch in cut) == [[2, 3], [4, 5]]
    inputs, targets = tensors([Example([1, 2, 3], 1), Example([4, 5], 1)], pad_id=0)
    assert inputs.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert targets.tolist() == [[-100, 2, 3], [-100, 5, -100]]
