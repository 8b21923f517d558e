"""Choosing starts, and replacing those that teach nothing."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from core.config import Config, ReplayConfig
from core.load import override
from core.records import Finish, Judged, Problem, Sampling, Start, Trajectory, Verdict
from replay.store import ReplayStore
from tests.resolved import without_auto
from trainer import build
from trainer.batches import Batches, by_information, choose_starts, resampled
from trainer.metrics import PhaseClock
from trainer.records import Components, IterationSettings
from trainer.starts import fresh_starts

PROBLEMS = [Problem(f"p{number}", np.array([number], np.int32), "gold") for number in range(100)]


@dataclass
class Parts:
    """Engines whose sample i of problem p is correct if i < `right[p]`, and a store with no states."""

    right: dict[str, int]
    drawn: int = 0
    asked: list[tuple[list[str], float]] = field(default_factory=list)  # starts and temperature of every call

    def sample(self, count: int) -> list[Problem]:
        self.drawn += count
        return PROBLEMS[self.drawn - count : self.drawn]

    def generate(self, starts: list[Start], sampling: Sampling) -> list[Trajectory]:
        self.asked.append(([start.id for start in starts], sampling.temperature))
        none = np.zeros(1, np.int32)
        return [
            Trajectory(start, number, none, np.zeros(1, np.float32), none, Finish.STOP)
            for start in starts
            for number in range(start.samples)
        ]

    def judge(self, trajectories: list[Trajectory]) -> list[Judged]:
        right = [item.sample < self.right.get(item.start.problem_id, 0) for item in trajectories]
        return [Judged(item, Verdict(float(ok), ok)) for item, ok in zip(trajectories, right, strict=True)]

    def check_starts(self, _starts: list[Start]) -> None:
        pass

    def components(self) -> Components:
        store = ReplayStore(ReplayConfig(), vocabulary=10, directory=Path("unused"), fingerprint="", local=True)
        parts = SimpleNamespace(actors=self, task=self, problems=self, replay=store, by_id={})
        parts.boundaries = lambda response: np.arange(2, len(response), 2, dtype=np.int32)
        return cast(Components, parts)


def settings_of(*fields: str) -> IterationSettings:
    options = ["--rollout.starts", "4", "--rollout.samples", "2", "--learner.minibatches", "1", *fields]
    return build.iteration_settings(without_auto(override(Config(), options)))


def first_batch(parts: Parts, settings: IterationSettings) -> list[Judged]:
    starts = choose_starts(parts.components(), settings, 7)
    return parts.judge(parts.generate(starts, settings.sampling))


def test_fresh_problems_take_the_places_of_missing_states_only_if_asked() -> None:
    for fill, fresh in (("true", 4), ("false", 1)):  # the store is empty; 3 of 4 starts may be replayed
        settings = settings_of("--replay.ratio", "0.75", "--replay.fill", fill)
        assert len(choose_starts(Parts({}).components(), settings, 7)) == fresh


def test_fresh_problems_take_the_places_that_replay_gives_up_as_problems_are_solved() -> None:
    components = Parts({}).components()
    evidence = components.replay._evidence
    evidence.fresh_before, evidence.unsolved_before = 2.0, 1.0  # half of the fresh problems were not solved
    for share, fresh in (("constant", 1), ("unsolved", 2)):  # 4 - 3, and 4 - 3 / 2
        settings = settings_of("--replay.ratio", "0.75", "--replay.fill", "false", "--replay.schedule", share)
        assert len(choose_starts(components, settings, 7)) == fresh


def ids(judged: list[Judged]) -> list[str]:
    return list(dict.fromkeys(item.trajectory.start.id for item in judged))


def again(parts: Parts, settings: IterationSettings, judged: list[Judged]) -> tuple[list[Judged], list[Judged]]:
    components = parts.components()
    return resampled(components, settings, judged, lambda few, n: choose_starts(components, few, 7, n), PhaseClock())


def test_starts_of_equal_rewards_are_replaced_until_the_batch_is_informative() -> None:
    # p0 and p2 differ; p1 is never solved, p3 always. Round 1 draws p4 (differs) and p5 (not), round 2 draws p6
    # (differs)
    parts = Parts({"p0": 1, "p2": 1, "p3": 2, "p4": 1, "p6": 1})
    settings = settings_of("--rollout.resample", "5")
    judged = first_batch(parts, settings)
    batch, dropped = again(parts, settings, judged)
    assert [item.trajectory.start.problem_id for item in batch[::2]] == ["p0", "p2", "p4", "p6"]
    assert len(batch) == 8
    assert [item.trajectory.start.problem_id for item in dropped[::2]] == ["p1", "p3", "p5"]
    assert [len(starts) for starts, _ in parts.asked] == [4, 2, 1]
    assert len(set(ids(batch) + ids(dropped))) == 7  # every start has an id of its own
    assert len({item.trajectory.start.seed for item in batch + dropped}) == 7


def test_a_bounded_number_of_rounds_leaves_a_whole_batch() -> None:
    parts = Parts({"p0": 1})  # nothing else is ever solved
    settings = settings_of("--rollout.resample", "2")
    judged = first_batch(parts, settings)
    batch, dropped = again(parts, settings, judged)
    assert len(parts.asked) == 3
    assert (len(batch), len(dropped)) == (8, 12)  # 4 + 3 + 3 starts were generated
    assert ids(batch) == ids(judged)


def test_replayed_starts_are_replaced_by_replayed_ones_in_every_round() -> None:
    parts = Parts({"p2": 1})
    settings = settings_of("--rollout.resample", "2")
    first = parts.sample(4)
    starts = fresh_starts(first, 2, 0, 7)
    starts = [*starts[:2], *(replace(start, state_key=start.seed) for start in starts[2:])]
    judged = parts.judge(parts.generate(starts, settings.sampling))
    asked: list[tuple[int, int]] = []

    def _choose(few: IterationSettings, number: int) -> list[Start]:
        asked.append((few.starts, few.replayed))
        fresh = fresh_starts(PROBLEMS[50:][: few.starts - few.replayed], 2, 0, 7, first=100 * number)
        states = fresh_starts(PROBLEMS[60:][: few.replayed], 2, 0, 7, first=100 * number + 50)
        return [*fresh, *(replace(start, state_key=start.seed) for start in states)]

    parts.right |= {"p50": 1, "p51": 1}  # the fresh ones of round 1 are informative, the replayed one is not
    resampled(parts.components(), settings, judged, _choose, PhaseClock())
    assert asked == [(3, 1), (1, 1)]  # starts and replayed starts of each round


def test_an_informative_batch_costs_nothing() -> None:
    parts = Parts({f"p{number}": 1 for number in range(4)})
    settings = settings_of("--rollout.resample", "2")
    judged = first_batch(parts, settings)
    assert again(parts, settings, judged) == (judged, [])
    assert len(parts.asked) == 1
    assert by_information(judged, settings) == (judged, [])


def test_a_start_is_informative_if_the_learner_sees_different_rewards() -> None:
    parts, settings = Parts({}), settings_of("--algorithm.overlong", "penalise")
    judged = first_batch(parts, settings)  # all fail
    assert by_information(judged, settings) == ([], judged)
    cut = replace(judged[1], trajectory=replace(judged[1].trajectory, finish=Finish.LENGTH))
    batch = [judged[0], cut, *judged[2:]]  # one of the first start is truncated: its reward is lower by the penalty
    assert by_information(batch, settings) == (batch[:2], batch[2:])
    masked = settings_of("--algorithm.overlong", "mask")
    right = [replace(item, verdict=Verdict(1.0, True)) for item in batch[:2]]
    wrong = [
        right[0],
        replace(cut, verdict=Verdict(0.0, False)),
    ]  # the learner sees one reward, for it leaves out the truncated one
    assert by_information(wrong, masked) == ([], wrong)
    assert by_information(wrong, settings) == (wrong, [])


def test_the_fill_of_a_batch_keeps_its_share_of_replay() -> None:
    """Starts 0 and 1 are fresh, 2 and 3 replayed. Only start 0 and a fresh one of the round teach; so one fresh start
    too many came."""
    parts, settings = Parts({"p0": 1, "p50": 1}), settings_of("--rollout.resample", "1")
    starts = fresh_starts(parts.sample(4), 2, 0, 7)
    starts = [*starts[:2], *(replace(start, state_key=start.seed) for start in starts[2:])]
    judged = parts.judge(parts.generate(starts, settings.sampling))

    def _choose(few: IterationSettings, number: int) -> list[Start]:
        return fresh_starts(PROBLEMS[50:][: few.starts], 2, 0, 7, first=100 * number)  # the store has no states

    batch, dropped = resampled(parts.components(), settings, judged, _choose, PhaseClock())
    assert [item.trajectory.start.problem_id for item in batch[::2]] == ["p0", "p50", "p2", "p3"]
    assert [item.trajectory.start.problem_id for item in dropped[::2]] == ["p1", "p51", "p52"]


def test_without_resampling_nothing_is_generated() -> None:
    parts = Parts({})
    settings = settings_of()
    judged = first_batch(parts, settings)
    clock = PhaseClock()
    rollouts = [item.trajectory for item in judged]
    batch = Batches(parts.components(), settings, clock).judge(rollouts, 1)
    assert (batch.judged, batch.dropped) == (judged, [])
    assert len(parts.asked) == 1
