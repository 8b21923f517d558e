"""Variants of the learner on real DeepSpeed ranks: LoRA, a shared trunk, resuming on another number of ranks, and
sums in bf16."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from core.config import AlgorithmConfig, LearnerConfig
from learner.credit import Algorithm, credit
from learner.distributed.actor_critic import SharedTrunk, StepPlan, engines_of
from learner.distributed.engine import TrainEngine
from learner.group import LearnerGroup
from learner.losses import ratio
from learner.models.pretrained import SharedModel, load_shared
from learner.packing.assign import assign_trees
from learner.packing.micro_batches import Row, TrainBatch
from learner.state import LearnerState
from tests.learner.conftest import every_token, forked, make_judged
from tests.learner.groups import (
    PROBE,
    Engines,
    KeptRanks,
    Tiny,
    check_export,
    group,
    on_policy,
    one_rank,
    train,
    weights_of,
    weights_start,
    with_nan,
)

pytestmark = pytest.mark.usefixtures("kept_ranks")

LOSSES = AlgorithmConfig(positive_coefficient=1.0)
Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def largest(left: Weights, right: Weights) -> float:
    assert left.keys() == right.keys()
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


def check_adapters(base: Path, exported: Path) -> None:
    """PEFT reads the adapters, and the base with them is the merged model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plain, model, whole = (AutoModelForCausalLM.from_pretrained(each) for each in (base, base, exported))
    adapted = PeftModel.from_pretrained(model, exported / "adapter")
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        before, found, expected = (each(input_ids=ids).logits for each in (plain, adapted, whole))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert float((found - before).abs().max()) > 1e-3
    assert adapted.peft_config["default"].base_model_name_or_path == str(base)


def test_lora_trains_broadcasts_exports_and_resumes(tiny_model: Tiny, tmp_path: Path) -> None:
    """Engines and files get merged weights; base weights never move; a resumed run is the same, bit for bit."""
    path = tiny_model(True)
    options: dict[str, Any] = {"lora_rank": 4, "policy_lr": 3e-3, "zero_stage": 2, "ranks": 2, "offload": True}
    algorithm = AlgorithmConfig(kl_coefficient=0.1)
    with group(path, algorithm, **options) as learner:
        (first,) = train(learner, [1])
        assert first[0].reference is not None
        np.testing.assert_allclose(first[0].reference, first[0].proximal, atol=1e-6)  # nothing had moved yet
        files = learner.save(tmp_path / "checkpoint")
        assert {"rng-0.pt", "rng-1.pt"} <= set(files)
        assert sum("optim_states" in name for name in files) == 4  # of two ranks and two engines
        assert all((tmp_path / "checkpoint" / name).is_file() for name in files)
        (second,) = train(learner, [2])
        moved = np.concatenate([s.proximal - s.reference for s in second if s.reference is not None])
        assert float(np.abs(moved).max()) > 1e-3  # the reference is the base, without the adapters
        engines = Engines(path)
        learner.broadcast(engines)
        learner.measure_noise(engines, PROBE)  # Hugging Face on merged weights against the adapted learner
        assert (gap := learner.check_engines(engines)) is not None
        assert gap.high < 1e-5
        straight = {name: t.detach().numpy().copy() for name, t in engines.model.named_parameters()}
        learner.export(tmp_path / "export")
    start = weights_start(path)
    changed = {name for name in start if float(np.abs(straight[name] - start[name]).max()) > 1e-5}
    assert changed == {name for name in start if "proj.weight" in name}
    check_export(tmp_path / "export", straight)
    check_adapters(path, tmp_path / "export")
    with group(path, algorithm, **options) as learner:
        learner.restore(tmp_path / "checkpoint")
        train(learner, [2])
        assert largest(weights_of(learner, path), straight) == 0.0


def test_a_shared_trunk_gives_the_same_weights_on_any_ranks_and_resumes(tiny_model: Tiny, tmp_path: Path) -> None:
    path = tiny_model(True)
    shared: dict[str, Any] = {"value_model": "shared", "value_coefficient": 0.5}
    results = []
    cases: list[dict[str, Any]] = [{"zero_stage": 0}, {"zero_stage": 2, "ranks": 2}, {"zero_stage": 3, "ranks": 2}]
    for options in cases:
        with group(path, **shared, **options) as learner:
            train(learner, [1])
            learner.save(tmp_path / str(options["zero_stage"]))
            batches = train(learner, [2])
            weights = weights_of(learner, path)
            results.append((weights, np.concatenate([s.values for s in batches[0]])))
    assert largest(results[0][0], weights_start(path)) > 2e-4  # 8 steps of Adam at 1e-4
    assert float(np.abs(results[0][1]).max()) > 1e-4  # the head has learnt something
    for weights, values in results[1:]:
        assert largest(weights, results[0][0]) < 1e-5  # Adam enlarges the rounding of small gradients
        np.testing.assert_allclose(values, results[0][1], atol=1e-5)
    with group(path, **shared, zero_stage=2, ranks=2) as learner:
        learner.restore(tmp_path / "2")
        train(learner, [2])
        assert largest(weights_of(learner, path), results[1][0]) == 0.0


@pytest.mark.parametrize(("zero_stage", "ranks"), [(0, 1), (2, 1), (3, 2)])
def test_the_warm_up_of_a_shared_trunk_trains_the_head_alone(tiny_model: Tiny, zero_stage: int, ranks: int) -> None:
    """The policy is bit for bit what it was. Adam's first step of the trunk is one of a new Adam."""
    path = tiny_model(True)
    options: dict[str, Any] = {"zero_stage": zero_stage, "ranks": ranks, "value_model": "shared", "minibatches": 1}
    batch = make_judged(7)
    with group(path, **options, critic_warmup=2, value_lr=3e-3) as learner:
        for _ in range(2):
            assert not learner.learn(learner.score(on_policy(learner, batch))).policy_trained
        assert largest(weights_of(learner, path), weights_start(path)) == 0.0
        assert float(np.abs(learner.score(batch)[0].values).max()) > 1e-3
        assert learner.learn(learner.score(on_policy(learner, batch))).policy_trained
        after, start = weights_of(learner, path), weights_start(path)
        # Adam's first step moves every weight by at most lr (1e-4)
        assert 9e-5 < largest(after, start) < 1.01e-4


def test_the_policy_takes_the_same_steps_without_a_critic(tiny_model: Tiny) -> None:
    """With an estimator that reads no values."""
    path = tiny_model(True)
    algorithm = AlgorithmConfig(estimator="reinforce++")
    results = []
    cases: list[dict[str, Any]] = [{}, {"value_model": "none"}]
    for options in cases:
        with group(path, algorithm, minibatches=2, **options) as learner:
            stats = learner.learn(learner.score(on_policy(learner, make_judged(1))))
            values = np.concatenate([s.values for s in learner.score(make_judged(5))])
            results.append((stats, values, weights_of(learner, path)))
    (once, _, weights), (alone, no_values, without) = results
    assert largest(weights, weights_start(path)) > 1e-5
    assert largest(without, weights) == 0.0
    assert not no_values.any()
    assert (once.critic, alone.critic) == (True, False)
    assert (once.policy_steps, alone.policy_steps) == (2, 2)


def bare_gradients(
    path: Path, rows: list[Row], batch: TrainBatch, value_coefficient: float, tau: float
) -> dict[str, torch.Tensor]:
    """Gradient of PPO's loss and the language-model loss on a shared trunk, written out: row by row, full logits, no
    engine."""
    from transformers import AutoModelForCausalLM

    model = SharedModel(AutoModelForCausalLM.from_pretrained(path, attention_dropout=0.0))
    torch.nn.init.constant_(model.head.weight, 0.01)
    decoder, sequences = model.model.get_decoder(), [torch.from_numpy(row.tokens.astype(np.int64)) for row in rows]
    states = [decoder(input_ids=tokens[None], use_cache=False).last_hidden_state[0] for tokens in sequences]
    hidden = torch.cat([state[row.context - 1 : -1] for state, row in zip(states, rows, strict=True)])
    targets = torch.cat([tokens[row.context :] for tokens, row in zip(sequences, rows, strict=True)])
    logprobs = torch.log_softmax(model.model.get_output_embeddings()(hidden) / tau, -1)
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    t, c = batch.columns.map(torch.from_numpy), LOSSES
    w = batch.weights.map(torch.from_numpy)
    r = ratio(chosen - t.proximal)
    surrogate = torch.maximum(-t.advantages * r, -t.advantages * r.clamp(1 - c.clip_low, 1 + c.clip_high))
    values = model.head(hidden)[:, 0]
    near = t.old_values + (values - t.old_values).clamp(-c.value_clip, c.value_clip)
    critic = 0.5 * torch.maximum((values - t.returns) ** 2, (near - t.returns) ** 2)
    positive = c.positive_coefficient * w.ce * r.clamp(max=1 + c.clip_high)
    policy = (w.rl * surrogate - positive).sum()
    (policy + value_coefficient * (w.value * critic).sum()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_the_gradient_of_a_shared_trunk_is_that_of_a_bare_computation(tiny_model: Tiny) -> None:
    path = tiny_model(True)
    with group(path) as learner:
        scored = learner.score(on_policy(learner, forked(make_judged(3))))
    prepared = credit(scored, Algorithm(LOSSES, 8, every_token, value_coefficient=0.3), LearnerState(0.0, 0.0))
    assignment = assign_trees([row.tokens for row in prepared.rows], 10**6, 1)
    ((whole,),) = prepared.micro_batches(assignment, list(range(len(scored))))
    expected = bare_gradients(path, [prepared.rows[i] for i in assignment[0][0]], whole, 0.3, 0.9)
    found = engine_gradients(path, StepPlan([whole], prepared.coefficients, 1e-4, 1e-4), 0.9)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)


def engine_gradients(path: Path, step: StepPlan, tau: float) -> dict[str, torch.Tensor]:
    """What `SharedTrunk` accumulates before its step."""
    one_rank()
    model = load_shared(path, torch.float32)
    torch.nn.init.constant_(model.head.weight, 0.01)
    engines = engines_of(model, None, LearnerConfig(max_grad_norm=1e9), torch.float32)
    trunk = SharedTrunk(engines, LOSSES, tau)
    for batch in step.batches:
        trunk._pass(batch, step.coefficients, learns=True)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def last_values(learner: LearnerGroup, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([s.values for s in learner.score(make_judged(seed))])


@pytest.mark.parametrize(
    ("options", "old", "new"),
    [
        ({"zero_stage": 0}, 2, 1),
        ({"zero_stage": 2}, 1, 2),
        ({"zero_stage": 1, "value_model": "shared", "critic_warmup": 1}, 1, 2),  # saved when only the head has learnt
        ({"zero_stage": 3, "lora_rank": 4}, 2, 1),
        ({"zero_stage": 3}, 2, 1),
    ],
    ids=["zero-0", "zero-2", "zero-1-shared-warm-up", "zero-3-lora", "zero-3"],
)
def test_a_learner_goes_on_with_another_number_of_ranks(
    tiny_model: Tiny, tmp_path: Path, options: dict[str, Any], old: int, new: int
) -> None:
    path = tiny_model(True)
    options = options | {"schedule": "cosine", "warmup_steps": 3}
    with group(path, **options, ranks=old) as learner:
        train(learner, [1])
        learner.save(tmp_path / "checkpoint")
        train(learner, [2])
        straight, values = weights_of(learner, path), last_values(learner, 5)
    with group(path, **options, ranks=new) as learner:
        learner.restore(tmp_path / "checkpoint")
        assert not list((tmp_path / "checkpoint").glob("*.universal"))
        train(learner, [2])
        resumed = weights_of(learner, path)
        np.testing.assert_allclose(last_values(learner, 5), values, atol=1e-5)
        learner.save(tmp_path / "again")
    assert largest(resumed, straight) < 1e-5
    assert largest(straight, weights_start(path)) > 1e-4


def test_bf16_with_fp32_master_weights_skips_resumes_and_broadcasts(tiny_model: Tiny, tmp_path: Path) -> None:
    """As on GPUs: the models compute in bf16, ZeRO keeps fp32 weights, so that small steps are not lost."""
    path = tiny_model(True)
    options: dict[str, Any] = {"zero_stage": 2, "policy_lr": 1e-3}
    with group(path, dtype="bfloat16", **options) as learner:
        train(learner, [1])
        learner.save(tmp_path / "checkpoint")
        scored = learner.score(on_policy(learner, make_judged(2)))
        assert learner.learn([with_nan(s, "critic") for s in scored]).skipped_steps == 4
        assert learner.learn(scored).skipped_steps == 0
        straight = learner.score(make_judged(5))
        engines = Engines(path, dtype=torch.bfloat16)
        learner.broadcast(engines)
        learner.measure_noise(engines, PROBE)
        assert (gap := learner.check_engines(engines)) is not None
        assert gap.mean < 0.1  # bf16 has 8 bits
    with group(path, dtype="bfloat16", **options) as learner:
        learner.restore(tmp_path / "checkpoint")
        learner.learn([with_nan(s, "proximal") for s in scored])  # which no rank gets to see
        learner.learn(scored)
        for one, other in zip(straight, learner.score(make_judged(5)), strict=True):
            np.testing.assert_array_equal(one.proximal, other.proximal)
            np.testing.assert_array_equal(one.values, other.values)


PASSES, SIZE = 288, 1 / 256


def accumulated(_: object, ranks: int, cases: list[dict[str, Any]]) -> list[float]:
    """In a rank: the gradient norm over 4 bf16 weights after PASSES gradients of SIZE, in each case."""
    found = []
    for case in cases:
        module = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
        options = LearnerConfig(ranks=ranks, max_grad_norm=1e9, **case)
        engine = TrainEngine(module, [list(module.parameters())], options, torch.bfloat16)
        for _ in range(PASSES):
            output = engine(torch.ones(1, 4, dtype=torch.bfloat16))
            engine.backward(output.sum() * SIZE / ranks, output)  # this rank's part of the global mean
        norm, applied = engine.step([1e-3])
        assert applied
        found.append(norm)
    return found


def test_many_small_gradients_add_up_in_bf16() -> None:
    """288 / 256 = 1.125 for each of 4 weights: norm 2.25. A bf16 sum stays at 1, where 1/256 is half of its last place:
    norm 2."""
    cases: list[dict[str, Any]] = [{"zero_stage": stage} for stage in range(4)]
    cases += [{"zero_stage": stage, "offload": True} for stage in (1, 2, 3)]
    norms = [accumulated(one_rank(), 1, cases)]
    with closing(KeptRanks(LearnerConfig(ranks=2, threads=1), device="cpu", cpus=0.5, gpus=0.0)) as made:
        made.join("cpu", 600.0)
        norms += ray.get([actor.__ray_call__.remote(accumulated, 2, cases) for actor in made._actors], timeout=600)
    for found in norms:
        assert found == pytest.approx([2.25] * len(cases), rel=1e-6)
