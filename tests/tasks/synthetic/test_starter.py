"""The starter: an ordinary Hugging Face directory, cached, repeatable, never trained on evaluation problems."""

import itertools
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.config import TaskConfig
from core.errors import ConfigError, ModelError
from tasks.problems import PromptForm
from tasks.synthetic.arithmetic import ARITHMETIC, steps
from tasks.synthetic.corpus import Example, StarterSettings, careless, character_tokenizer, solved_puzzles
from tasks.synthetic.generated import is_for_evaluation
from tasks.synthetic.starter import arithmetic_starter
from tasks.synthetic.warm_start import batches, tensors

TINY = StarterSettings(hidden_size=32, layers=1, heads=1, steps=12, batch_size=8, max_operations=2)


def starter(cache: Path, seed: int = 0, **changes: int) -> Path:
    return arithmetic_starter(TaskConfig(), seed, replace(TINY, **changes), cache)


def test_the_starter_loads_as_any_model_and_its_tokenizer_comes_back_as_it_was(tmp_path: Path) -> None:
    place = starter(tmp_path / "cache")
    model = AutoModelForCausalLM.from_pretrained(place)
    tokenizer = AutoTokenizer.from_pretrained(place)
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert model.config.tie_word_embeddings
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert (place / "model.safetensors").is_file()
    text = ARITHMETIC.solution("7+5-3*2")
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True) == text
    assert len(ids) == len(text)  # one token per character, after loading too


def test_the_starter_is_for_arithmetic_alone() -> None:
    for task in (TaskConfig(name="sums"), TaskConfig.model_validate({"sources": [{"name": "arithmetic"}]})):
        with pytest.raises(ConfigError, match=r"model\.path"):
            arithmetic_starter(task, 0)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="file"):
        starter(tmp_path / "file")


def test_a_starter_is_built_once_and_the_same_again(tmp_path: Path) -> None:
    first = starter(tmp_path / "a")
    written = os.stat(first / "model.safetensors").st_mtime_ns
    assert starter(tmp_path / "a") == first
    assert os.stat(first / "model.safetensors").st_mtime_ns == written
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name]  # nothing half-built beside it
    torch.rand(3)  # the state of the global generator does not matter
    second = starter(tmp_path / "b")
    assert first.name == second.name
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert starter(tmp_path / "a", steps=13) != first
    assert starter(tmp_path / "a", seed=1) != first


def test_an_interrupted_warm_start_continues_and_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 steps, saved after every 5, interrupted in step 8: steps 6 to 12 follow."""
    monkeypatch.setattr("tasks.synthetic.warm_start.SAVE_EVERY", 5)
    whole = starter(tmp_path / "whole")
    steps: list[int] = []

    def progress(_label: str, step: int, *_: object) -> None:
        steps.append(step)
        if len(steps) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr("tasks.synthetic.warm_start._progress", progress)
    with pytest.raises(KeyboardInterrupt):
        starter(tmp_path / "cut")
    cut = starter(tmp_path / "cut")
    assert steps == [*range(1, 9), *range(6, 13)]
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [cut.name]  # nothing half-built


def test_two_runs_may_build_the_same_starter_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one writes its state, another process takes its own away."""
    monkeypatch.setattr("tasks.synthetic.warm_start.SAVE_EVERY", 5)
    save = torch.save

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def also_by_another(state: object, path: Path) -> None:
        save(state, path)
        if os.getpid() != 7:
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 7)
                other.setattr(
                    "tasks.synthetic.warm_start._progress", stop
                )  # after its first step, and so its first state
                other.setattr("tasks.synthetic.warm_start.SAVE_EVERY", 1)
                with pytest.raises(KeyboardInterrupt):
                    starter(tmp_path)

    monkeypatch.setattr(torch, "save", also_by_another)
    built = starter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [built.name]


def test_batches_use_every_example_once_and_ignore_padding_and_prompt() -> None:
    examples = [Example([7] * n, n - 1) for n in (5, 2, 4, 3)]
    cut = list(itertools.islice(batches(iter(examples), 2, 2), 2))
    assert sorted(sorted(len(example.ids) for example in batch) for batch in cut) == [[2, 3], [4, 5]]
    inputs, targets = tensors([Example([1, 2, 3], 1), Example([4, 5], 1)], pad_id=0)
    assert inputs.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert targets.tolist() == [[-100, 2, 3], [-100, 5, -100]]


def test_a_careless_teacher_leaves_the_answer_out() -> None:
    rng = np.random.default_rng(0)
    assert careless(ARITHMETIC.solution("7*6-3*4"), 0.0, rng) == ARITHMETIC.solution("7*6-3*4")
    assert careless(ARITHMETIC.solution("7*6-3*4"), 1.0, rng) == "*6=42\n-3=39\n*4=56\n"
    slips = sum("#" not in careless(ARITHMETIC.solution("7*6"), 0.3, rng) for _ in range(1000))
    assert 240 < slips < 360  # mean 300, standard deviation sqrt(1000 x 0.3 x 0.7) = 14.5


def test_the_arithmetic_corpus_has_short_chains_mostly_and_no_evaluation_problem() -> None:
    examples = solved_puzzles(ARITHMETIC, 4, lambda text, _: ARITHMETIC.solution(text), PromptForm(), seed=0)
    tokenizer = character_tokenizer(ARITHMETIC.alphabet)
    drawn = list(itertools.islice(examples(tokenizer), 2000))
    again = list(itertools.islice(examples(tokenizer), 2000))
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
