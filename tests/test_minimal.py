"""docs/minimal.py and the product on the same model and rollouts: their numbers agree.

Compared for three iterations: the stored states and their priorities, the answers to imitate, the scores, advantages,
losses, gradients and weights of policy and critic. The rollouts, and which starts and answers are drawn, come from
docs/minimal.py, because the random numbers of the engines and the store are others. docs/minimal.py lacks what the
success model learns from all problems together, the decay of outcomes and the fading of answers, and several steps per
pass: here they are off in the product. It also lacks the dual clip and the clip of values: here they are on, and no
number reaches them.
"""

import ast
import importlib.util
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch

from core.config import AlgorithmConfig, ReplayConfig
from core.interruption import Interruption
from core.parts.sources import Progress, StartSource, root_start, state_start
from core.records import Finish, IntArray, Problem, Provenance, Rollout, Sampling, Start, Use, Verdict
from learner.batch import Batch
from learner.stats import UpdateStats
from replay.coverage import Coverage
from replay.imitation import Imitation, discoveries
from replay.rankings.learnability import Learnability
from replay.source import Cutting, Replay
from replay.store.shard import Shard
from replay.store.store import ReplayStore
from tests.learner.groups import Engines, Learner, group
from tests.test_architecture import imported
from tests.trainer.fakes import fake_run
from trainer.loop import iterate
from trainer.metrics import PhaseClock
from trainer.run import Run, Sources

ROOT = Path(__file__).parents[1]
STANDARD = {"copy", "itertools", "math", "random", "typing"}
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}
LOGS: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}  # of unlikely tokens they are large
REPLAY = ReplayConfig(ratio=0, ranking="tests.test_minimal:Plain", per_problem=1000)


class Plain(Learnability):
    """The ranking of the product, with the success model as it is before outcomes."""

    model = "unused"  # type: ignore[assignment]


@pytest.fixture(scope="module")
def minimal() -> Any:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("minimal", ROOT / "docs" / "minimal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def newlines(response: IntArray, newline: int = 14) -> IntArray:
    """The boundaries of a response: behind every line."""
    return (np.flatnonzero(response[:-1] == newline) + 1).astype(np.int32)


class Given(StartSource):
    """Starts, continuations with their verdicts, and answers to imitate, as docs/minimal.py drew them."""

    def __init__(self, minimal: Any, problems: Sequence[str], store: ReplayStore) -> None:
        self.minimal, self.store = minimal, store
        self.problems = {one: Problem(one, self.ids(one), "") for one in problems}
        self.rows: list[Any] = []  # of an iteration: `minimal.Rollout`s, then those to imitate
        self.batch: Any = None  # `minimal.Batch`

    def ids(self, text: str) -> IntArray:
        return np.array([self.minimal.ALPHABET.index(one) for one in text], np.int32)

    def room(self, _: Progress) -> int:
        return int(self.minimal.STARTS)

    def propose(self, most: int, at: Progress) -> list[Start]:
        keys = {(problem, prefix): state.key for (problem, prefix), state in stored(self).items()}
        starts = []
        for index, one in enumerate(self.rows[: most * at.samples : at.samples]):
            key = keys.get((one.problem, one.prefix))
            kind = "replayed" if one.prefix else "fresh"
            starts.append(state_start(self.problems[one.problem], self.ids(one.prefix), key, at, index, kind))
        return starts

    def generate(self, starts: Sequence[Start], _: Sampling | None = None) -> list[Rollout]:
        pairs = [(start, sample) for start in starts for sample in range(start.samples)]
        return [self.rollout(row, start, sample) for row, (start, sample) in enumerate(pairs)]

    def rollout(self, row: int, start: Start, sample: int) -> Rollout:
        text, right = self.rows[row].text, self.rows[row].right
        logprobs = self.batch.proximal[row][self.batch.written[row]].numpy()
        finish = Finish.STOP if text.endswith(self.minimal.END) else Finish.LENGTH
        versions, verdict = np.zeros(len(text), np.int32), Verdict(float(right), right)
        return Rollout(start, sample, self.ids(text), logprobs, versions, finish, verdict=verdict)

    def judge(self, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        return rollouts

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:
        found = []
        for index, one in enumerate(self.rows[len(rollouts) :]):
            start, ids = root_start(self.problems[one.problem], at, index, "discovered"), self.ids(one.text)
            zeros = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32)
            found.append(Rollout(start, 0, ids, *zeros, Finish.STOP, use=Use.IMITATE, verdict=Verdict(1.0, True)))
        return found


class Stored(NamedTuple):
    """A state of a right answer, as the store of the product has it."""

    key: int
    priority: float
    counts: tuple[float, float]


def stored(given: Given) -> dict[tuple[str, str], Stored]:
    """The states of right answers in the store, by problem and prefix."""

    def _rows(shard: Shard) -> list[tuple[str, str, int, float, float, float]]:
        columns = [shard.states[name].tolist() for name in ("key", "priority", "wins", "losses", "provenance")]
        names = [shard.names[number] for number in shard.states["problem"].tolist()]
        texts = ["".join(given.minimal.ALPHABET[i] for i in shard.prefix(row)) for row in range(len(names))]
        rows = zip(names, texts, *columns, strict=True)
        return [row[:-1] for row in rows if row[-1] == Provenance.OWN_SUCCESSFUL]

    (found,) = given.store._all(_rows)
    return {(name, text): Stored(key, priority, (wins, losses)) for name, text, key, priority, wins, losses in found}


class Watched:
    """What both sides compute in an update."""

    def __init__(self, patch: pytest.MonkeyPatch, minimal: Any) -> None:
        self.rows: list[Any] = []  # of the last batch of docs/minimal.py
        self.losses: list[float] = []
        self.gradients: list[list[torch.Tensor]] = []  # of every call of AdamW, clipped
        self.batches: list[Any] = []
        backward, adamw = torch.Tensor.backward, torch.optim.AdamW.step
        score, update, learn = minimal.score, minimal.update, Learner.update

        def _backward(loss: torch.Tensor, *given: Any, **options: Any) -> None:
            self.losses.append(float(loss.detach()))
            backward(loss, *given, **options)

        def _step(optimizer: torch.optim.AdamW, *given: Any) -> Any:
            parameters = [one for of in optimizer.param_groups for one in of["params"] if one.grad is not None]
            self.gradients.append([one.grad.clone() for one in parameters])  # type: ignore[union-attr]
            return adamw(optimizer, *given)

        def _score(run: Any, rows: list[Any], count: int) -> Any:
            self.rows = rows
            return score(run, rows, count)

        def _update(run: Any, batch: Any) -> None:
            self.batches.append(batch)
            update(run, batch)

        def _learn(learner: Learner, batch: Batch) -> UpdateStats:
            self.batches.append(batch)
            return learn(learner, batch)

        patch.setattr(minimal, "score", _score)
        patch.setattr(minimal, "update", _update)
        patch.setattr(Learner, "update", _learn)
        patch.setattr(torch.Tensor, "backward", _backward)
        patch.setattr(torch.optim.AdamW, "step", _step)

    def take(self) -> tuple[list[float], list[list[torch.Tensor]], list[Any]]:
        """The losses, gradients and batches since the last call."""
        found = self.losses, self.gradients, self.batches
        self.losses, self.gradients, self.batches = [], [], []
        return found


def check_replay(ours: Any, given: Given, imitation: Imitation) -> None:
    states, found, worths = ours.states, stored(given), given.minimal.worth(ours.states)
    assert {start for start in states if start[1]} == found.keys()
    for (problem, prefix), state in found.items():
        assert tuple(states[problem, prefix][1:]) == state.counts
        worth = worths.get(problem, {}).get(prefix, 0.0)
        weight = worth and worth * max(worths[problem].values()) / sum(worths[problem].values())
        assert math.exp(state.priority) == pytest.approx(weight, rel=0, abs=1e-5)
    kept = imitation._kept
    assert {name: kept[name].response_ids.tolist() for name in kept} == {
        problem: given.ids(text).tolist() for problem, text in ours.answers.items()
    }


def check_update(ours: tuple[Any, ...], theirs: tuple[Any, ...], passes: int) -> None:
    """`ours`: of docs/minimal.py, where one AdamW steps for both models; in the product the critic's comes first."""
    (losses, gradients, (batch,)), (found, of_models, (credited,)) = ours, theirs
    written, imitated = batch.written.numpy(), batch.imitated.numpy()
    own = int(written.sum())
    columns = credited.columns
    np.testing.assert_allclose(columns.advantages[:own], batch.advantages.numpy()[written], **CLOSE)
    np.testing.assert_allclose(columns.reference[:own], batch.reference.numpy()[written], **LOGS)
    np.testing.assert_allclose(columns.proximal[:own], batch.proximal.numpy()[written], **LOGS)
    np.testing.assert_allclose(columns.proximal[own:], batch.proximal.numpy()[imitated], **LOGS)
    assert len(losses) == 2 * passes
    summed = np.array(found).reshape(passes, 2, -1).sum(axis=-1)  # over micro-batches
    np.testing.assert_allclose(summed, np.array(losses).reshape(passes, 2), **CLOSE)
    for number, gradient in enumerate(gradients):
        of_critic, of_policy = of_models[2 * number : 2 * number + 2]
        for one, other in zip(gradient, [*of_policy, *of_critic], strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


def check_weights(ours: Any, learner: Learner) -> None:
    engines = learner._ranks._worker._engines  # type: ignore[attr-defined]
    for model, engine in ((ours.policy, engines["policy"]), (ours.critic, engines["value"])):
        trained = [tensor for _, tensor in engine.named_tensors()]
        for one, other in zip(model.parameters(), trained, strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


def product(given: Given, learner: Learner, model: Path) -> tuple[Run, Imitation]:
    """A run of the product that is given starts, continuations and answers to imitate."""
    coverage = Coverage(len(given.problems))
    replay = Replay(REPLAY, given.store, given.problems, coverage, Cutting(newlines, 100), refreshed=0)
    imitation = Imitation("discovered", 0, partial(discoveries, coverage), given.problems)
    sources = Sources(given, {"coverage": coverage, "replay": replay, "imitation": imitation})
    run = fake_run(cast(Any, given), cast(Any, learner), sources, given.minimal.SAMPLES)
    pool, algorithm = cast(Any, Engines(model)), learner.algorithm
    return replace(run, problems=given.problems, pool=pool, algorithm=algorithm), imitation


def test_three_iterations_of_the_file_and_of_the_product(
    minimal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.success.PROBLEM_PRECISION", 1e12)  # problems do not differ
    for module in ("replay.store.shard", "replay.evidence"):
        monkeypatch.setattr(f"{module}.DECAY", 1.0)
    settings = {"LR": 3e-5, "KL": 0.5, "CLIP": 0.01}  # small steps, because Adam enlarges rounding, yet all terms act
    for name, value in settings.items():
        monkeypatch.setattr(minimal, name, value)
    algorithm = AlgorithmConfig(kl_coefficient=minimal.KL, clip_low=minimal.CLIP, clip_high=minimal.CLIP)
    random.seed(0)
    torch.manual_seed(0)
    policy, model = minimal.new_policy(), tmp_path / "model"
    policy.save_pretrained(model)
    ours, watched = minimal.Run(policy, random.sample(minimal.PROBLEMS, 48)), Watched(monkeypatch, minimal)
    store = ReplayStore(REPLAY, vocabulary=len(minimal.ALPHABET), directory=tmp_path, fingerprint="", local=True)
    given = Given(minimal, ours.problems, store)
    rates = {"policy_lr": minimal.LR, "value_lr": minimal.LR}
    with group(
        model, algorithm, temperature=1.0, minibatches=1, epochs=minimal.PASSES, micro_batch_tokens=512, **rates
    ) as learner:
        run, imitation = product(given, learner, model)
        for number in range(1, 4):
            minimal.iterate(ours)
            given.rows, (given.batch,) = watched.rows, watched.batches
            of_file = watched.take()
            report = iterate(run, run.at(number), PhaseClock(), Interruption())
            check_update(of_file, watched.take(), minimal.PASSES)
            check_replay(ours, given, imitation)
            check_weights(ours, learner)
        assert any(not one.start.from_root for one in report.trained)
        assert report.imitated
        assert report.stats.clip_fraction > 0
        assert abs(report.stats.reference_kl) > 1e-4
    pairs = zip(policy.parameters(), ours.reference.parameters(), strict=True)
    assert max(float((now - before).detach().abs().max()) for now, before in pairs) > 1e-4  # 6 steps of Adam at 3e-5


def test_the_file_is_short_and_needs_torch_and_transformers_alone(minimal: Any) -> None:
    text = Path(minimal.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert (
        {"random", "torch", "transformers"}
        < imported(ast.parse(text), deep=True)
        <= STANDARD | {"torch", "transformers"}
    )
