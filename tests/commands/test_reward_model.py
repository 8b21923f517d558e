"""Preference pairs: which of them are trained on, and what is said about the others."""

import json
from pathlib import Path

import pytest

from commands import reward_model
from core.config import RewardModelConfig
from core.errors import DataError


def test_pairs_that_say_nothing_are_reported_and_not_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    asked = "\n\nHuman: a\n\nAssistant: "
    sides = [
        ("b", "c"),
        ("b\n\nAssistant: b", "c"),  # two turns of the assistant
        ("b\n\nHuman: more\n\nAssistant: d", "b\n\nHuman: less\n\nAssistant: e"),  # two prompts
        ("b\n\nHuman: \n\nHuman: x\n\nAssistant: d", "c"),
    ]
    rows = [{"chosen": asked + chosen, "rejected": asked + rejected} for chosen, rejected in sides]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    usable, told = reward_model.preferences(RewardModelConfig(pairs=str(file)))
    assert [row[0][1][-1].content for row in usable] == ["b"]
    place = "column 'chosen' (reward_model.pairs)"
    assert told == [
        f"2 pairs left out: two turns in a row have one role; the first is {file}: row 2: {place}",
        "1 pairs left out: the two sides differ before the last turn, so they answer different prompts; the first is "
        f"{file}: row 3: "
        f"{place}",
    ]
    answers = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    file.write_text(json.dumps({"prompt": [{"role": "user", "content": "a"}], **answers}) + "\n")  # as TRL has them
    with pytest.raises(DataError, match="no message of the user before the answer; put the prompt before both sides"):
        reward_model.preferences(RewardModelConfig(pairs=str(file)))
    file.write_text(json.dumps(rows[1]) + "\n")
    with pytest.raises(DataError, match="1 pairs left out: two turns in a row"):
        reward_model.preferences(RewardModelConfig(pairs=str(file)))
