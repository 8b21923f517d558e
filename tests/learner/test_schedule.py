import pytest

from learner.schedule import learning_rate


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert [learning_rate(2.0, step, 4, 100, "constant") for step in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]


def test_schedules_fall_after_the_warm_up() -> None:
    # 2 warm-up steps, then 4 steps: linear 1, 3/4, 2/4, 1/4; cosine (1 + cos(k pi / 4)) / 2
    assert [learning_rate(1.0, step, 2, 6, "linear") for step in range(2, 7)] == [1.0, 0.75, 0.5, 0.25, 0.25]
    cosine = [learning_rate(1.0, step, 2, 6, "cosine") for step in range(2, 6)]
    assert cosine == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])
