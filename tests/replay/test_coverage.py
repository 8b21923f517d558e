"""What a run has seen and solved, by hand."""

from pathlib import Path

import numpy as np

from core.parts.sources import Progress, root_start, state_start
from core.records import Use
from replay.coverage import RECENT, Coverage, Life, read_lives
from tests.trainer.fakes import PROBLEMS, FakeEngines

AT = Progress(0, 1, 10, 2)
IDS = np.array([7, 8], np.int32)


def test_visits_and_solved_problems(tmp_path: Path) -> None:
    """p1 fails at its root twice and succeeds from a state; p2 succeeds at its root; p3 is never started."""
    engines = FakeEngines(lambda start, _: ([1], start.replayed or start.problem_id == "p2"))
    starts = [root_start(PROBLEMS["p1"], AT, 0), root_start(PROBLEMS["p1"], AT, 1), root_start(PROBLEMS["p2"], AT, 2)]
    rollouts = engines.judge(engines.generate([*starts, state_start(PROBLEMS["p1"], IDS, 5, AT, 0)]))
    coverage = Coverage(4)
    coverage.observe(rollouts, AT)
    expected = {"visited": 0.5, "visits": 1.5, "covered_from_root": 0.25, "covered": 0.5}  # of 4; 3 starts of 2
    assert coverage.metrics() == expected
    coverage.save(tmp_path)
    again = Coverage(4)
    again.restore(tmp_path)
    assert again.metrics() == expected
    assert read_lives(tmp_path) == {
        # two roots, and a state of two tokens
        "p1": Life(2, None, 1, [[1, 0, 0, 2], [1, 0, 0, 2], [1, 2, 2, 2]], [0.0], root_succeeds=False, replayed=1),
        "p2": Life(1, 1, 1, [[1, 0, 2, 2]], [1.0], root_succeeds=True),
    }
    again.restore(None)
    assert again.metrics() == {"visited": 0.0, "visits": 0.0, "covered_from_root": 0.0, "covered": 0.0}
    assert {rollout.use for rollout in rollouts} == {Use.TRAIN}


def test_a_life_keeps_its_newest_starts_and_its_first_successes() -> None:
    engines, life = FakeEngines(lambda start, _: ([1], not start.replayed)), Life()
    root, state = root_start(PROBLEMS["p1"], AT, 0), state_start(PROBLEMS["p1"], IDS, 5, AT, 0)
    for iteration in range(1, RECENT + 2):
        life.add(iteration, engines.judge(engines.generate([state if iteration == 1 else root])))
    assert (life.visits, life.first, life.first_from_root) == (RECENT, 2, 2)
    assert life.recent[0] == [2, 0, 2, 2]
    assert len(life.recent) == RECENT
