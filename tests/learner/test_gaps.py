"""Trajectories with a tool's answers: everything is computed as if the gap were not there, but the models read it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from core.config import AlgorithmConfig
from core.records import Flags, FloatArray, Rollout
from learner.calibration import comparable_states
from learner.models.attention import line_on
from learner.models.pretrained import load_policy
from learner.packing.micro_batches import Components, Row, TokenColumns, micro_batch, over_continuation, row_of
from learner.policy_losses import policy_objective
from tests.learner.conftest import credited, make_judged
from tests.learner.groups import Tiny
from tests.learner.test_credit import assert_same, scored_from


def with_gap(scored: Rollout, at: int, size: int) -> Rollout:
    """The rollout with an answer of `size` tokens after its first `at`, whose numbers mean nothing."""

    def _wide(column: Any, filled: float) -> Any:
        return np.insert(column, [at] * size, filled).astype(column.dtype)

    steps = scored.step_rewards
    return replace(
        scored,
        tokens=_wide(scored.tokens, 9),
        logprobs=_wide(scored.logprobs, 0),
        versions=_wide(scored.versions, 3),
        mask=_wide(np.ones(len(scored.tokens), np.bool_), False),
        step_rewards=None if steps is None else _wide(steps, 0),
        values=_wide(scored.values, 44),
        proximal=_wide(scored.proximal, -6),
        reference=_wide(scored.reference, -5),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kl_coefficient": 0.1, "kl_placement": "reward"},
        {"estimator": "reinforce++"},
        {"importance": "sequence_truncate", "policy_lambda": 0.9, "value_lambda": 0.8, "aggregation": "sequence-mean"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())) or "default",
)
@settings(max_examples=25)
@given(seed=st.integers(0, 200), data=st.data())
def test_targets_are_those_of_the_trajectory_without_the_gap(
    fields: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    config = AlgorithmConfig.model_validate(fields)
    rng = np.random.default_rng(seed)
    plain = []
    for scored in scored_from(make_judged(seed)):
        steps = rng.random(len(scored.values), np.float32)
        plain.append(replace(scored, step_rewards=steps, reference=scored.proximal - np.float32(0.2)))
    wide = [
        with_gap(one, data.draw(st.integers(1, len(one.values) - 1)), 3) if len(one.values) > 1 else one
        for one in plain
    ]
    expected, found = (credited(batch, config, 0, kl_coefficient=0.1, longest=20) for batch in (plain, wide))
    assert_same(found, expected)
    assert found.offsets.tolist() == expected.offsets.tolist()
    different = {"value_auc", "value_auc_within", "value_brier"}  # the ends of answers are states, too
    for name in {*type(found.stats).__slots__} - different:
        assert getattr(found.stats, name) == getattr(expected.stats, name)


def test_advantages_over_a_gap_by_hand() -> None:
    """Tokens a b [t t] c, values 0.25 0.5 [..] 0.75, reward 1, lambda 1/2."""
    judged = next(j for j in make_judged(3) if len(j.tokens) == 3 and j.verdict.reward == 1.0)
    values = np.array([0.25, 0.5, 0.75], np.float32)
    scored = replace(judged, values=values, proximal=judged.logprobs, reference=judged.logprobs)
    batch = credited([with_gap(scored, 2, 2)], AlgorithmConfig(normalise="none", policy_lambda=0.5), 0)
    # deltas 0.5 - 0.25, 0.75 - 0.5 (over the gap), 1 - 0.75: A_2 = 0.25, A_1 = 0.25 + 0.125, A_0 = 0.25 + 0.1875
    np.testing.assert_allclose(batch.columns.advantages, [0.4375, 0.375, 0.25])
    np.testing.assert_allclose(batch.columns.returns, [1.0, 1.0, 1.0])
    assert batch.components.rl.tokens.tolist() == [1.0, 1.0, 1.0]
    assert batch.rows[0].scored == 3


def test_rows_are_read_whole_and_scored_in_part() -> None:
    """5 6 7 8 9 with context 5, where a tool wrote 7 and 8: 6 and 9 are scored, 9 from the state after 8."""
    row = Row(np.array([5, 6, 7, 8, 9], np.int32), 1, np.array([1, 0, 0, 1], np.bool_))
    other = Row(np.array([5, 6, 7, 3], np.int32), 1)  # the policy wrote 7 itself
    batch = micro_batch([row, other])
    assert batch.tokens.tolist() == [5, 6, 7, 3, 8, 9]
    assert batch.depths.tolist() == [0, 1, 2, 3, 3, 4]
    assert batch.targets.tolist() == [6, 7, 3, 9]
    assert batch.state_index.tolist() == [0, 1, 2, 4]
    assert batch.copies.tolist() == [0, 3, 0, 1, 2]  # of the first row 6 and 9, of the second 6, 7 and 3
    scored = scored_from(make_judged(3))[1]
    rollout = replace(scored, tokens=np.arange(3, dtype=np.int32), mask=np.array([True, False, True]))
    assert over_continuation(np.array([2.0, 3.0], np.float32), rollout).tolist() == [2.0, 0.0, 3.0]
    assert row_of(rollout).mask is rollout.mask


def _objective(logprobs: torch.Tensor, entropy: torch.Tensor, advantages: FloatArray) -> torch.Tensor:
    """Of one row; every token weighs 1 / N in surrogate, entropy and KL."""

    def _same(value: float) -> torch.Tensor:
        return torch.full((len(logprobs),), value)

    columns = TokenColumns(
        proximal=_same(-4.0),
        advantages=torch.from_numpy(advantages),
        old_values=_same(0.0),
        returns=_same(0.0),
        reference=_same(-4.2),
        sequence=_same(0.0).long(),
    )
    coefficients = Components(rl=1.0, ce=0.0, kl=0.1, entropy=0.01, value=1.0)
    weights = coefficients.map(lambda _: _same(1 / len(logprobs)))
    settings = AlgorithmConfig(kl_estimator="k2")
    return policy_objective(logprobs, entropy, columns, weights, coefficients, settings)[0]


def test_losses_and_gradients_are_those_of_the_policys_tokens_alone(tiny_model: Tiny) -> None:
    """Against Hugging Face over the whole text: surrogate, entropy and KL of tokens 2, 3, 6 and 7; a tool wrote 4 and
    5."""
    tokens, own = np.array([3, 4, 5, 6, 20, 21, 7, 8], np.int32), [2, 3, 6, 7]
    advantages = np.array([1.0, -0.5, 0.25, 2.0], np.float32)
    policy = load_policy(tiny_model(False), torch.float32).eval()
    row = Row(tokens, 2, np.array([1, 1, 0, 0, 1, 1], np.bool_))
    logprobs, entropy = policy(line_on(micro_batch([row]), torch.device("cpu")), 1.0)
    loss = _objective(logprobs, entropy, advantages)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model(False), dtype=torch.float32).eval()
    table = torch.log_softmax(plain(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0], -1)
    states = table[[at - 1 for at in own]]
    chosen = states[range(4), tokens[own].tolist()]
    spread = -(states.exp() * states).sum(-1)
    expected = _objective(chosen, spread, advantages)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    loss.backward()
    expected.backward()
    gradients = {name.removeprefix("model."): p.grad for name, p in policy.named_parameters() if p.grad is not None}
    reference = {name.removeprefix("model."): p.grad for name, p in plain.named_parameters() if p.grad is not None}
    found, wanted = (sum(float(g.square().sum()) for g in grads.values()) for grads in (gradients, reference))
    assert found == pytest.approx(wanted, rel=1e-4)


def test_no_state_is_compared_inside_an_answer() -> None:
    """Boundaries of either at 2 and 3; the second has an answer at token 2, so its value there means nothing."""
    masks: list[Flags] = [np.ones(5, np.bool_), np.array([1, 1, 0, 1, 1], np.bool_)]
    read, _ = comparable_states(["a", "a"], masks, [np.array([2], np.int32), np.array([3], np.int32)])
    assert [at.tolist() for at in read] == [[2, 3], [3]]
