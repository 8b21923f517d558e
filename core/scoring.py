"""How well numbers foretell outcomes: AUC within groups and the Brier score. Pure numpy."""

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]


def within_auc(
    values: Reals, correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]
) -> tuple[float, float, float]:
    """AUC within groups, its standard error, and the degrees of freedom of that; all NaN without a mixed group.

    The AUC of a group is the share of its (correct, wrong) pairs that the values order rightly (ties count half: midranks).
    Over groups it is their mean with weights m = n+ n- / (n+ + n- + 1) (van Elteren), which is how much a group's says.
    Groups are independent, outcomes of one group are not (of one state there are several): the error is the groups' own
    scatter, sqrt(sum (m (AUC - mean))^2 k / (k - 1)) / sum m, with k = (sum m)^2 / sum m^2 for the number of groups.

    >>> within_auc(np.array([0.9, 0.1, 0.2]), np.array([True, False, True]), np.array([0, 0, 1]))[0]
    1.0
    """
    order = np.lexsort((values, groups))
    value, right, group = values[order], correct[order], np.unique(groups[order], return_inverse=True)[1]
    new = np.ones(len(order), np.bool_)
    new[1:] = (value[1:] != value[:-1]) | (group[1:] != group[:-1])
    first = np.flatnonzero(new)
    sizes = np.diff(np.append(first, len(order)))
    # midranks within each group, from 1
    ranks = np.repeat(first + (sizes + 1) / 2.0, sizes) - np.searchsorted(group, group)
    positives = np.bincount(group, right)
    negatives = np.bincount(group, ~right)
    mixed = (positives > 0) & (negatives > 0)
    if not mixed.any():
        return float("nan"), float("nan"), float("nan")
    good, bad = positives[mixed], negatives[mixed]
    areas = (np.bincount(group, ranks * right)[mixed] - good * (good + 1) / 2) / (good * bad)
    weight = good * bad / (good + bad + 1)
    area = float(np.average(areas, weights=weight))
    number = float(weight.sum() ** 2 / (weight**2).sum())
    if number <= 1.0:
        return area, float("nan"), 0.0
    scatter = float(((weight * (areas - area)) ** 2).sum()) * number / (number - 1.0)
    return area, float(np.sqrt(scatter)) / float(weight.sum()), number - 1.0


def brier(values: Reals, correct: npt.NDArray[np.bool_]) -> float:
    """Mean squared error of the values as probabilities."""
    return float(np.mean((np.clip(values, 0.0, 1.0) - correct) ** 2))


def base_brier(correct: npt.NDArray[np.bool_]) -> float:
    """Brier score of always saying the mean: m (1 - m)."""
    mean = float(np.mean(correct))
    return mean * (1.0 - mean)
