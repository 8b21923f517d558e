"""Model and tokenizer checks on real (tiny) files."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from commands.check import check_model_and_data, check_supervised
from core.config import Config, TaskConfig
from core.errors import ConfigError, DataError, ModelError
from core.load import dump_config, load_config, override
from tasks.kinds import prompt_warnings
from tasks.synthetic.corpus import character_tokenizer
from tests.core.environments.test_templates import Later
from tests.tiny import save_qwen2
from trainer.build import open_model_and_task
from trainer.model.files import check_value_model, check_vocabulary, inspect_model, load_tokenizer, resolve_model


def save_model(folder: Path, vocabulary: int = 8) -> Path:
    return save_qwen2(folder, vocabulary, tie_word_embeddings=True)


def save_tokenizer(folder: Path, tokens: int = 8, eos: bool = True) -> Path:
    words = {f"w{i}": i for i in range(tokens)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    if eos:
        tokenizer.eos_token = "w1"
    tokenizer.save_pretrained(folder)
    return folder


def test_what_a_run_must_know_of_a_model(tmp_path: Path) -> None:
    info = inspect_model(str(save_model(tmp_path)))
    assert (info.architecture, info.context, info.vocabulary) == ("Qwen2ForCausalLM", 32, 8)
    # embedding 8x16; attention q 16x16+16, k and v the same, o 16x16; MLP 3 x 16x16; 3 norms of 16
    assert info.parameters == 128 + 3 * (256 + 16) + 256 + 3 * 256 + 48


def test_vocabulary_mismatch(tmp_path: Path) -> None:
    path = str(save_tokenizer(save_model(tmp_path, vocabulary=8), tokens=9))
    with pytest.raises(ModelError, match=r"vocabulary.* 8 "):
        check_vocabulary(path, inspect_model(path), load_tokenizer(path))


def test_a_larger_embedding_than_tokenizer_is_fine(tmp_path: Path) -> None:
    path = str(save_tokenizer(save_model(tmp_path, vocabulary=16), tokens=9))
    check_vocabulary(path, inspect_model(path), load_tokenizer(path))


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        inspect_model(str(tmp_path))


def test_no_weights(tmp_path: Path) -> None:
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"safetensors"):
        inspect_model(str(tmp_path))


def test_weights_that_lie_twice_in_a_folder_count_once(tmp_path: Path) -> None:
    """As Mistral's do; they are not loaded."""
    folder = save_model(tmp_path)
    once = inspect_model(str(folder)).parameters
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert inspect_model(str(folder)).parameters == once
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert inspect_model(str(folder)).parameters == once
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json: cannot be read"):
        inspect_model(str(folder))


def test_torn_weights(tmp_path: Path) -> None:
    file = save_model(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match="weights"):
        inspect_model(str(tmp_path))


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        load_tokenizer(str(save_model(tmp_path)))


def test_tokenizer_without_end(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="end-of-sequence"):
        load_tokenizer(str(save_tokenizer(tmp_path, eos=False)))


def test_a_critic_of_another_family_or_vocabulary(tmp_path: Path) -> None:
    policy = str(save_model(tmp_path / "policy"))
    check_value_model("", policy)
    check_value_model(str(save_model(tmp_path / "reward")), policy)
    LlamaConfig(vocab_size=8, hidden_size=32).save_pretrained(tmp_path / "llama")
    with pytest.raises(ModelError, match=r"learner\.value_path = .*llama.*qwen2"):
        check_value_model(str(tmp_path / "llama"), policy)
    with pytest.raises(ModelError, match=r"learner\.value_path.* 9 .* 8\b"):
        check_value_model(str(save_model(tmp_path / "other", vocabulary=9)), policy)
    with pytest.raises(ModelError, match=r"learner\.value_path = .*nothing"):
        check_value_model(str(tmp_path / "nothing"), policy)


PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"


def text_recipe(folder: Path, rows: list[dict[str, str]]) -> Config:
    """Task gsm8k on `rows` with a tiny model whose tokens are characters."""
    tokenizer = character_tokenizer(PRINTABLE)
    tokenizer.save_pretrained(save_model(folder / "model", vocabulary=len(tokenizer)))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"name": "gsm8k", "path": str(folder / "rows.jsonl"), "eval_problems": 2, "judge_workers": 0}
    task["columns"] = {"prompt": "question", "answer": "answer", "solution": "answer"}
    rollout = {"max_prompt_tokens": 12, "max_response_tokens": 20}
    return Config.model_validate({"model": {"path": str(folder / "model")}, "task": task, "rollout": rollout})


def test_what_is_left_out_is_said_by_check_and_by_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"{i} + 0?", "answer": f"#### {i}"} for i in range(10)]
    rows += [
        {"question": "1 + 0?", "answer": "#### 1"},
        {"question": "what is 1 and 1?", "answer": "#### 2"},
        {"question": "2 + 2?", "answer": "2 + 2 is four, then,\n#### 4"},
    ]
    config = text_recipe(tmp_path, rows)
    told = (
        "training problems, 2 evaluation problems; 1 duplicate prompts and 1 prompts over rollout.max_prompt_tokens "
        "left out; "
        "1 canonical solutions over rollout.max_response_tokens not used"
    )
    assert f"data: 9 {told}" in check_model_and_data(config)
    with open_model_and_task(config):
        assert capsys.readouterr().out.startswith(f"data: 9 {told}\n")


def test_check_shows_the_first_prompt_as_the_model_reads_it(tmp_path: Path) -> None:
    config = text_recipe(tmp_path, [{"question": f"{i}+0?", "answer": f"#### {i}"} for i in range(4)])
    assert "first prompt, as the model reads it: '1+0?'" in check_model_and_data(config)
    tokenizer = load_tokenizer(config.model.path)
    tokenizer.chat_template = "<{{ messages[0]['content'] }}>"
    tokenizer.save_pretrained(config.model.path)
    assert "first prompt, as the model reads it: '<1+0?>'" in check_model_and_data(config)


def test_end_tokens_that_no_engine_can_read_are_named_before_one_starts(tmp_path: Path) -> None:
    config = text_recipe(tmp_path, [{"question": f"{i}+0?", "answer": f"#### {i}"} for i in range(4)])
    file = Path(config.model.path) / "generation_config.json"
    for text in ("[", "[]", "3"):
        file.write_text(text)
        with pytest.raises(ModelError, match=file.name):
            check_model_and_data(config)


def test_a_run_keeps_the_date_of_a_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = text_recipe(tmp_path, [{"question": f"{i}+0?", "answer": f"#### {i}"} for i in range(4)])
    tokenizer = load_tokenizer(config.model.path)
    tokenizer.chat_template = "{{ strftime_now('%d%m') }} {{ messages[0]['content'] }}"  # as Llama 3.2's
    tokenizer.save_pretrained(config.model.path)
    with open_model_and_task(override(config, ["--model.template_date", "2024-07-26"])) as began:
        assert began.task.first_prompt("").startswith("2607 ")
    begun = config.model_copy(update={"model": config.model.dated()})
    with open_model_and_task(begun) as began:
        fingerprint = began.task.fingerprint
    (tmp_path / "config.yaml").write_text(dump_config(begun))
    monkeypatch.setattr(chat_template_utils, "datetime", Later)
    with open_model_and_task(load_config(tmp_path / "config.yaml")) as resumed:
        assert resumed.task.fingerprint == fingerprint
    with open_model_and_task(config) as another:
        assert another.task.first_prompt("").startswith("0201 ")


def test_a_prompt_that_hides_what_the_judge_looks_for_is_said_by_check_and_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = text_recipe(tmp_path, [{"question": f"{i}+0?", "answer": f"#### {i}"} for i in range(4)])
    silent = (
        r"warning: task gsm8k: the judge looks for #### or \boxed, and the prompt does not say so; say it in task.temp"
    )
    assert silent in check_model_and_data(recipe)
    with open_model_and_task(recipe):
        assert silent in capsys.readouterr().out
    reward = "tests.tasks.verifiers:half_for_the_digit"
    for field, value in (("template", "{prompt} ####"), ("system", "####"), ("reward", reward)):
        assert "warning: task" not in check_model_and_data(override(recipe, [f"--task.{field}={value}"]))
    assert prompt_warnings(TaskConfig(name="math"), lambda _: r"End with \boxed{}.") == []
    (line,) = prompt_warnings(TaskConfig(name="math"), lambda _: "End with ####.")
    assert line.startswith(r"warning: task math: the judge looks for \boxed, and")


def test_canonical_replay_needs_a_canonical_solution(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 0?", "answer": f"{'so ' * 8}\n#### {i}"} for i in range(4)]  # over 20 tokens
    config = override(text_recipe(tmp_path, rows), ["--replay.ratio", "0.5", "--replay.canonical", "true"])
    with pytest.raises(ConfigError, match=r"replay\.canonical"), open_model_and_task(config):
        pass


def test_check_reads_what_supervised_training_learns_from(tmp_path: Path) -> None:
    talk, pairs = tmp_path / "talk.jsonl", tmp_path / "pairs.jsonl"
    said = "\n\nHuman: a\n\nAssistant: b"
    talk.write_text(json.dumps({"messages": said}) + "\n")
    pairs.write_text(json.dumps({"chosen": said, "rejected": said}) + "\n")
    sections = {"sft": {"path": str(talk)}, "reward_model": {"pairs": str(pairs)}}
    config = Config.model_validate(sections)
    assert check_supervised(config) == [f"sft: 1 dialogues in {talk}", f"reward model: 1 pairs in {pairs}"]
    assert check_supervised(Config()) == []
    pairs.write_text(json.dumps({"chosen": said, "rejected": "\n\nHuman: a"}) + "\n")
    with pytest.raises(DataError, match=r"pairs\.jsonl: row 1: column 'rejected'"):
        check_supervised(config)
    talk.write_text(json.dumps({"text": said}) + "\n")
    with pytest.raises(DataError, match=r"row 1 .*'messages' \(sft\.column\)"):
        check_supervised(config)


def test_models_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(ModelError, match=rf"model\.path = {name}"):
            resolve_model(name, TaskConfig(), 0)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"hf auth login"):
        resolve_model("nobody/nothing-here", TaskConfig(), 0)
    assert resolve_model(str(tmp_path), TaskConfig(), 0) == str(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    assert resolve_model(f"./{tmp_path.name}", TaskConfig(), 0) == str(tmp_path)  # actors have another directory


def test_a_hub_name_stays_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has a cache of its own: the path in the driver's would lead nowhere."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda _: "/cache/of/this/machine")
    assert resolve_model("someone/model", TaskConfig(), 0) == "someone/model"
