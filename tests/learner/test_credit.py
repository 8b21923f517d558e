import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import AlgorithmConfig
from core.records import Finish, IntArray, Rollout, Verdict
from learner.batch import Batch, non_finite
from tests.learner.conftest import credited, make_judged

THREE = np.array([0.25, 0.5, 0.75], np.float32)  # values


def scored_from(judged: list[Rollout], seed: int = 0) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    out = []
    for j in judged:
        count = len(j.tokens)
        values = rng.uniform(0, 1, count).astype(np.float32)
        proximal = (j.logprobs + 0.1).astype(np.float32)
        out.append(replace(j, values=values, proximal=proximal, reference=proximal))
    return out


def as_prompt(scored: Rollout) -> Rollout:
    """The same text with the replayed prefix as part of the prompt."""
    start = scored.start
    moved = replace(start, prompt_ids=start.context_ids, prefix_ids=start.prefix_ids[:0])
    return replace(scored, start=moved)


def assert_same(left: Batch, right: Batch) -> None:
    """The same numbers of every token."""
    for field in fields(left.columns):
        np.testing.assert_array_equal(getattr(left.columns, field.name), getattr(right.columns, field.name))
    every = range(len(left.rows))
    for field in fields(left.components):
        one, other = (getattr(batch.weights(every), field.name) for batch in (left, right))
        np.testing.assert_array_equal(one, other)


@given(st.integers(0, 1000), st.sampled_from(["global", "separate", "none"]))
def test_a_prefix_as_context_is_a_prefix_as_prompt(seed: int, normalise: str) -> None:
    config = AlgorithmConfig.model_validate({"normalise": normalise})
    scored = scored_from(make_judged(seed))
    assert any(len(s.start.prefix_ids) for s in scored)
    found, expected = credited(scored, config, 0), credited([as_prompt(s) for s in scored], config, 0)
    assert_same(found, expected)
    for one, other in zip(found.rows, expected.rows, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        assert one.context == other.context


def test_advantages_and_returns_of_one_trajectory_by_hand() -> None:
    judged = next(j for j in make_judged(3) if len(j.tokens) == 3 and j.verdict.reward == 1.0)
    proximal = judged.logprobs
    scored = replace(judged, values=THREE, proximal=proximal, reference=proximal)
    batch = credited([scored], AlgorithmConfig(normalise="none", policy_lambda=0.5), 0)
    # deltas 0.25, 0.25, 0.25: A_2 = 0.25, A_1 = 0.25 + 0.125 = 0.375, A_0 = 0.25 + 0.1875 = 0.4375
    np.testing.assert_allclose(batch.columns.advantages, [0.4375, 0.375, 0.25])
    np.testing.assert_allclose(batch.columns.returns, [1.0, 1.0, 1.0])  # value_lambda 1: the reward
    np.testing.assert_allclose(batch.components.rl.tokens, [1.0, 1.0, 1.0])
    assert batch.stats.behaviour_gap_max == 0.0


def test_overlong_penalise_lowers_the_return_of_truncated_rows_only() -> None:
    scored = scored_from(make_judged(0))
    kept = credited(scored, AlgorithmConfig(overlong="keep"), 0)
    lowered = credited(scored, AlgorithmConfig(overlong="penalise"), 0)
    for i, s in enumerate(scored):
        here = slice(kept.offsets[i], kept.offsets[i + 1])
        drop = 0.5 if s.finish is Finish.LENGTH else 0.0
        np.testing.assert_allclose(kept.columns.returns[here] - lowered.columns.returns[here], drop, atol=1e-6)


def one_of_three(finish: Finish = Finish.STOP, reward: float = 1.0) -> Rollout:
    """A rollout of three tokens with values 0.25, 0.5, 0.75."""
    judged = next(j for j in make_judged(3, count=40, prefix=0) if len(j.tokens) == 3)
    judged = replace(judged, finish=finish, verdict=Verdict(reward, reward > 0))
    return replace(judged, values=THREE, proximal=judged.logprobs, reference=judged.logprobs)


def returns_of(scored: Rollout, longest: int = 0, **settings: Any) -> list[float]:
    config = AlgorithmConfig(normalise="none", **settings)
    found: list[float] = credited([scored], config, 0, longest=longest).columns.returns.tolist()
    return found


@pytest.mark.parametrize(("longest", "penalty"), [(20, 0.0), (4, 0.0), (3, 0.5), (2, 0.5), (3.5, 2 / 7 * 0.5)])
def test_the_soft_penalty_grows_over_the_last_fifth_of_the_budget(longest: int, penalty: float) -> None:
    # 3 tokens: free up to 4/5 of longest; with 3.5 (3 - 2.8) / 0.7 = 2/7 of the penalty
    assert returns_of(one_of_three(), longest, overlong="soft") == pytest.approx([1.0 - penalty] * 3)


def test_the_soft_penalty_of_a_truncated_response_is_whole() -> None:
    assert returns_of(one_of_three(Finish.REPETITION), 100, overlong="soft") == pytest.approx([0.5] * 3)


def test_rewards_of_steps_go_through_gae() -> None:
    scored = one_of_three()
    steps = np.array([0.25, 0.0, 0.5], np.float32)
    scored = replace(scored, step_rewards=steps)
    # and 1 at the end: rewards 0.25, 0, 1.5
    config = AlgorithmConfig(normalise="none", policy_lambda=0.5)
    batch = credited([scored], config, 0)
    np.testing.assert_allclose(batch.columns.returns, [1.75, 1.5, 1.5])
    # deltas 0.25 + 0.5 - 0.25 = 0.5, 0.75 - 0.5 = 0.25, 1.5 - 0.75 = 0.75: A_2 = 0.75, A_1 = 0.625, A_0 = 0.8125
    np.testing.assert_allclose(batch.columns.advantages, [0.8125, 0.625, 0.75])


def test_overlong_mask_takes_truncated_rows_out_of_loss_and_whitening() -> None:
    scored = scored_from(make_judged(0))
    batch = credited(scored, AlgorithmConfig(overlong="mask"), 0)
    stopped = [i for i, s in enumerate(scored) if s.finish is Finish.STOP]
    weights = batch.weights(range(len(scored))).value
    used = batch.token_index(stopped)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-6)
    assert np.count_nonzero(weights) == len(used)
    assert np.allclose(weights[used], 1 / len(used))
    assert abs(float(batch.columns.advantages[used].mean())) < 1e-6


def test_the_behaviour_gap_counts_tokens_of_the_current_version_only() -> None:
    judged = make_judged(0, count=4, version=3)
    old = replace(judged[0], versions=judged[0].versions - 1)
    scored = scored_from([old, *judged[1:]])
    off = replace(scored[0], proximal=scored[0].proximal + 5.0)  # stale tokens may be far off
    stats = credited([off, *scored[1:]], AlgorithmConfig(), 3).stats
    assert stats.behaviour_gap_max == pytest.approx(0.1, abs=1e-5)
    assert stats.behaviour_gap_mean == pytest.approx(0.1, abs=1e-5)


def test_kl_in_the_reward_lowers_the_return_of_every_token() -> None:
    judged = next(j for j in make_judged(3) if len(j.tokens) == 3 and j.verdict.reward == 1.0)
    proximal = judged.logprobs
    reference = proximal - np.array([0.5, 0.0, 1.0], dtype=np.float32)  # k1: d = 0.5, 0, 1
    scored = replace(judged, values=np.zeros(3, np.float32), proximal=proximal, reference=reference)
    config = AlgorithmConfig(normalise="none", kl_coefficient=0.1, kl_estimator="k1", kl_placement="reward")
    batch = credited([scored], config, 0, kl_coefficient=0.1)
    # rewards -0.05, 0, 1 - 0.1; returns to go 0.85, 0.9, 0.9
    np.testing.assert_allclose(batch.columns.returns, [0.85, 0.9, 0.9], atol=1e-6)
    assert batch.stats.reference_kl == pytest.approx(0.5)
    in_loss = credited([scored], config.model_copy(update={"kl_placement": "loss"}), 0, kl_coefficient=0.1)
    np.testing.assert_allclose(in_loss.columns.returns, [1.0, 1.0, 1.0])


def test_groups_are_the_continuations_of_one_start() -> None:
    judged = make_judged(0, count=4)
    same = judged[0].start
    siblings = [replace(j, start=same, sample=i) for i, j in enumerate(judged)]
    batch = credited(scored_from(siblings), AlgorithmConfig(estimator="rloo"), 0)
    # rewards 0, 1, 0, 1: 0 - 2/3, 1 - 1/3, ...
    for i, expected in enumerate([-2 / 3, 2 / 3, -2 / 3, 2 / 3]):
        np.testing.assert_allclose(batch.columns.advantages[batch.token_index([i])], expected, rtol=1e-6)
    apart = credited(scored_from(judged), AlgorithmConfig(estimator="rloo"), 0)
    assert not apart.columns.advantages.any()


def grouped(rewards: list[float], groups: list[int]) -> list[Rollout]:
    """On-policy rollouts of some lengths with these rewards; those of one group continue the same start."""
    judged = make_judged(0, count=len(rewards))
    starts = [judged[group].start for group in groups]
    changed = [
        replace(j, start=start, verdict=Verdict(reward, reward > 0))
        for j, start, reward in zip(judged, starts, rewards, strict=True)
    ]
    return [replace(s, logprobs=s.proximal) for s in scored_from(changed)]


@pytest.mark.parametrize("how", ["sequence_truncate", "sequence_mask"])
def test_importance_of_whole_sequences(how: str) -> None:
    scored = scored_from(make_judged(0, count=6))  # every token's log-ratio is 0.1
    config = AlgorithmConfig.model_validate({"importance": how, "importance_cap": 1.5})
    batch = credited(scored, config, 0)
    counts = [len(s.values) for s in scored]
    assert min(counts) <= 4 < max(counts)  # e^0.4 = 1.49 is the last below 1.5
    for row, count in enumerate(counts):
        weight = math.exp(0.1 * count)
        expected = weight if weight < 1.5 else (1.5 if how == "sequence_truncate" else 0.0)
        np.testing.assert_allclose(batch.components.rl.tokens[batch.token_index([row])], expected, rtol=1e-5)


def siblings(lengths: list[int]) -> list[Rollout]:
    """Continuations of one start: of each length one token string, the first half of them correct."""
    one = make_judged(0, count=1)[0]
    out = []
    for sample, length in enumerate(lengths):
        correct = sample < len(lengths) // 2
        rollout = replace(
            one,
            sample=sample,
            tokens=np.zeros(length, np.int32),
            logprobs=np.zeros(length, np.float32),
            versions=np.zeros(length, np.int32),
            verdict=Verdict(float(correct), correct),
        )
        out.append(rollout)
    return out


def test_a_critic_that_knows_the_depth_alone_tells_nothing_within_it() -> None:
    """Read at shares of the final length it would tell success from failure: the length is the outcome."""
    judged = siblings([*range(40, 48), *[200] * 8])
    values = [np.arange(len(j.tokens), dtype=np.float32) / np.float32(200) for j in judged]
    scored = [
        replace(j, values=v, proximal=j.logprobs, reference=j.logprobs) for j, v in zip(judged, values, strict=True)
    ]

    def boundaries(response: IntArray) -> IntArray:
        return np.arange(7, len(response), 7, dtype=np.int32)

    stats = credited(scored, AlgorithmConfig(), 0, boundaries=boundaries).stats
    assert stats.value_auc_within == 0.5
    # a critic that sees which end well is perfect, at the boundaries; what it says elsewhere does not count
    for item, told in zip(scored, values, strict=True):
        told[:] = 1.0 - item.verdict.correct
        told[::7] = item.verdict.correct
    stats = credited(scored, AlgorithmConfig(), 0, boundaries=boundaries).stats
    assert (stats.value_auc, stats.value_auc_within, stats.value_brier) == (1.0, 1.0, 0.0)


def test_a_short_continuation_counts_once_for_the_calibration() -> None:
    judged = siblings([1, 1])
    scored = [
        replace(j, values=np.array([0.25], np.float32), proximal=j.logprobs, reference=j.logprobs) for j in judged
    ]
    stats = credited(scored, AlgorithmConfig(), 0).stats
    assert stats.value_auc == 0.5  # both at the start
    assert np.isnan(stats.value_auc_within)  # no state after it
    assert stats.value_brier == pytest.approx((0.75**2 + 0.25**2) / 2)


def test_masked_importance_is_counted() -> None:
    scored = scored_from(make_judged(0, count=4))
    far = [replace(scored[0], proximal=scored[0].proximal + 3.0), *scored[1:]]
    batch = credited(far, AlgorithmConfig(importance="mask"), 0)
    assert not batch.components.rl.tokens[batch.token_index([0])].any()
    share = len(scored[0].values) / len(batch.components.rl.tokens)
    assert batch.stats.importance_truncated == pytest.approx(share)


def test_a_trajectory_with_a_nan_or_inf_is_recognised() -> None:
    (scored,) = scored_from(make_judged(0, count=1))
    assert not non_finite(scored)
    assert non_finite(replace(scored, values=scored.values * np.float32("inf")))
    assert non_finite(replace(scored, proximal=scored.proximal * np.float32("nan")))
    assert non_finite(replace(scored, reference=scored.proximal * np.float32("nan")))
    verdict = replace(scored.verdict, reward=float("nan"))
    assert non_finite(replace(scored, verdict=verdict))


def test_one_nan_in_the_values_leaves_no_minibatch_for_either_model() -> None:
    """Whitening gives NaN advantages to all; the returns of the other rows stay finite, and the critic must not step
    alone."""
    scored = scored_from(make_judged(9))
    scored[3] = replace(scored[3], values=scored[3].values * np.float32("nan"))
    batch = credited(scored, AlgorithmConfig(normalise="global"), 0)
    assert not np.isfinite(batch.columns.advantages).any()
    assert np.isfinite(batch.columns.returns).mean() > 0.5
    assert not any(batch.finite([row]) for row in range(len(scored)))


def test_a_minibatch_is_finite_without_the_trajectory_that_has_a_nan() -> None:
    clean = scored_from(make_judged(9))
    config = AlgorithmConfig.model_validate({"estimator": "reinforce++"})
    huge = np.float32(1e30)  # finite, its square is not
    spoils: list[dict[str, Any]] = [
        {"proximal": clean[3].proximal * np.float32("nan")},
        {"values": clean[3].values * np.float32("nan")},
        {"values": clean[3].values + huge},
    ]
    for spoil in spoils:
        scored = list(clean)
        scored[3] = replace(clean[3], **spoil)
        batch = credited(scored, config, 0)
        assert [row for row in range(len(scored)) if not batch.finite([row])] == [3]
        assert not batch.finite([1, 3])
        assert batch.finite([row for row in range(len(scored)) if row != 3])


def test_the_problems_of_the_last_row_of_skipped_steps_are_named() -> None:
    scored = scored_from(make_judged(9))
    minibatches = [[0, 1], [2, 3], [4, 5]]
    batch = credited(scored, AlgorithmConfig())
    assert batch.skipped_problems(minibatches, [True, False, True]) == ["p4", "p5"]
    assert batch.skipped_problems(minibatches, [True, True, False]) == []
    scored[3] = replace(scored[3], values=scored[3].values * np.float32("nan"))
    batch = credited(scored, AlgorithmConfig())
    assert batch.skipped_problems(minibatches, [False, True, True]) == ["p3"]
    assert batch.skipped_problems(minibatches, [True, True, True]) == ["p3"]


@pytest.mark.parametrize(
    ("estimator", "normalise"), [("gae", "global"), ("gae", "separate"), ("reinforce++", "global")]
)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_batch_of_equal_rewards_has_no_advantages(estimator: str, normalise: str, reward: float) -> None:
    settings = {"estimator": estimator, "normalise": normalise, "positive_coefficient": 1.0}
    config = AlgorithmConfig.model_validate(settings)
    judged = [replace(j, verdict=Verdict(reward, bool(reward))) for j in make_judged(0)]
    batch = credited(scored_from(judged), config, 0)
    assert not batch.policy_learns()
    assert not batch.columns.advantages.any()
    assert not batch.components.ce.tokens.any()  # nor does the language-model loss take any
    spread = credited(scored_from(judged), config.model_copy(update={"entropy_coefficient": 0.1}), 0)
    assert spread.policy_learns([0])
    assert batch.columns.returns.any() == bool(reward)  # the critic learns from it
    one = [replace(judged[0], verdict=Verdict(1.0 - reward, not reward)), *judged[1:]]
    varied = credited(scored_from(one), config, 0)
    assert varied.columns.advantages.any()
    beside = [normalise == "global" or j.start.from_root == one[0].start.from_root for j in one]
    first = varied.components.ce.tokens[varied.offsets[:-1]]  # of each row its first token
    assert first.tolist() == [j.verdict.correct and together for j, together in zip(one, beside, strict=True)]


def test_a_source_of_equal_rewards_stays_as_it_is_beside_one_that_learns() -> None:
    judged = make_judged(0)
    fresh = [j.start.from_root for j in judged]
    assert 2 <= sum(fresh) <= len(judged) - 2
    failed = [replace(j, verdict=Verdict(0.0, False)) if new else j for j, new in zip(judged, fresh, strict=True)]
    batch = credited(scored_from(failed), AlgorithmConfig(normalise="separate"), 0)
    of_fresh = batch.token_index([i for i, new in enumerate(fresh) if new])
    assert not batch.columns.advantages[of_fresh].any()
    assert batch.columns.advantages.any()


def test_unnormalised_advantages_of_equal_rewards_stay() -> None:
    judged = [replace(j, verdict=Verdict(1.0, True)) for j in make_judged(0)]
    assert credited(scored_from(judged), AlgorithmConfig(normalise="none"), 0).columns.advantages.any()
