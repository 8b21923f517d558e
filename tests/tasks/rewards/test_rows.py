"""Data sets of verl and TRL as they are, and what of a row reaches a reward."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config import TaskConfig
from core.errors import ConfigError, DataError
from tasks.dialogue.chat import Message
from tasks.judging import check_judge, probe_reward
from tasks.kinds import judged_by_model, task_items
from tasks.limits import TokenLimits
from tasks.problems import Item, Tokenizer, render_item
from tasks.synthetic.corpus import character_tokenizer
from tasks.task import Task, build_task
from tests.tasks.rewards.test_remote import served
from tests.tasks.test_task import trajectory

HERE = "tests.tasks.rewards.published"
ASK = 'Let\'s think step by step and output the final answer after "####".'
CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"


def verl_row(index: int) -> dict[str, Any]:
    """A row as verl's examples/data_preprocess/gsm8k.py writes it."""
    question = f"Ann has {index} pens and buys 2. How many pens has Ann?"
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {ASK}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index + 2)},
        "extra_info": {"split": "train", "index": index, "answer": f"#### {index + 2}", "question": question},
    }


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def config(path: str, **settings: Any) -> TaskConfig:
    given = {"name": "prompts", "path": path, "eval_problems": 1, "judge_timeout": 60.0}
    return TaskConfig.model_validate(given | settings)


def all_items(task: TaskConfig) -> dict[str, Item]:
    items = task_items(task, seed=0)
    return {item.where.rpartition(" ")[2]: item for item in (*items.train, *items.evaluation)}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return character_tokenizer(CHARACTERS)


def built(task: TaskConfig, tokenizer: Tokenizer) -> Task:
    return build_task(task, tokenizer, limits=TokenLimits(500, 50), context=8192, seed=0)


def said(task: Task, tokenizer: Tokenizer, text: str) -> list[tuple[float, str]]:
    """Reward and detail of a response to every training problem."""
    ids = tokenizer(text)["input_ids"]
    return [
        (one.verdict.reward, one.verdict.detail) for one in task.judge([trajectory(p, [], ids) for p in task.train])
    ]


def test_verls_parquet_trains_with_our_judge_and_without_columns(tmp_path: Path) -> None:
    task = config(write(tmp_path / "train.parquet", [verl_row(n) for n in range(3)]), name="gsm8k")
    items = all_items(task)
    assert items["1"].prompt == f"Ann has 0 pens and buys 2. How many pens has Ann? {ASK}"
    assert (items["1"].messages, items["1"].reference, items["3"].reference) == ((), "2", "4")
    assert items["1"].row is None  # nobody asks for it


def test_a_field_inside_a_column_has_a_dotted_name(tmp_path: Path) -> None:
    columns = {"prompt": "extra_info.question", "answer": "extra_info.answer", "solution": "extra_info.answer"}
    task = config(write(tmp_path / "a.jsonl", [verl_row(n) for n in range(3)]), name="gsm8k", columns=columns)
    item = all_items(task)["2"]
    assert (item.prompt, item.reference) == ("Ann has 1 pens and buys 2. How many pens has Ann?", "3")
    assert item.solution == "#### 3"
    wrong = task.model_copy(update={"columns": task.columns.model_copy(update={"answer": "extra_info.gold"})})
    with pytest.raises(DataError, match=r"row 1 .*'extra_info\.gold' \(task\.columns\.answer\)"):
        task_items(wrong, seed=0)


def test_verls_reward_gets_verls_rows(tmp_path: Path, tokenizer: Tokenizer) -> None:
    task = config(
        write(tmp_path / "train.parquet", [verl_row(n) for n in range(3)]),
        reward=f"{HERE}:compute_score",
        eval_problems=2,
    )
    probe_reward(task, list(all_items(task).values()))
    assert all_items(task)["1"].row == verl_row(0)
    with closing(built(task, tokenizer)) as whole:
        (problem,) = whole.train
        where, columns = json.loads(whole._rows["", problem.question])
        assert sorted(columns) == ["data_source", "extra_info", "reward_model"]  # not `ability`, not the prompt
        assert said(whole, tokenizer, f"#### {problem.reference}") == [(1.0, "")]
        assert said(whole, tokenizer, "#### 99") == [(0.1, "")]
        assert where.startswith(f"{tmp_path}/train.parquet: row ")


def test_trls_conversational_and_prompt_only_rows(tmp_path: Path, tokenizer: Tokenizer) -> None:
    chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}]
    rows: list[dict[str, Any]] = [
        {"prompt": chat, "solution": "2", "task": "maths"},
        {"prompt": "2+2?", "solution": "4", "task": "sums"},
    ]
    items = all_items(config(write(tmp_path / "a.jsonl", rows), reward=f"{HERE}:columns_of_the_row"))
    assert items["1"].messages == (Message("system", "Think."), Message("user", "1+1?"))
    assert (items["2"].messages, items["2"].prompt, items["2"].reference) == ((), "2+2?", "4")
    only = [{"prompt": [{"role": "user", "content": f"Say {n}."}]} for n in range(3)]
    task = config(write(tmp_path / "b.parquet", only), reward=f"{HERE}:longer_completions")
    assert {item.reference for item in all_items(task).values()} == {""}
    text = tokenizer.decode(render_item(tokenizer, all_items(task)["1"]))
    assert text == "Say 0."  # a single question is a text: templates, system prompt and examples are put around it
    with closing(built(task, tokenizer)) as whole:
        assert said(whole, tokenizer, "four") == [(4.0, "")] * 2  # tokens


def test_every_column_reaches_a_reward_with_keywords_as_lists(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"prompt": f"{n}?", "task": "maths", "when": n} for n in range(3)]
    task = config(write(tmp_path / "a.jsonl", rows), reward=f"{HERE}:columns_of_the_row")
    with closing(built(task, tokenizer)) as whole:
        assert said(whole, tokenizer, "x") == [(5.0, "")] * 2
        assert check_judge(task, list(all_items(task).values())).splitlines() == [
            "reward columns_of_the_row: weight 1, TRL's shape; decides what is correct: above 0, or what its Verdict or "
            "`acc` says",
            "canonical solutions: none",
        ]


def test_a_column_that_a_reward_needs_must_exist(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"prompt": f"{n}?", "answer": f"{n}", "levels": n} for n in range(3)]
    task = config(write(tmp_path / "a.jsonl", rows), reward=f"{HERE}:with_prompt")
    why = r"row \d has no column 'level' \(a parameter of task.reward\); its columns are .*; the nearest is 'levels'"
    with pytest.raises(DataError, match=why):
        probe_reward(task, list(all_items(task).values()))
    with pytest.raises(DataError, match=why):
        built(task, tokenizer)


def test_a_failure_names_the_row(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"prompt": f"{n}?"} for n in range(3)]
    path = write(tmp_path / "a.jsonl", rows)
    with closing(built(config(path, reward=f"{HERE}:stumbles"), tokenizer)) as whole:
        details = [detail for _, detail in said(whole, tokenizer, "bad")]
        assert all(detail.startswith("judge raised ValueError: bad (published.py") for detail in details)
        assert {detail.rpartition(", on ")[2] for detail in details} < {f"{path}: row {n}" for n in (1, 2, 3)}


def test_a_server_gets_the_prompt_as_the_model_reads_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"prompt": f"{n}?", "answer": f"{n}"} for n in range(2)]
    with served(lambda request, _: (200, {"rewards": [0.5] * len(request["query"])})) as (url, asked):
        task = config(write(tmp_path / "a.jsonl", rows), reward=url, template="Q: {prompt}\nA: ")
        with closing(built(task, tokenizer)) as whole:
            (problem,) = whole.train
            ids = np.array([*tokenizer("7")["input_ids"], tokenizer.eos_token_id]).tolist()
            (one,) = whole.judge([trajectory(problem, [], ids)])
    assert one.verdict.reward == 0.5
    number = problem.reference
    assert asked == [
        {"query": [f"Q: {number}?\nA: 7<|endoftext|>"], "prompts": [f"Q: {number}?\nA: "], "labels": [number]}
    ]


def test_prompts_without_a_reward_have_no_judge(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.reward"):
        judged_by_model(config(write(tmp_path / "a.jsonl", [{"prompt": "?"}])))
