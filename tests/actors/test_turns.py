"""Responses in several turns, with real engines: the tool answers, and the policy goes on from what it was told."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from transformers import AutoTokenizer

from actors.jobs import Continuation, Job
from actors.ledger import Ledger
from actors.turns import TurnsEngine
from core.records import Finish, Sampling, Start, Trajectory
from core.tools import TokenTool, Tool
from tests.actors import models
from tests.actors.test_engine import PATIENT, TOLERANCE, generate, update

BUDGET = 40
RANDOM = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=BUDGET)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ECHO = Tool(LETTERS, lambda text: f"<{text[-1]}>" if text[-1:] < "s" else None)
"""Answers a letter with the letter in brackets, from s on not at all."""
Get = Callable[[bool], Path]


class Remote:
    """The engine of a rollout actor, called from here."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._jobs, self.unfinished = actor, list[Job](), 0

    def add(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        self._jobs += jobs
        self.unfinished += sum(len(job.samples) for job in jobs)

    def run(self, seconds: float, refill: int = 0) -> list[Continuation]:
        jobs, self._jobs = self._jobs, []
        result = ray.get(self._actor.generate.remote(jobs, max(seconds, 0.2), refill))
        self.unfinished = result.unfinished
        return list(result.finished)


def rollouts(actor: Any, tool: TokenTool, starts: list[Start], sampling: Sampling = RANDOM) -> list[Trajectory]:
    engine, ledger = TurnsEngine(Remote(actor), tool), Ledger()  # type: ignore[arg-type]
    ledger.add(starts, sampling)
    engine.add(ledger.take("engine", ledger.open))
    assert engine.unfinished == sum(start.samples for start in starts)
    ledger.accept(engine.run(PATIENT))
    return [one for start in starts for one in ledger.collect(start.id)]


def tokens(found: list[Trajectory]) -> list[list[int]]:
    return [one.tokens.tolist() for one in found]


def test_the_tool_answers_and_the_policy_goes_on(engines: dict[bool, Any], tiny_model: Get, tmp_path: Path) -> None:
    engine, model = engines[True], models.load(tiny_model(True))
    update(engine, model, 1)
    models.save_tokenizer(tmp_path)
    tool = TokenTool(ECHO, AutoTokenizer.from_pretrained(tmp_path))
    assert len(tool.calls) == 26
    starts = [models.start(index, prefix=index % 3 * 4, samples=2) for index in range(8)]
    found = rollouts(engine, tool, starts)
    answered = 0
    for one in found:
        own, written = one.generated, one.tokens.tolist()
        assert own[0]
        assert own[-1]
        assert one.response_ids.size <= BUDGET
        expected = np.ones(len(written), np.bool_)
        for at, token in enumerate(written, 1):
            if at < len(written) and expected[at - 1] and token in tool.calls:
                answer = tool.answer(written[:at])
                assert written[at : at + len(answer)] == answer
                expected[at : at + len(answer)] = False
                answered += bool(answer)
        assert own.tolist() == expected.tolist()
        assert not one.logprobs[~own].any()
        reference = models.logprobs(model, one.sequence_ids)[-len(written) :]
        np.testing.assert_allclose(one.logprobs[own], reference[own], atol=TOLERANCE)
        assert set(one.versions.tolist()) == {1}
        room = BUDGET - one.response_ids.size  # a call whose answer of three does not fit ends the response
        if one.finish is Finish.LENGTH:
            assert room == 0 or (written[-1] in tool.calls and room <= 3)
        else:
            assert written[-1] == models.EOS
    assert answered > 10
    assert tokens(rollouts(engine, tool, starts)) == tokens(found)  # a run repeats
    assert [tokens(rollouts(engine, tool, [start])) for start in starts[:2]] == [tokens(found[:2]), tokens(found[2:4])]
    plain = generate(engine, starts, RANDOM)  # without a tool the same engine does not stop at letters
    assert any(tool.calls & set(one.tokens[:-1].tolist()) for one in plain)
    assert all(one.mask is None for one in plain)


def test_an_answer_counts_in_the_budget(engines: dict[bool, Any], tiny_model: Get, tmp_path: Path) -> None:
    """Every token of the model is a call, and is answered with two tokens: of 7 tokens, 0, 3 and 6 are the policy's."""
    update(engines[True], models.load(tiny_model(True)), 1)
    models.save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tool = TokenTool(Tool("x", lambda _: "ab"), tokenizer)
    tool.calls = frozenset(range(models.VOCABULARY)) - {models.EOS}
    found = rollouts(engines[True], tool, [models.start(index) for index in range(4)], Sampling(1.0, 1.0, 7))
    for one in found:
        if one.finish is Finish.LENGTH:
            assert one.generated.tolist() == [True, False, False, True, False, False, True]
            assert one.tokens[1:3].tolist() == one.tokens[4:6].tolist() == tokenizer.encode("ab")
    assert any(one.finish is Finish.LENGTH for one in found)
