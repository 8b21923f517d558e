"""Episodes with real engines and real processes of environments."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from transformers import AutoTokenizer

from actors.episodes import EpisodeEngine
from actors.jobs import Continuation, Engine, Job
from actors.ledger import Ledger
from core.config import ResolvedRollout
from core.environments.protocol import digest
from core.environments.turns import TurnTokens
from core.environments.workers import Workers
from core.records import Finish, FloatArray, IntArray, Rollout, Sampling, Start, World
from core.weights import Acknowledgement, Weights
from tests.actors import models
from tests.actors.test_engine import PATIENT, TOLERANCE, generate, update
from tests.environments import LETTERS
from tests.resolved import NUMBERS

BUDGET = 40
RANDOM = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=BUDGET)
Get = Callable[[bool], Path]
SILENT = digest([])


class Remote(Engine):
    """The engine of a rollout actor, called from here."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._jobs, self._unfinished = actor, list[Job](), 0
        self._done: list[Continuation] = []

    @property
    def unfinished(self) -> int:
        return self._unfinished

    def add(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        self._jobs += jobs
        self._unfinished += sum(len(job.samples) for job in jobs)

    def step(self) -> None:
        jobs, self._jobs = self._jobs, []
        result = ray.get(self._actor.generate.remote(jobs, 0.0, 0))
        self._unfinished = result.unfinished
        self._done += result.finished

    def abort(self) -> None:
        ray.get(self._actor.abort.remote())
        self._unfinished = 0

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def load_weights(self, weights: Weights) -> Acknowledgement:
        raise NotImplementedError

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        raise NotImplementedError


class Run:
    """An engine with environments, and what it dropped."""

    def __init__(self, actor: Any, config: ResolvedRollout, tokenizer: Any) -> None:
        workers = Workers(config)
        self.turns = TurnTokens(tokenizer, workers.ends, [models.EOS])
        self.workers, self.dropped = workers, list[tuple[Start, Continuation]]()
        self.engine = EpisodeEngine(Remote(actor), workers, self.turns, config)

    def rollouts(self, starts: list[Start], sampling: Sampling = RANDOM) -> list[Rollout]:
        ledger = Ledger()
        ledger.add(starts, sampling)
        self.engine.add(ledger.take("engine", ledger.open))
        assert self.engine.unfinished == sum(start.samples for start in starts)
        self.dropped += ledger.accept(self.engine.run(PATIENT))
        assert self.engine.unfinished == len(self.workers) == 0
        return [one for start in starts for one in ledger.collect(start.id)]


@contextmanager
def run(actor: Any, folder: Path, name: str = "Echo", **fields: Any) -> Iterator[Run]:
    models.save_tokenizer(folder)
    settings: dict[str, Any] = {"environment_workers": 1, **NUMBERS["rollout"]} | fields
    settings["environment"] = f"tests.environments:{name}"
    found = Run(actor, ResolvedRollout(**settings), AutoTokenizer.from_pretrained(folder))
    with closing(found.engine):
        yield found


def start(index: int, opening: str = SILENT, **fields: Any) -> Start:
    return replace(models.start(index, **fields), world=World(f"problem-{index}", "apples", "", opening))


def tokens(found: list[Rollout]) -> list[list[int]]:
    return [one.tokens.tolist() for one in found]


def test_the_environment_answers_and_the_policy_goes_on(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    engine, model = engines[True], models.load(tiny_model(True))
    update(engine, model, 1)
    starts = [start(index, samples=2) for index in range(8)]
    with run(engine, tmp_path) as here:
        found = here.rollouts(starts)
        assert len(here.turns.calls) == 26
        answered = 0
        for one in found:
            own, written = one.generated, one.tokens.tolist()
            assert own[0]
            assert own[-1]
            assert one.response_ids.size <= BUDGET
            expected, rewards, begin = np.ones(len(written), np.bool_), [], 0
            for at, token in enumerate(written, 1):
                ends = expected[at - 1] and (token in here.turns.calls or token == models.EOS)
                if not ends:
                    continue
                action = here.turns.text(written[begin:at])
                rewards.append((at - 1, float(action.count("a"))))
                answer = list(map(ord, ""))
                if token in here.turns.calls and action[-1] < "s" and at < len(written):
                    answer = here.turns.reply(token, [{"role": "user", "content": f"<{action[-1]}>"}])
                    assert written[at : at + len(answer)] == answer
                    expected[at : at + len(answer)] = False
                    answered += 1
                begin = at + len(answer)
            assert own.tolist() == expected.tolist()
            assert one.episode is not None
            assert one.episode.rewards == tuple(rewards)
            assert (one.episode.turns, one.episode.total) == (len(rewards), sum(reward for _, reward in rewards))
            # the engine has read the same ids as a model that reads the whole sequence
            assert not one.logprobs[~own].any()
            reference = models.logprobs(model, one.sequence_ids)[-len(written) :]
            np.testing.assert_allclose(one.logprobs[own], reference[own], atol=TOLERANCE)
            assert set(one.versions.tolist()) == {1}
            room = BUDGET - one.response_ids.size  # an answer of three that does not fit ends the response
            if one.finish is Finish.LENGTH:
                assert room == 0 or (written[-1] in here.turns.calls and room <= 3)
            else:
                assert written[-1] == models.EOS
        assert answered > 10
        assert tokens(here.rollouts(starts)) == tokens(found)  # a run repeats
        assert [tokens(here.rollouts([one])) for one in starts[:2]] == [tokens(found[:2]), tokens(found[2:4])]
        plain = generate(engine, starts, RANDOM)  # without an environment the same engine does not stop at letters
        assert any(here.turns.calls & set(one.tokens[:-1].tolist()) for one in plain)
        assert all(one.mask is None and one.episode is None for one in plain)


def test_the_order_of_answers_changes_nothing_in_synchronous_mode(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    """Bit for bit, though the times of the steps differ; in asynchronous mode the tokens are the same."""
    update(engines[True], models.load(tiny_model(True)), 1)
    starts = [start(index, samples=3) for index in range(6)]
    with run(engines[True], tmp_path) as here:
        expected = here.rollouts(starts)
    with run(engines[True], tmp_path, environment_options={"delay": 0.05}, environment_workers=2) as here:
        slow = here.rollouts(starts)
    with run(engines[True], tmp_path, environment_options={"delay": 0.05}, max_staleness=1) as here:
        stale = here.rollouts(starts)
        assert here.engine.waited > 0.0
    assert tokens(stale) == tokens(slow) == tokens(expected)
    for one, other in zip(slow, expected, strict=True):
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


def test_a_state_is_rebuilt_while_its_next_turn_is_generated(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    update(engines[True], models.load(tiny_model(True)), 1)
    with run(engines[True], tmp_path) as here:
        whole = here.rollouts([start(index) for index in range(12)])
        states = [(one, lengths) for one in whole if (lengths := one.states(lambda _: np.zeros(0, np.int32))).size]
        assert len(states) > 3
        again = [
            replace(one.start, id=f"state-{at}", prefix_ids=one.tokens[: lengths[-1]], state_key=at + 1, samples=2)
            for at, (one, lengths) in enumerate(states)
        ]
        found = here.rollouts(again)
        assert len(found) == 2 * len(again)
        for one in found:
            assert one.episode is not None
            past = here.turns.text(one.start.prefix_ids.tolist())
            assert (
                one.episode.turns - len(one.episode.rewards) == sum(mark in LETTERS for mark in past.replace("<", ""))
                or past
            )
            assert one.episode.repeated == one.episode.turns - len(one.episode.rewards) > 0
        assert not here.dropped
        wrong = again[0].prefix_ids.copy()
        wrong[-2] = wrong[-2] + 1  # the letter inside the brackets of the last answer
        lost = replace(again[0], id="wrong", prefix_ids=wrong)
        assert len(here.rollouts([lost, replace(again[1], id="right")])) == 2
        assert [(gone.id, one.state_lost) for gone, one in here.dropped] == [("wrong", True)] * 2
        assert "repeated, the environment answers" in here.dropped[0][1].dropped


def test_turns_and_tokens_have_limits(engines: dict[bool, Any], tiny_model: Get, tmp_path: Path) -> None:
    """Every token of the model ends a turn and is answered with one token: of 7 tokens 0, 2, 4 and 6 are its own."""
    update(engines[True], models.load(tiny_model(True)), 1)
    for most, size in ((64, 7), (2, 3)):
        with run(engines[True], tmp_path, "Bad", max_turns=most) as here:
            here.turns.calls = frozenset(range(models.VOCABULARY)) - {models.EOS}
            here.turns.reply = lambda *_: [5]  # type: ignore[method-assign]
            found = here.rollouts([start(index) for index in range(4)], Sampling(1.0, 1.0, 7))
            for one in found:
                assert one.finish is Finish.LENGTH
                assert one.generated.tolist() == [True, False, True, False, True, False, True][:size]


def test_what_an_environment_does_wrong_costs_its_episode_alone(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the episodes hangs, and the others are as without it."""
    update(engines[True], models.load(tiny_model(True)), 1)
    starts = [start(index, samples=4) for index in range(6)]
    with run(engines[True], tmp_path, "Bad", max_turns=1) as here:
        expected = here.rollouts(starts)
        texts = [here.turns.text(one.tokens.tolist()) for one in expected]
        stopped = [one.tokens[-1] == models.EOS for one in expected]
    other = start(9, opening="another")
    monkeypatch.setattr("core.environments.workers.STEP_SECONDS", 1.0)
    with run(engines[True], tmp_path, "Bad", max_turns=1) as here:
        text, bad = here.turns.text, texts[stopped.index(True)]
        here.turns.text = lambda action: "hang" if text(action) == bad else text(action)  # type: ignore[method-assign]
        found = here.rollouts([*starts, other])
        assert here.workers.replaced == 1
    assert tokens(found) == [one for one, text in zip(tokens(expected), texts, strict=True) if text != bad]
    assert len(found) < len(expected)
    assert "reset has returned other messages" in here.dropped[-1][1].dropped


def test_a_run_can_drop_its_episodes(engines: dict[bool, Any], tiny_model: Get, tmp_path: Path) -> None:
    update(engines[True], models.load(tiny_model(True)), 1)
    starts = [start(index) for index in range(4)]
    with run(engines[True], tmp_path, environment_options={"delay": 5.0}) as here:
        ledger = Ledger()
        ledger.add(starts, RANDOM)
        here.engine.add(ledger.take("engine", ledger.open))
        here.engine.run(0.0)
        here.engine.abort()
        assert here.engine.unfinished == len(here.workers) == 0


def test_turns_that_end_while_the_weights_are_probed_go_on(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    """A probe takes steps of the engine, and what ends in them is seen later."""
    update(engines[True], models.load(tiny_model(True)), 1)
    starts = [start(index) for index in range(4)]
    with run(engines[True], tmp_path) as here:
        expected = here.rollouts(starts)
        ledger = Ledger()
        ledger.add(starts, RANDOM)
        here.engine.add(ledger.take("engine", ledger.open))
        while here.engine._engine.unfinished:
            here.engine._engine.step()
        ledger.accept(here.engine.run(PATIENT))
        assert here.engine.unfinished == 0
        assert tokens([one for each in starts for one in ledger.collect(each.id)]) == tokens(expected)


def test_a_snapshot_stands_for_the_steps_before_it(engines: dict[bool, Any], tiny_model: Get, tmp_path: Path) -> None:
    update(engines[True], models.load(tiny_model(True)), 1)
    opening = digest([{"role": "system", "content": "Count."}, {"role": "user", "content": "apples"}])
    starts = [start(index, opening) for index in range(8)]
    with run(engines[True], tmp_path, "Counter") as here:
        here.turns.calls = frozenset(range(models.VOCABULARY)) - {models.EOS}
        here.turns._stop = here.turns.calls | {models.EOS}
        first = here.rollouts(starts)
        lengths = [one.states(lambda _: np.zeros(0, np.int32)) for one in first]
        assert all(one.size == 2 for one in lengths)
        states = [
            replace(one.start, id=f"{one.start.id}s", state_key=1, prefix_ids=one.tokens[: at[0]])
            for one, at in zip(first, lengths, strict=True)
        ]
        asked = list[str]()
        open_world = here.workers.open
        here.workers.open = lambda world, snapshot="": asked.append(snapshot) or open_world(world, snapshot)  # type: ignore[func-returns-value,method-assign]
        known = here.rollouts(states)
        here.engine._snapshots.clear()
        rebuilt = here.rollouts(states)
        again = here.rollouts(states)  # rebuilt once, a state has its snapshot
    assert all(asked[:8])
    assert not any(asked[8:16])
    assert all(asked[16:])
    assert {one.episode.repeated for one in again if one.episode} == {0}
    assert [one.episode for one in known] == [one.episode for one in rebuilt]
    assert {one.episode.repeated for one in known if one.episode} == {0}
    assert {one.episode.repeated for one in rebuilt if one.episode} != {0}
    assert tokens(known) == tokens(rebuilt)
    assert {(one.episode.turns, one.episode.total) for one in known if one.episode} == {(3, 1.5)}


@pytest.mark.parametrize("name", ["Echo", "Counter"])
def test_an_action_that_begins_in_the_prefix_reaches_the_environment_whole(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path, name: str
) -> None:
    """Starts of a user's source, inside the first turn."""
    update(engines[True], models.load(tiny_model(True)), 1)
    opening = digest([{"role": "system", "content": "Count."}, {"role": "user", "content": "apples"}])
    with run(engines[True], tmp_path, name) as here:
        starts = [start(index, SILENT if name == "Echo" else opening) for index in range(8)]
        whole = [one for one in here.rollouts(starts) if not here.turns._stop & set(one.tokens[:2].tolist())]
        assert whole
        acted, step = dict[int, str](), here.workers.step

        def act(episode_id: int, action: str) -> None:
            acted.setdefault(episode_id, action)
            step(episode_id, action)

        here.workers.step = act  # type: ignore[method-assign]
        for turn in range(2):
            acted.clear()
            again = [replace(one.start, id=f"{one.start.id}.{turn}", prefix_ids=one.tokens[:2]) for one in whole]
            found = here.rollouts(again)
            assert len(found) == len(whole)
            expected = []
            for one in found:
                own = one.tokens.tolist()
                if ends := [at for at, token in enumerate(own, 1) if token in here.turns._stop]:
                    expected.append(here.turns.text([*one.start.prefix_ids.tolist(), *own[: ends[0]]]))
            assert [acted[number] for number in sorted(acted)] == expected != []
        assert not here.dropped


def test_an_action_that_begins_in_the_second_turn_of_the_prefix_reaches_the_environment_whole(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    """The first turn is repeated, and its actions end where they did."""
    update(engines[True], models.load(tiny_model(True)), 1)
    with run(engines[True], tmp_path) as here:
        again, second = list[Start](), dict[str, tuple[int, int]]()
        for one in here.rollouts([start(index, samples=4) for index in range(8)]):
            answered = np.flatnonzero(~one.generated)
            if not answered.size:
                continue
            end = int(answered[0])
            inside = end + int(np.flatnonzero(one.generated[end:])[0])
            # nothing is answered to some turns, and the next one must not be over yet
            if here.turns._stop & {*one.tokens[: end - 1].tolist(), int(one.tokens[inside])}:
                continue
            name = f"{one.start.id}.{one.sample}"
            again.append(replace(one.start, id=name, samples=1, prefix_ids=one.tokens[: inside + 1]))
            second[name] = end, inside
        assert again
        acted, step = dict[int, list[str]](), here.workers.step

        def act(episode_id: int, action: str) -> None:
            acted.setdefault(episode_id, []).append(action)
            step(episode_id, action)

        here.workers.step = act  # type: ignore[method-assign]
        expected = []
        for one in here.rollouts(again):
            tokens, (end, inside) = [*one.start.prefix_ids.tolist(), *one.tokens.tolist()], second[one.start.id]
            stops = [at for at in range(inside, len(tokens)) if tokens[at] in here.turns._stop]
            actions = [tokens[:end], *([tokens[inside : stops[0] + 1]] if stops else [])]
            expected.append([here.turns.text(action) for action in actions])
        assert sorted(actions[:2] for actions in acted.values()) == sorted(expected)
        assert {len(actions) for actions in expected} >= {2}
        assert not here.dropped
