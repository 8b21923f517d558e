"""Own earlier successes in a batch: the language-model loss takes them, and nothing else does."""

from dataclasses import replace

import numpy as np

from core.config import AlgorithmConfig
from core.records import Use, Verdict
from learner.credit import Algorithm, credit
from learner.state import LearnerState
from tests.learner.conftest import credited, every_token, make_judged
from tests.learner.test_credit import scored_from

CONFIG = AlgorithmConfig(positive_coefficient=1.0)


def test_only_the_language_model_loss_takes_imitated_responses() -> None:
    judged = [replace(j, verdict=Verdict(0.0, False)) for j in make_judged(0)]
    won = scored_from([replace(j, verdict=Verdict(1.0, True)) for j in make_judged(1)][:2])
    earlier = [replace(each, use=Use.IMITATE, weight=weight) for each, weight in zip(won, (1.0, 0.25), strict=True)]
    alone, batch = credited(scored_from(judged), CONFIG), credited([*scored_from(judged), *earlier], CONFIG)
    every = range(len(judged) + 2)
    assert not alone.policy_learns()
    assert batch.policy_learns()
    assert batch.policy_learns([len(judged)])
    assert not batch.policy_learns(range(len(judged)))
    assert batch.finite(every)
    before, after = alone.weights(range(len(judged))), batch.weights(every)
    first, second = (len(each.tokens) for each in won)
    tokens = first + second
    for name in ("rl", "kl", "entropy", "value"):  # the loss of the others is as it was
        np.testing.assert_array_equal(getattr(after, name), [*getattr(before, name), *[0.0] * tokens])
    assert not after.ce[:-tokens].any()
    whole = len(after.ce)  # every token of the batch counts alike, a faded success less
    np.testing.assert_allclose(after.ce[-tokens:], [1 / whole] * first + [0.25 / whole] * second, rtol=1e-6)
    np.testing.assert_array_equal(batch.columns.proximal[-second:], won[1].proximal)
    assert sorted(set(batch.columns.sequence[-tokens:].tolist())) == [len(judged), len(judged) + 1]
    assert batch.rows[-1].tokens.tolist() == won[1].sequence_ids.tolist()


def test_while_the_critic_warms_up_nothing_is_imitated_and_only_the_critic_learns() -> None:
    scored = scored_from(make_judged(0))
    config = CONFIG.model_copy(update={"entropy_coefficient": 0.1, "value_lambda": 0.0})
    batch = credit(
        [*scored, replace(scored[1], use=Use.IMITATE)],
        Algorithm(config, 8, every_token, critic_warmup=1),
        LearnerState(0.2, 0.2),
    )
    assert len(batch.rows) == len(scored)
    assert not batch.policy_learns()
    c = batch.coefficients
    assert (c.rl, c.ce, c.kl, c.entropy, c.value) == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert batch.stats.kl_coefficient == 0.2
    for row, one in enumerate(scored):  # Monte-Carlo returns, whatever value_lambda is
        np.testing.assert_allclose(batch.columns.returns[batch.token_index([row])], one.verdict.reward)
