"""Loss and gradient of the real modules do not depend on the cut; a prefix has no loss and no gradient."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from core.config import Aggregation, AlgorithmConfig
from core.records import Rollout
from learner.batch import Batch
from learner.losses import value_loss
from learner.models.attention import line_on
from learner.models.pretrained import PolicyModel, ValueModel, load_policy, load_value
from learner.packing.assign import Assignment, assign_trees
from learner.packing.micro_batches import Row, TrainBatch, input_batches, micro_batch, results_by_row
from learner.policy_losses import policy_objective
from tests.learner.conftest import credited, forked, make_judged
from tests.learner.test_credit import as_prompt

LOSSES = AlgorithmConfig(entropy_coefficient=0.01, kl_estimator="k3", positive_coefficient=1.0)
KL = 0.1
COUNT = 12
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tiny_model: Callable[[bool], Path]) -> tuple[PolicyModel, ValueModel]:
    policy, value = load_policy(tiny_model(True), torch.float32), load_value(tiny_model(True), torch.float32)
    torch.nn.init.normal_(value.head.weight, std=0.3)  # a zero head would hide the trunk's gradient
    return policy, value


def batch(policy: PolicyModel, seed: int, how: Aggregation = "token-mean") -> Batch:
    """Of the rollouts of `near`."""
    return credited(near(policy, seed), LOSSES.model_copy(update={"aggregation": how}), 0, KL)


def near(policy: PolicyModel, seed: int) -> list[Rollout]:
    """Trajectories whose proximal log-probabilities are near the policy's own, as after some steps of an update."""
    rng = np.random.default_rng(seed)
    judged = forked(make_judged(seed, COUNT))
    rows = [Row(j.sequence_ids, len(j.start.context_ids)) for j in judged]
    with torch.no_grad():
        logprobs, _ = policy(line_on(micro_batch(rows), CPU), 0.7)
    close = (logprobs.numpy() + rng.normal(0, 0.2, len(logprobs))).astype(np.float32)
    parts = np.split(close, np.cumsum([row.scored for row in rows])[:-1])
    values = [rng.uniform(0, 1, len(p)).astype(np.float32) for p in parts]
    scored = [
        replace(j, values=v, proximal=p, reference=p - np.float32(0.1))
        for j, v, p in zip(judged, values, parts, strict=True)
    ]
    return [replace(s, logprobs=s.proximal) for s in scored]


def total(
    policy: PolicyModel, value: ValueModel, prepared: Batch, by_rank: list[list[TrainBatch]]
) -> tuple[float, list[Tensor]]:
    """Loss and gradients of policy + critic, accumulated over the micro-batches of all ranks."""
    for module in (policy, value):
        module.zero_grad()
    losses = 0.0
    for b in [b for rank in by_rank for b in rank]:
        line = line_on(b.inputs, CPU)
        columns, weights = b.columns.map(torch.from_numpy), b.weights.map(torch.from_numpy)
        logprobs, entropy = policy(line, 0.7)
        loss, _ = policy_objective(logprobs, entropy, columns, weights, prepared.coefficients, LOSSES)
        critic = (weights.value * value_loss(value(line), columns.old_values, columns.returns, 0.5)).sum()
        (loss + critic).backward()
        losses += float((loss + critic).detach())
    gradients = [p.grad.clone() for m in (policy, value) for p in m.parameters() if p.grad is not None]
    return losses, gradients


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 100),
    st.integers(8, 200),
    st.integers(1, 3),
    st.sampled_from(["token-mean", "sequence-mean"]),
)
def test_loss_and_gradient_are_those_of_single_rows_for_any_cut(
    models: tuple[PolicyModel, ValueModel], seed: int, budget: int, ranks: int, how: Aggregation
) -> None:
    prepared, members = batch(models[0], seed, how), list(range(COUNT))[::-1]
    rows = [prepared.rows[i].tokens for i in members]
    alone = prepared.micro_batches(assign_trees(rows, 1, 1), members)  # no token is shared
    parts = prepared.micro_batches(assign_trees(rows, budget, ranks), members)
    loss, gradients = total(*models, prepared, alone)
    cut_loss, cut_gradients = total(*models, prepared, parts)
    assert cut_loss == pytest.approx(loss, abs=1e-6, rel=1e-6)
    whole_gradient, cut_gradient = (torch.cat([g.flatten() for g in gs]) for gs in (gradients, cut_gradients))
    # 4e-7 was the most that was seen; the order in which kernels sum depends on the CPU
    assert float((whole_gradient - cut_gradient).norm() / whole_gradient.norm()) < 3e-6


def test_a_replayed_prefix_has_no_loss(models: tuple[PolicyModel, ValueModel]) -> None:
    prepared = batch(models[0], 0)
    for i, row in enumerate(prepared.rows):
        assert row.scored == prepared.offsets[i + 1] - prepared.offsets[i]
    assignment = whole(prepared)
    ((read,),) = prepared.micro_batches(assignment, list(range(COUNT)))
    # the states are those before continuation tokens only, in every row
    at = 0
    for row in [prepared.rows[i] for i in assignment[0][0]]:
        own = read.inputs.copies[at : at + row.scored]
        assert read.inputs.targets[own].tolist() == row.tokens[row.context :].tolist()
        states = read.inputs.state_index[own]
        assert read.inputs.tokens[states].tolist() == row.tokens[row.context - 1 : -1].tolist()
        assert read.inputs.depths[states].tolist() == list(range(row.context - 1, len(row.tokens) - 1))
        at += row.scored
    assert at == len(read.inputs.copies) == len(read.weights.value)


def whole(prepared: Batch, budget: int = 10**6, ranks: int = 1) -> Assignment:
    return assign_trees([row.tokens for row in prepared.rows], budget, ranks)


def test_a_replayed_prefix_trains_as_if_it_were_part_of_the_prompt(models: tuple[PolicyModel, ValueModel]) -> None:
    scored = near(models[0], 4)
    assert any(len(s.start.prefix_ids) for s in scored)
    found = []
    for version in (scored, [as_prompt(s) for s in scored]):
        prepared = credited(version, LOSSES, 0, KL)
        assignment = whole(prepared, 64, 2)
        batches = prepared.micro_batches(assignment, list(range(COUNT)))
        found.append(total(*models, prepared, batches))
    (loss, gradients), (same_loss, same_gradients) = found
    assert loss == same_loss
    assert any(float(g.abs().max()) > 1e-4 for g in gradients)
    assert all(torch.equal(g, same) for g, same in zip(gradients, same_gradients, strict=True))


def test_context_gets_no_gradient(models: tuple[PolicyModel, ValueModel]) -> None:
    """Of the loss by the last hidden states, from which logits and values come: nothing but the states before scored
    tokens."""
    prepared = batch(models[0], 1)
    assignment = whole(prepared, 64, 2)
    batches = prepared.micro_batches(assignment, list(range(COUNT)))
    read: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: object, output: BaseModelOutputWithPast) -> None:
        assert output.last_hidden_state is not None
        output.last_hidden_state.retain_grad()
        read.append(output.last_hidden_state)

    hooks = [m.register_forward_hook(keep) for m in (models[0].model.get_decoder(), models[1].trunk)]
    total(*models, prepared, batches)
    for hook in hooks:
        hook.remove()
    groups = [group for rank in assignment for group in rank]
    for hidden, group in zip(
        read, np.repeat(np.arange(len(groups)), 2), strict=True
    ):  # of the policy, then of the critic
        assert hidden.grad is not None
        scored = set(micro_batch([prepared.rows[i] for i in groups[group]]).state_index.tolist())
        touched = set(hidden.grad[0].abs().sum(-1).nonzero()[:, 0].tolist())
        assert touched <= scored
        assert len(touched) > len(scored) / 2  # the loss of some is clipped


def test_results_find_their_way_back_to_their_rows() -> None:
    rows = [Row(j.sequence_ids, len(j.start.context_ids)) for j in make_judged(2)]
    assignment = assign_trees([row.tokens for row in rows], 40, 3)
    flats = [[b.targets[b.copies].astype(np.float32) for b in rank] for rank in input_batches(assignment, rows)]
    for row, got in zip(rows, results_by_row(assignment, rows, flats), strict=True):
        np.testing.assert_array_equal(got, row.tokens[row.context :].astype(np.float32))
