"""Own earlier successes in the learner: the language-model loss takes them, and nothing else does."""

from dataclasses import replace

import numpy as np

from core.config import AlgorithmConfig
from core.records import Use, Verdict
from learner.targets import compute_targets, with_imitated
from tests.learner.conftest import make_judged
from tests.learner.test_targets import scored_from


def test_only_the_language_model_loss_takes_imitated_responses() -> None:
    judged = [replace(j, verdict=Verdict(0.0, False)) for j in make_judged(0)]
    won = scored_from([replace(j, verdict=Verdict(1.0, True)) for j in make_judged(1)][:2])
    earlier = [replace(each, use=Use.IMITATE, weight=weight) for each, weight in zip(won, (1.0, 0.25), strict=True)]
    config = AlgorithmConfig(positive_coefficient=1.0)
    alone = compute_targets(scored_from(judged), config, 0)
    batch = with_imitated(alone, earlier)
    every = range(len(judged) + 2)
    assert not alone.teaches(range(len(judged)), config)
    assert batch.teaches(every, config)
    assert not batch.teaches(range(len(judged)), config)
    assert batch.finite(every)
    before, after = alone.weighted(range(len(judged)), "token-mean"), batch.weighted(every, "token-mean")
    first, second = (len(each.tokens) for each in won)
    tokens = first + second
    for name in ("weights", "policy_weights"):  # the loss of the others is as it was
        np.testing.assert_array_equal(getattr(after, name), [*getattr(before, name), *[0.0] * tokens])
    assert not after.positive[:-tokens].any()
    whole = len(after.weights)  # every token of the batch counts alike, a faded success less
    np.testing.assert_allclose(after.positive[-tokens:], [1 / whole] * first + [0.25 / whole] * second, rtol=1e-6)
    np.testing.assert_array_equal(after.proximal[-second:], won[1].proximal)
    assert sorted({int(number) for number in after.sequence[-tokens:]}) == [len(judged), len(judged) + 1]
    assert batch.rows[-1].tokens.tolist() == won[1].sequence_ids.tolist()
