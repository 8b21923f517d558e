import numpy as np

from learner.calibration import comparable_states, explained_variance


def test_explained_variance_by_hand() -> None:
    returns = np.array([0.0, 1.0, 0.0, 1.0])  # variance 0.25
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.zeros(4), returns) == 0.0
    assert explained_variance(1 - returns, returns) == -3.0  # errors -1, 1: variance 1; 1 - 1 / 0.25
    assert explained_variance(returns, np.ones(4)) == 0.0
    assert explained_variance(returns, np.full(4, np.nan)) == 0.0


def test_continuations_of_a_start_are_compared_where_any_of_them_has_a_boundary() -> None:
    depths = [np.array(own, np.int32) for own in ([3, 6], [4], [], [5])]
    read, groups = comparable_states(["a", "a", "a", "b"], [np.ones(count, np.bool_) for count in (9, 5, 4, 7)], depths)
    # of a: 3, 4 and 6; the second has tokens 0 to 4, the third 0 to 3
    assert [at.tolist() for at in read] == [[3, 4, 6], [3, 4], [3], [5]]
    first = groups[:3].tolist()
    assert len(set(first)) == 3
    assert groups[3:6].tolist() == [first[0], first[1], first[0]]
    assert groups[6] not in first
