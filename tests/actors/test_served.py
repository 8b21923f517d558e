"""Agents written against the OpenAI interface, with a real engine: a model that has learnt two conversations."""

import json
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from core.config import Config, TaskConfig
from core.environments.turns import TurnTokens
from core.load import override
from core.parts.sources import roots
from core.records import Finish, Sampling
from tasks.kinds import rollout_settings
from tasks.limits import TokenLimits
from tasks.problems import Item, Items, LeftOut, encode_problems
from tasks.worlds.problems import with_worlds
from tests.actors import models
from tests.actors.test_engine import TOLERANCE, Get, update
from tests.actors.test_episodes import Run
from tests.resolved import without_auto

GREEDY = Sampling(temperature=0.0, top_p=1.0, max_response_tokens=40)
PIECES = ["<tool_call>", "</tool_call>", '{"name": "add", "arguments": {"a": ', ', "b": ', "}}"]
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SUMS = {"2+3": ("2", "3", "5"), "4+5": ("4", "5", "9")}


def chat_tokenizer(folder: Path) -> Any:
    models.save_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(PIECES)
    tokenizer.chat_template = TEMPLATE
    assert len(tokenizer) <= models.VOCABULARY
    return tokenizer


def call(a: str, b: str) -> str:
    return "".join([PIECES[0], PIECES[2], a, PIECES[3], b, PIECES[4], PIECES[1]])


def learnt(model: Any, sequences: list[list[int]]) -> Any:
    """The model after it has learnt the sequences by heart."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    size = max(map(len, sequences))
    ids = torch.tensor([one + [0] * (size - len(one)) for one in sequences])
    labels = torch.where(ids == 0, -100, ids)
    for _ in range(150):
        loss = model.train()(ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
    return model.eval()


def test_an_agent_with_the_openai_client_is_a_rollout(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    """Of two rows and two samples four agents run at once, each with a call of a tool. Ids and log-probabilities are
    the engine's, and a state after the call is rebuilt by an agent that repeats it."""
    tokenizer = chat_tokenizer(tmp_path)
    recipe = without_auto(
        override(Config(), ["--rollout.environment", "tests.agents:adder", "--rollout.environment_workers=1"])
    )
    config = rollout_settings(recipe.rollout, recipe.task)
    items = [Item(question, total) for question, (*_, total) in SUMS.items()]
    items = with_worlds(Items(items, items[:1], LeftOut()), "sums", config, tokenizer, canonical=False).train
    given = Items(items, items[:1], LeftOut())
    split, _ = encode_problems(TaskConfig(name="environment"), tokenizer, given, TokenLimits(48, 40), 96)
    assert tokenizer.decode(split.train[0].prompt_ids) == "add\nuser:2+3\nassistant:"  # the template has the tools

    turns = TurnTokens(tokenizer, "", [models.EOS])
    expected = []
    for problem, (a, b, total) in zip(split.train, SUMS.values(), strict=True):
        said, last = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (call(a, b), total))
        reply = turns.reply(models.EOS, [{"role": "tool", "content": total}])
        assert tokenizer.decode(reply) == f"\ntool:{total}\nassistant:"
        assert len(said) == 7
        expected.append((problem.prompt_ids.tolist(), [*said, models.EOS], reply, [*last, models.EOS]))
    model = learnt(models.load(tiny_model(True)), [[*chain(*parts)] for parts in expected])
    update(engines[True], model, 1)

    here = Run(engines[True], config, tokenizer)
    with closing(here.engine):
        open_world, most = here.workers.open, list[int]()
        here.workers.open = lambda *given: (open_world(*given), most.append(len(here.workers)))[0]  # type: ignore[func-returns-value,method-assign]
        starts = roots(split.train, 2, 0)
        found = here.rollouts(starts, GREEDY)
        assert max(most) == len(found) == 4
        for one, (_, first, reply, second) in zip(found, [expected[at] for at in (0, 0, 1, 1)], strict=True):
            assert one.tokens.tolist() == [*first, *reply, *second]
            assert one.generated.tolist() == [*[True] * len(first), *[False] * len(reply), *[True] * len(second)]
            assert one.finish is Finish.STOP
            assert one.episode is not None
            assert (one.episode.turns, one.episode.rewards) == (2, ((7, 0.0), (one.tokens.size - 1, 1.0)))
            reference = models.logprobs(model, one.sequence_ids)[-one.tokens.size :]
            np.testing.assert_allclose(one.logprobs[one.generated], reference[one.generated], atol=TOLERANCE)
            assert not one.logprobs[~one.generated].any()
        states = [
            replace(one.start, id=f"state-{at}", samples=1, state_key=at + 1, prefix_ids=one.tokens[:size])
            for at, one in enumerate(found)
            for size in one.states(lambda _: np.zeros(0, np.int32)).tolist()
        ]
        assert len(states) == 4
        again = here.rollouts(states, GREEDY)
        assert not here.dropped
    assert [one.tokens.tolist() for one in again] == [expected[at][3] for at in (0, 0, 1, 1)]
    assert {(one.episode.turns, one.episode.total) for one in again if one.episode} == {(2, 1.0)}
    assert json.loads(items[0].messages[-1].content)[0]["function"]["name"] == "add"
