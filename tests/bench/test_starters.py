"""The starters of experiments: of guesses, and of rows with solutions."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.tasks.guesses import shown
from bench.tasks.rule import RULE
from bench.tasks.starters import STARTERS, Settings, build_starter, text_corpus
from core.config import Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.load import load_config
from tasks.kinds import find_kind
from tasks.problems import Item, PromptForm
from tasks.synthetic.arithmetic import ARITHMETIC

ROOT = Path(__file__).parents[2]
TINY = Settings(hidden_size=32, layers=1, heads=1, vocabulary=300, steps=12, batch_size=8)


def gsm8k(tmp_path: Path) -> TaskConfig:
    rows = [
        {"q": f"Tom has {i} and gets {i + 1}?", "a": f"{i}+{i + 1}={2 * i + 1}\n#### {2 * i + 1}"} for i in range(40)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(prompt="q", answer="a", solution="a")
    return TaskConfig(name="gsm8k", path=str(file), columns=columns, eval_problems=8, template="Q: {prompt}\nA: ")


def test_a_starter_of_text_loads_as_any_model(tmp_path: Path) -> None:
    place = build_starter(tmp_path / "model", TINY, gsm8k(tmp_path))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
    assert model.config.vocab_size == len(tokenizer)
    text = "Tom has 12 é\n#### 3"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_folder_with_other_settings_is_built_again(tmp_path: Path) -> None:
    task, weights = gsm8k(tmp_path), tmp_path / "model" / "model.safetensors"
    build_starter(tmp_path / "model", TINY, task)
    first, written = weights.read_bytes(), weights.stat().st_mtime_ns
    build_starter(tmp_path / "model", TINY, task)
    assert weights.stat().st_mtime_ns == written
    build_starter(tmp_path / "model", replace(TINY, steps=13), task)
    assert weights.read_bytes() != first


@pytest.mark.parametrize("name", STARTERS)
def test_a_recipe_names_its_starter_and_a_task(name: str) -> None:
    (recipe,) = (path for path in ROOT.glob("*/recipes/*.yaml") if path.stem == name)
    config = load_config(recipe)
    assert config.model.path == f".cache/starters/{name}"
    if name == "guess":
        pytest.importorskip("textarena", reason="textarena is not installed (requirements/games.txt)")
    assert find_kind(config.task.name)


def test_a_text_starter_needs_solutions(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    task = task.model_copy(update={"columns": Columns(prompt="q", answer="a")})
    with pytest.raises(DataError, match=r"task\.columns\.solution"):
        build_starter(tmp_path / "model", TINY, task)


def test_the_text_corpus_trains_on_prompt_and_solution() -> None:
    form = PromptForm("{prompt} A: ")
    items = [Item(f"q{i}", str(i), solution=f"s{i}\n#### {i}", form=form) for i in range(9)] + [Item("none", "1")]
    corpus = text_corpus(300, TaskConfig(name="gsm8k"), items, seed=0)
    tokenizer = corpus.tokenizer()
    epoch = list(itertools.islice(corpus.examples(tokenizer), 9))
    texts = [tokenizer.decode(example.ids, skip_special_tokens=True) for example in epoch]
    assert sorted(texts) == [f"q{i} A: s{i}\n#### {i}" for i in range(9)]
    assert {example.loss_from for example in epoch} == {1}


def test_a_starter_of_the_rule_sees_every_choice_equally_often() -> None:
    rng = np.random.default_rng(0)
    seen = [shown(RULE, "kb", 1.0, 0.0, rng) for _ in range(900)]
    counts = {text: seen.count(text) for text in set(seen)}
    assert len(counts) == 9  # 3 x 3; 100 of each, with a standard deviation of sqrt(900 x 1/9 x 8/9) = 9.4
    assert all(60 < count < 140 for count in counts.values())
    assert shown(RULE, "kb", 0.0, 0.0, rng) == "k3\nb1"
    with pytest.raises(ConfigError, match="arithmetic"):
        shown(ARITHMETIC, "7*6", 1.0, 0.0, rng)
