"""Tools of responses in several turns: over text, over tokens, and what is wrong with a user's own."""

import re
from pathlib import Path

import numpy as np
import pytest

from core.errors import ConfigError
from core.records import Finish, IntArray, Problem, Start, Trajectory
from core.tools import TokenTool, Tool, load_tool
from tasks.corpus import character_tokenizer
from trainer.starts import canonical_rollouts, fresh_starts

CALCULATOR = "tasks.synthetic.calculator:TOOL"
TOKENIZER = character_tokenizer("0123456789+-*=[]#\nero")


def ids(text: str) -> IntArray:
    return np.array(TOKENIZER.encode(text, add_special_tokens=False), np.int32)


def test_the_tokens_that_end_calls_and_what_follows_them() -> None:
    tool = TokenTool(load_tool(CALCULATOR), TOKENIZER)
    assert tool.calls == {int(ids("=")[0])}
    assert tool.answer(ids("[12*7=").tolist()) == ids("84]\n").tolist()
    assert tool.answer(ids("[12*7").tolist()) == []


def test_a_whole_response_tells_which_tokens_were_answers() -> None:
    tool = TokenTool(load_tool(CALCULATOR), TOKENIZER)
    text = "[2*3=6]\n[6+4=11]\n#11"  # the second answer is not the tool's: 6+4 is 10
    answered = [character for character, own in zip(text, tool.mask(ids(text)), strict=True) if not own]
    assert answered == ["6", "]", "\n"]
    assert tool.mask(ids("[2*3=")).all()


def test_states_begin_after_answers_and_never_inside_or_before_one() -> None:
    """Tokens 0 1 (prefix) | 2 3 t t 6 t 8 9: states after 2 (in the policy's part), 6 and 8 tokens... by the mask
    below."""
    start = Start("s", "p", np.array([9], np.int32), np.array([0, 1], np.int32), 1, seed=0)
    mask = np.array([1, 1, 0, 0, 1, 0, 1, 1], np.bool_)  # lengths 2 .. 9: continuation token L - 2 comes next
    tokens = np.arange(2, 10, dtype=np.int32)
    trajectory = Trajectory(start, 0, tokens, np.zeros(8, np.float32), np.zeros(8, np.int32), Finish.STOP, mask)
    # every length: 3 goes on with token 3 (mask 1), 4 and 5 with the answer, 6 with the policy, 7 with the answer, 8
    # and 9 too
    every = trajectory.states(lambda response: np.arange(1, len(response), dtype=np.int32))
    assert every.tolist() == [3, 6, 8, 9]
    # no boundary at all: the ends of the two answers are states, 2 + 4 and 2 + 6
    assert trajectory.states(lambda _: np.zeros(0, np.int32)).tolist() == [6, 8]
    assert trajectory.generated.tolist() == mask.tolist()


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("TOOL = 3", "name a core.tools.Tool"),
        ("from core.tools import Tool\nTOOL = Tool('', str.upper)", "whose `ends` are the last characters"),
        ("from core.tools import Tool\nTOOL = Tool('=', lambda text: text[-1])", "empty response: IndexError"),
        ("from core.tools import Tool\nTOOL = Tool('=', len)", "answers int; return a str"),
        ("import nothing_here", "ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_a_tool_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, wrong: str
) -> None:
    name = f"tool_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"rollout\.tool '{name}:TOOL'.*{wrong}"):
        load_tool(f"{name}:TOOL")


def test_a_tool_that_no_token_calls_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.tool: no token of the model ends with one of '\?'"):
        TokenTool(Tool("?", lambda _: None), TOKENIZER)


def test_the_tool_of_the_documents_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_tools.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tool = load_tool("my_tools:TOOL")
    assert [tool.answer(text) for text in ("I ask <price apple>", "<price fig>", "a > b", "1 >")] == [
        "0.40\n",
        "unknown\n",
        None,
        None,
    ]


def test_no_state_of_a_canonical_solution_is_inside_an_answer() -> None:
    solution = ids("[12*7=84]\n#84")
    problem = Problem("p", ids("12*7\n"), "12*7", solution_ids=solution)
    starts = fresh_starts([problem], 1, 0, 1)
    tool = TokenTool(load_tool(CALCULATOR), TOKENIZER)
    (rollout,) = canonical_rollouts(starts, {"p": problem}, tool)
    every = rollout.trajectory.states(lambda response: np.arange(1, len(response), dtype=np.int32))
    assert every.tolist() == [1, 2, 3, 4, 5, 10, 11, 12]  # not 6 (before the answer 84]\n) to 9
    assert canonical_rollouts(starts, {"p": problem})[0].trajectory.mask is None
