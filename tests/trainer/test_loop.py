"""A whole iteration, by hand: what is started, trained on, imitated and remembered, and when it fails."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from core.config import ReplayConfig
from core.errors import ActorError, DataError, LearnerError, WeightError
from core.interruption import Interruption
from core.parts.sources import Progress, StartSource, root_start
from core.records import Rollout, Start, Use, used
from replay.coverage import Coverage
from replay.imitation import Imitation, own_successes
from replay.source import Cutting, Replay
from replay.store.store import ReplayStore
from tasks.sampling import Fresh, UniformSampler
from tests.learner.conftest import every_token
from tests.replay.made import sample
from tests.trainer.fakes import PROBLEMS, FakeEngines, FakeLearner, fake_run
from trainer.loop import iterate
from trainer.metrics import PhaseClock
from trainer.rollouts import resampled
from trainer.run import Report, Run, Sources


def answer(start: Start, sample: int) -> tuple[list[int], bool]:
    """The first sample from a root is right: 7 8 9. The others say 7 8 1. What continues a state is always right."""
    if not start.from_root:
        return [9, 9][: 3 - start.prefix_ids.size], True
    return ([7, 8, 9], True) if sample == 0 else ([7, 8, 1], False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplayStore]:
    config = ReplayConfig(ranking="uniform", ratio=0.5, start_states=1, schedule="constant", imitated=2)
    made = ReplayStore(config, vocabulary=100, directory=tmp_path, fingerprint="", local=True)
    yield made
    made.close()


def run_with(store: ReplayStore, engines: FakeEngines, learner: FakeLearner) -> Run:
    config = ReplayConfig(ranking="uniform", ratio=0.5, start_states=1, schedule="constant", bounded=False)
    replay = Replay(config, store, PROBLEMS, Coverage(4), Cutting(every_token, 8), refreshed=1, lost=engines.take_lost)
    others: dict[str, StartSource] = {"replay": replay, "imitation": Imitation("imitated", 2, own_successes, PROBLEMS)}
    return fake_run(engines, learner, Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), others))


def iteration(run: Run, number: int) -> Report:
    return iterate(run, run.at(number), PhaseClock(), Interruption())


def test_two_iterations_by_hand(store: ReplayStore) -> None:
    engines, learner = FakeEngines(answer), FakeLearner()
    run = run_with(store, engines, learner)
    first = iteration(run, 1)
    assert engines.asked == [["1.f0", "1.f1", "1.f2", "1.f3"]]  # the store is empty
    # Two samples of each of four problems: 7 8 9 is right. States after 7 and after 7 8 are the same for both.
    assert [rollout.verdict.correct for rollout in first.trained] == [True, False] * 4
    assert (len(store), first.imitated, first.broadcast.version) == (4 * 2, [], 1)

    second = iteration(run, 2)
    fresh, replayed = engines.asked[1][:2], engines.asked[1][2:]
    assert (fresh, replayed) == (["2.f0", "2.f1"], ["2.r0", "2.r1"])  # half of the four
    # Half of the samples of the first four problems were right: one answer of each is kept, and two are repeated.
    assert [(rollout.use, rollout.tokens.tolist(), rollout.weight) for rollout in second.imitated] == [
        (Use.IMITATE, [7, 8, 9], 0.5 ** (1 / 32))
    ] * 2  # one weight version old
    (valued,) = used(second.rollouts, Use.VALUE)  # its value was of version 0
    assert not valued.start.from_root
    assert {len(rollout.start.prefix_ids) for rollout in second.trained if not rollout.start.from_root} <= {1, 2}
    assert store.stats().outcomes == store.stats().solved == 2 * 2  # two states, two samples each
    assert [len(update) for update in learner.updates] == [8, 8 + 2]
    assert run.sources.metrics()["store_states"] == len(store)


def test_a_start_that_no_engine_can_generate_leaves_the_store(store: ReplayStore) -> None:
    engines = FakeEngines(answer)
    run = run_with(store, engines, FakeLearner())
    iteration(run, 1)
    before = len(store)
    engines.lost = run.sources.propose(4, run.at(2))[2:]
    iteration(run, 2)
    keys = {start.state_key for start in engines.lost}
    assert keys.isdisjoint(state.key for state in sample(store, 99, seed=0))
    assert before == 8


def test_starts_of_equal_rewards_are_replaced_and_only_count(store: ReplayStore) -> None:
    """Only the second start of the first round differs in its rewards, and both of the second."""
    engines = FakeEngines(lambda start, sample: ([7, sample], sample == 0 and start.id in ("1.f1", "1.f100000")), 2)
    learner = FakeLearner()
    run = fake_run(engines, learner, Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}), rounds=3)
    report = iteration(run, 1)
    assert engines.asked == [["1.f0", "1.f1"], ["1.f100000"]]
    assert [rollout.start.id for rollout in report.trained] == ["1.f1", "1.f1", "1.f100000", "1.f100000"]
    assert [rollout.start.id for rollout in used(report.rollouts, Use.COUNT)] == ["1.f0"] * 2
    assert len(report.generated) == 6


def test_a_replaced_start_leaves_no_part_of_another_behind() -> None:
    """An episode of start 0 was dropped, so the starts are of different sizes; start 1 takes the place of start 0."""
    engines = FakeEngines(lambda start, sample: ([7], sample == 0 and start.id != "1.f0"), 1)
    run = fake_run(engines, FakeLearner(), Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}), rounds=1)
    first = engines.judge(engines.generate([replace(root_start(PROBLEMS["p1"], run.at(1), 0), samples=1)]))
    rollouts = resampled(run, first, run.at(1), PhaseClock())
    assert [(one.start.id, one.use) for one in rollouts] == [
        ("1.f100000", Use.TRAIN),
        ("1.f100000", Use.TRAIN),
        ("1.f0", Use.COUNT),
    ]


class Own(StartSource):
    """A user's own source: always problem 7."""

    def propose(self, most: int, at: Progress) -> list[Start]:
        return [Start(f"{at.iteration}.o0", "p7", PROBLEMS["p7"].prompt_ids, PROBLEMS["p7"].prompt_ids, 2, 0)][:most]

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        self.seen = [rollout.start.id for rollout in rollouts]


def test_a_users_own_source_takes_its_places_and_sees_everything() -> None:
    own = Own()
    engines = FakeEngines(answer)
    run = fake_run(engines, FakeLearner(), Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {"own": own}))
    iteration(run, 3)
    assert engines.asked == [["3.f0", "3.f1", "3.f2", "3.o0"]]
    assert set(own.seen) == {"3.f0", "3.f1", "3.f2", "3.o0"}


def test_places_that_are_kept_for_replay_leave_one_to_a_fresh_problem() -> None:
    """With replay.fill false and a high ratio, the first iteration would have no start at all."""
    sources = Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}, reserved=lambda most, _: most)
    at = Progress(0, 1, 10, 1)
    assert [len(sources.propose(most, at)) for most in (4, 1)] == [1, 1]


def test_two_starts_of_one_id_are_refused() -> None:
    both = Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {"own": Own(), "other": Own()})
    with pytest.raises(DataError, match=r"rollout\.sources.*1\.o0"):
        iteration(fake_run(FakeEngines(answer), FakeLearner(), both), 1)


@pytest.mark.parametrize(
    ("count", "samples", "names"), [(5, 2, "most=4.*5 starts"), (1, 3, r"1\.o0 has 3 samples.* 2 ")]
)
def test_starts_of_a_source_that_do_not_fit_are_refused_by_its_name(count: int, samples: int, names: str) -> None:
    class Wrong(StartSource):
        def propose(self, most: int, at: Progress) -> list[Start]:
            problems = [PROBLEMS[f"p{number}"] for number in range(count)]
            return [root_start(problem, replace(at, samples=samples), i, "own") for i, problem in enumerate(problems)]

    sources = Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {"my_source.Wrong": Wrong()})
    with pytest.raises(DataError, match=rf"rollout\.sources my_source\.Wrong: .*{names}"):
        iteration(fake_run(FakeEngines(answer), FakeLearner(), sources), 1)


def test_a_source_that_a_checkpoint_does_not_know_is_as_new(tmp_path: Path) -> None:
    fresh = Fresh(UniformSampler([*PROBLEMS.values()], 0))
    Sources(fresh, {}).save(tmp_path)
    imitation, at = Imitation("imitated", 2, own_successes, PROBLEMS), Progress(0, 1, 10, 1)
    engines = FakeEngines(lambda _, sample: ([1], sample == 0))
    imitation.observe(engines.judge(engines.generate([root_start(PROBLEMS["p1"], at, 0)])), at)
    Sources(fresh, {"imitation": imitation}).restore(tmp_path)
    assert imitation.extra([], at) == []


def test_places_that_are_reserved_and_not_taken_stay_empty() -> None:
    """Of four places two are reserved at first and none from iteration 2 on; the own source takes one of them."""
    fresh, engines = Fresh(UniformSampler([*PROBLEMS.values()], 0)), FakeEngines(answer)
    sources = Sources(fresh, {"own": Own()}, reserved=lambda most, at: most // 2 if at.iteration < 2 else 0)
    run = fake_run(engines, FakeLearner(), sources)
    iteration(run, 1)
    iteration(run, 2)
    assert [len(asked) for asked in engines.asked] == [3, 4]


def test_a_start_that_must_not_be_trained_on_is_refused_before_it_is_generated() -> None:
    def refuse(_starts: Sequence[Start]) -> None:
        raise ValueError("an evaluation problem")

    engines = FakeEngines(answer)
    run = fake_run(engines, FakeLearner(), Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}, refuse))
    with pytest.raises(ValueError, match="an evaluation problem"):
        iteration(run, 1)
    assert engines.asked == []


@pytest.mark.parametrize("error", [ActorError("rollout-0 died"), WeightError("rollout-0 acknowledged version 3")])
def test_engines_lost_in_a_broadcast_do_not_undo_the_update(error: ActorError | WeightError) -> None:
    learner = FakeLearner(error=error)
    run = fake_run(FakeEngines(answer), learner, Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}))
    report = iteration(run, 1)
    assert (report.broadcast.version, report.broadcast.gap, report.failure) == (1, None, error)
    assert len(learner.updates) == 1


def test_a_learner_lost_in_a_broadcast_does() -> None:
    learner = FakeLearner(error=LearnerError("rank 0 died"))
    run = fake_run(FakeEngines(answer), learner, Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}))
    with pytest.raises(LearnerError):
        iteration(run, 1)


def test_an_iteration_without_a_response_or_a_verdict_is_refused_before_the_update() -> None:
    learner = FakeLearner()
    engines = FakeEngines(answer, starts=0)
    run = fake_run(engines, learner, Sources(Fresh(UniformSampler([*PROBLEMS.values()], 0)), {}))
    with pytest.raises(ActorError, match="iteration 7"):
        iteration(run, 7)
    engines.starts = 2
    engines.judge = lambda rollouts: [  # type: ignore[method-assign]
        replace(one, verdict=replace(one.verdict, detail="judge raised KeyError", judge_failed=True))
        for one in rollouts
    ]
    with pytest.raises(ActorError, match=r"iteration 7 .*KeyError"):
        iteration(run, 7)
    assert learner.updates == []
