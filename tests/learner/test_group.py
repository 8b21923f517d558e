"""The learner on real DeepSpeed ranks under Ray, on a tiny model in fp32."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from core.config import AlgorithmConfig
from core.errors import ActorError, CheckpointError, ConfigError, DivergenceError, LearnerError, WeightError
from core.records import FloatArray, Rollout, Use, Verdict
from core.weights import Acknowledgement, WeightHandle
from learner.distributed.actor_critic import StepPlan
from learner.distributed.ranks import Ranks
from learner.distributed.worker import RankWorker
from tests.learner.conftest import forked, make_judged
from tests.learner.groups import (
    PROBE,
    Engines,
    Learner,
    Tiny,
    check_export,
    group,
    on_policy,
    train,
    weights_of,
    weights_start,
    with_nan,
)
from tests.processes import ends

pytestmark = pytest.mark.usefixtures("kept_ranks")


def test_ranks_zero_stages_and_cuts_give_the_same_losses_gradients_and_weights(tiny_model: Tiny) -> None:
    path = tiny_model(True)
    weights: list[dict[str, np.ndarray[Any, np.dtype[np.float32]]]] = []
    values, numbers = [], []
    cases: list[dict[str, Any]] = [
        {"ranks": 1, "zero_stage": 0, "micro_batch_tokens": 1},  # every row alone
        {"ranks": 1, "zero_stage": 0, "micro_batch_tokens": 10_000},
        {"ranks": 2, "zero_stage": 0},
        {"ranks": 2, "zero_stage": 1},
        {"ranks": 2, "zero_stage": 2, "offload": True},
        {"ranks": 2, "zero_stage": 3, "gradient_checkpointing": True},
    ]
    algorithm = AlgorithmConfig(  # whitened, the first loss would be 0
        normalise="none", entropy_coefficient=0.01, positive_coefficient=1.0
    )
    for options in cases:
        with group(path, algorithm, minibatches=1, **options) as learner:
            stats = []
            for seed in range(4):
                scored = learner.score(on_policy(learner, forked(make_judged(seed))))
                stats.append(learner.learn(scored))
            weights.append(weights_of(learner, path))
            values.append(last_values(scored))
        numbers.append([(s.policy_loss, s.value_loss, s.entropy, s.policy_grad_norm, s.value_grad_norm) for s in stats])
    start = weights_start(path)
    assert max(float(np.abs(weights[0][name] - start[name]).max()) for name in start) > 2e-4  # 4 steps of Adam at 1e-4
    first = numbers[0][0]
    assert min(map(abs, first)) > 1e-2
    for case in range(1, len(cases)):
        np.testing.assert_allclose(numbers[case][0], first, rtol=1e-6, atol=0, err_msg=str(cases[case]))
        # then no longer to 1e-6: Adam enlarges the rounding of small gradients
        np.testing.assert_allclose(numbers[case][1:], numbers[0][1:], rtol=1e-2, atol=0, err_msg=str(cases[case]))
        for name, expected in weights[0].items():
            np.testing.assert_allclose(weights[case][name], expected, atol=1e-5, rtol=0, err_msg=name)
        np.testing.assert_allclose(values[case], values[0], atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_first_update_after_a_broadcast_is_on_policy_and_log_probabilities_agree(tiny_model: Tiny, tied: bool) -> None:
    path = tiny_model(tied)
    with group(path, AlgorithmConfig(kl_coefficient=0.1)) as learner:
        judged = on_policy(learner, make_judged(5))
        scored = learner.score(judged)
        stats = learner.learn(scored)
        assert stats.first_kl == pytest.approx(0.0, abs=1e-7)
        assert stats.kl > 1e-6  # later minibatches have moved
        assert stats.importance_mean == pytest.approx(1.0, abs=1e-6)
        assert stats.behaviour_gap_max == pytest.approx(0.0, abs=1e-6)
        assert stats.reference_kl == pytest.approx(0.0, abs=1e-7)
        assert stats.kl_coefficient == 0.1
        np.testing.assert_allclose(scored[0].reference, scored[0].proximal, atol=1e-6)  # nothing had moved yet
        assert (stats.steps, stats.skipped_steps) == (4, 0)
        engines = Engines(path)
        learner.broadcast(engines)
        learner.measure_noise(engines, PROBE)
        learner.version = 0
        report = learner.broadcast(engines)  # the first one is probed
        assert report.learner.resident > 2**26  # a process with torch
        assert (report.version, learner.version) == (1, 1)
        assert report.gap is not None
        assert report.gap.high < 1e-5
        assert len(engines.names) == len(set(engines.names))
        assert ("lm_head.weight" in engines.names) is not tied
        with pytest.raises(WeightError, match=r"weight version 1: .* 0\.5\d? nats"):
            learner.check_engines(Engines(path, broken=0.5))
        assert learner.broadcast(engines).gap is None  # version 2 of 10
        with pytest.raises(WeightError, match="engine-0 acknowledged version 3 \\(0bad\\)"):
            learner.broadcast(Engines(path, digest="0bad"))


def test_the_weight_of_the_kl_falls_with_the_problems_that_the_root_solves(tiny_model: Tiny) -> None:
    moved = []
    for schedule in ("constant", "unsolved"):
        algorithm = AlgorithmConfig.model_validate({"kl_coefficient": 0.1, "kl_schedule": schedule})
        with group(tiny_model(True), algorithm, minibatches=1) as learner:
            batch = on_policy(learner, make_judged(5))
            learner.learn(learner.score(batch))
            stats = learner.learn(learner.score(batch))
            assert stats.kl_coefficient == pytest.approx({"constant": 0.1, "unsolved": 0.05}[schedule])
            moved.append(learner.logprobs(PROBE)[0])
    assert not np.array_equal(moved[0], moved[1])  # the loss has it, too


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_minibatch_of_equal_rewards_steps_for_the_kl_alone_where_others_teach(tiny_model: Tiny, kl: float) -> None:
    with group(tiny_model(True), AlgorithmConfig(estimator="grpo", kl_coefficient=kl), minibatches=2) as learner:
        *others, last = on_policy(
            learner, forked(make_judged(0))
        )  # one success: only the minibatch of its start teaches
        mixed = [
            *(replace(item, verdict=Verdict(0.0, False)) for item in others),
            replace(last, verdict=Verdict(1.0, True)),
        ]
        learner.learn(learner.score(mixed))
        assert learner.state.policy_steps == (2 if kl else 1)


def test_an_imitated_success_becomes_likelier_where_the_batch_itself_says_nothing(tiny_model: Tiny) -> None:
    failed = [replace(item, verdict=Verdict(0.0, False)) for item in make_judged(0)]
    success = replace(make_judged(1)[0], verdict=Verdict(1.0, True))
    algorithm = AlgorithmConfig(positive_coefficient=1.0, kl_coefficient=0.0)
    with group(tiny_model(True), algorithm, minibatches=2) as learner:

        def likelihood() -> float:
            return float(learner.score([success])[0].proximal.sum())

        before = likelihood()
        assert learner.learn(learner.score(failed)).policy_steps == 0
        assert likelihood() == before
        stats = learner.learn(learner.score([*failed, replace(success, use=Use.IMITATE)]))
        assert stats.policy_steps == 1  # the minibatch that has it
        assert likelihood() > before


def test_a_rollout_is_scored_as_its_use_needs_it(tiny_model: Tiny) -> None:
    with group(tiny_model(True)) as learner:
        learner.learn(learner.score(on_policy(learner, make_judged(6))))  # a new critic says 0
        rollouts = make_judged(7, count=4)
        alone = learner.score(rollouts)
        given = [replace(one, use=use) for use in reversed(Use) for one in rollouts]
        found = learner.score(given)
        assert [one.use for one in found] == [
            use for use in (Use.TRAIN, Use.SOLUTION, Use.IMITATE, Use.COUNT, Use.VALUE) for _ in rollouts
        ]
        for place, (one, expected) in enumerate(zip(found, [*alone] * 5, strict=True)):
            scored, valued = one.use in (Use.TRAIN, Use.IMITATE, Use.SOLUTION), one.use is not Use.COUNT
            assert one.start is rollouts[place % 4].start
            np.testing.assert_array_equal(one.values, expected.values if valued else [])
            np.testing.assert_array_equal(one.proximal, expected.proximal if scored else [])
            np.testing.assert_array_equal(one.reference, expected.reference if scored else [])
        assert any(one.values.any() for one in alone)


def test_ranks_that_do_not_see_the_drivers_files_are_named(tiny_model: Tiny, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with group(tiny_model(True)) as learner:
        learner.check_sees(tmp_path / "config.yaml")
        with pytest.raises(ConfigError, match=r"run\.root: learner-rank-0 .*config\.yaml"):
            learner.check_sees(tmp_path / "elsewhere" / "config.yaml")


def test_critic_warmup_leaves_the_policy_as_it_is_and_teaches_the_critic(tiny_model: Tiny) -> None:
    path = tiny_model(True)
    algorithm = AlgorithmConfig(kl_coefficient=0.1, kl_target=0.01)  # goes before kl_schedule
    with group(path, algorithm, critic_warmup=8, minibatches=2, value_lr=3e-3, warmup_steps=4) as learner:
        batch = on_policy(learner, make_judged(7))
        variances = []
        for _ in range(8):
            stats = learner.learn(learner.score(batch))
            variances.append(stats.explained_variance)
            assert not stats.policy_trained
            assert stats.policy_lr == 0.0
            assert stats.kl_coefficient == 0.1  # nothing to control while the policy stands still
        assert variances[0] == 0.0  # the head starts at zero
        assert variances[-1] > 0.5
        for name, tensor in weights_of(learner, path).items():
            np.testing.assert_array_equal(tensor, weights_start(path)[name])
        stats = learner.learn(learner.score(batch))
        assert stats.policy_trained
        assert stats.kl_coefficient == 0.1
        assert stats.policy_lr == pytest.approx(1e-4 * 2 / 4)  # its warm-up of 4 steps begins now; this was the second


@pytest.mark.parametrize("correct", [False, True])
def test_equal_rewards_leave_the_policy_as_it_is_and_teach_the_critic(tiny_model: Tiny, correct: bool) -> None:
    """After a first step, so that Adam's momentum, or the KL to the reference, would move the policy."""
    path, verdict = tiny_model(True), Verdict(float(correct), correct)
    with group(path, AlgorithmConfig(kl_coefficient=0.1, positive_coefficient=1.0)) as learner:
        batch = on_policy(learner, make_judged(0))
        assert learner.learn(learner.score(batch)).policy_trained
        before = weights_of(learner, path)
        equal = [replace(item, verdict=verdict) for item in on_policy(learner, make_judged(1))]
        stats = learner.learn(learner.score(equal))
        assert not stats.policy_trained
        assert stats.value_grad_norm > 0
        for name, weight in weights_of(learner, path).items():
            np.testing.assert_array_equal(weight, before[name])
        assert learner.learn(learner.score(batch)).policy_trained


@pytest.mark.parametrize("zero_stage", [0, 3])  # 2: test_variants.py
def test_a_restored_learner_goes_on_bit_for_bit(tiny_model: Tiny, tmp_path: Path, zero_stage: int) -> None:
    path = tiny_model(True)
    options: dict[str, Any] = {"zero_stage": zero_stage, "schedule": "cosine", "warmup_steps": 3, "epochs": 2}
    with group(path, **options) as learner:
        train(learner, [1])
        learner.save(tmp_path / "checkpoint")
        first = train(learner, [2, 3])
        straight = weights_of(learner, path)
    with group(path, **options) as learner:
        learner.restore(tmp_path / "checkpoint")
        second = train(learner, [2, 3])
        resumed = weights_of(learner, path)
        learner.export(tmp_path / "export")
        states = "mp_rank_00" if zero_stage == 0 else "zero_pp_rank_0_mp_rank_00"
        (tmp_path / "checkpoint" / "value" / f"{states}_model_states.pt").write_bytes(b"half of a fi")
        with pytest.raises(CheckpointError, match="checkpoint: "):
            learner.restore(tmp_path / "checkpoint")  # no LearnerError: new ranks would read the same
    for name, tensor in straight.items():
        np.testing.assert_array_equal(resumed[name], tensor)
    for a, b in zip((s for batch in first for s in batch), (s for batch in second for s in batch), strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.proximal, b.proximal)
    check_export(tmp_path / "export", resumed)


def test_another_kl_coefficient_holds_from_the_resume_on(tiny_model: Tiny, tmp_path: Path) -> None:
    """From 0 the term comes into the loss, with the reference policy. (All changes: test_progress.py.)"""
    path = tiny_model(True)
    with group(path, AlgorithmConfig(kl_coefficient=0.0), minibatches=1) as learner:
        train(learner, [1])
        learner.save(tmp_path)
    with group(path, AlgorithmConfig(kl_coefficient=0.1), minibatches=1) as learner:
        learner.restore(tmp_path)
        stats = learner.learn(learner.score(on_policy(learner, make_judged(2))))
        assert stats.kl_coefficient == 0.1
        assert abs(stats.reference_kl) > 1e-9


def step_of(learner: Learner, scored: list[Rollout]) -> tuple[bool, bool]:
    """One optimizer step on the whole batch, whatever its targets: whether it was taken, and whether the policy's
    gradient is finite."""
    batch = learner.credited(scored)
    by_rank = batch.micro_batches(learner._assign(batch.rows), range(len(scored)))
    plans = [[StepPlan(own, batch.coefficients, 1e-4, 1e-4)] for own in by_rank]
    done = [step for (step,) in learner._ranks.call(RankWorker.update, plans)]
    assert len({step.skipped for step in done}) == 1  # all ranks alike
    return not done[0].skipped, np.isfinite(done[0].policy_norm or np.nan)


def tensors(node: Any, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint: of weights, fp32 weights and Adam's moments."""
    if isinstance(node, Path):
        files = sorted(node.rglob("*.pt"))
        assert files
        node = {str(file.relative_to(node)): torch.load(file, weights_only=False) for file in files}
    if isinstance(node, torch.Tensor):
        return {name: node}
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else ()
    return {place: tensor for key, part in items for place, tensor in tensors(part, f"{name}/{key}").items()}


@pytest.mark.parametrize(("zero_stage", "ranks"), [(0, 2), (1, 1), (2, 2), (3, 2)])
def test_a_nan_skips_the_step_of_both_models_on_all_ranks_and_is_counted(
    tiny_model: Tiny, tmp_path: Path, zero_stage: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model(True)
    fields: dict[str, Any] = {"kl_coefficient": 0.1, "kl_placement": "loss", "kl_estimator": "k2"}
    algorithm = AlgorithmConfig(normalise="global", **fields)
    options: dict[str, Any] = {"ranks": ranks, "zero_stage": zero_stage, "minibatches": 3}
    options["offload"] = zero_stage == 2
    monkeypatch.setattr("learner.update.MOST_SKIPPED", 18)
    with group(path, algorithm, **options) as learner:
        scored = learner.score(on_policy(learner, make_judged(9)))
        before, values = weights_start(path), last_values(scored)
        for kind in ("reward", "proximal", "policy", "value", "critic"):
            stats = learner.learn([with_nan(s, kind) for s in scored])
            assert (stats.steps, stats.skipped_steps) == (3, 3), kind
            np.testing.assert_array_equal(last_values(learner.score(scored)), values, err_msg=kind)
        # whitening over the batch spreads one NaN in the values over all advantages
        with pytest.raises(DivergenceError, match=r"18 .* 12 problems \(p0, p1, p10") as error:
            learner.learn([with_nan(s, "values") if i == 3 else s for i, s in enumerate(scored)])
        assert len(error.value.problem_ids) == 12  # of the whole row of skipped steps
        for name, tensor in weights_of(learner, path).items():
            np.testing.assert_array_equal(tensor, before[name])
        np.testing.assert_array_equal(last_values(learner.score(scored)), values)
        # one bad rollout spoils only the step that it is in
        stats = learner.learn([with_nan(s, "proximal") if i == 0 else s for i, s in enumerate(scored)])
        assert (stats.steps, stats.skipped_steps) == (3, 1)
        assert np.isfinite([stats.policy_loss, stats.value_loss, stats.policy_grad_norm, stats.first_kl]).all()
        after = weights_of(learner, path)
        assert all(np.isfinite(tensor).all() for tensor in after.values())
        assert max(float(np.abs(after[name] - before[name]).max()) for name in after) > 1e-5
        # and with Adam's moments there: after the bad steps all bits, and those of the next step, are as if they had
        # not been
        learner.save(tmp_path / "start")
        assert step_of(learner, [with_nan(s, "policy") for s in scored]) == (False, False)
        assert step_of(learner, [with_nan(s, "critic") for s in scored]) == (False, True)
        assert step_of(learner, [with_nan(s, "both") for s in scored]) == (False, False)
        learner.save(tmp_path / "skipped")
        assert step_of(learner, scored) == (True, True)
        learner.save(tmp_path / "next")
        learner.restore(tmp_path / "start")
        assert step_of(learner, scored) == (True, True)
        learner.save(tmp_path / "straight")
    saved = {name: tensors(tmp_path / name) for name in ("start", "skipped", "next", "straight")}
    for one, other in (("start", "skipped"), ("next", "straight")):
        assert saved[one].keys() == saved[other].keys()
        assert [name for name, t in saved[one].items() if not torch.equal(t, saved[other][name])] == []
    assert sum(not torch.equal(t, saved["next"][name]) for name, t in saved["start"].items()) > 10


def last_values(scored: list[Rollout]) -> FloatArray:
    return np.concatenate([s.values for s in scored])


class DeafEngines(Engines):
    """Engines that cannot read the weights, because a rank is lost in the middle of the broadcast."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path)
        self.rank = rank

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        assert handle.manifest.version == 1
        os.kill(self.rank, signal.SIGKILL)
        assert ends(self.rank)  # or it would still answer
        raise ActorError("the weights were lost")


def test_a_dead_rank_is_named_also_where_the_engines_notice_it_first(tiny_model: Tiny) -> None:
    path = tiny_model(True)
    with group(path, ranks=2) as learner:
        assert isinstance(learner._ranks, Ranks)
        rank = learner._ranks._actors[1]  # not by name: that of a group closed just now may still be taken
        engines = DeafEngines(path, ray.get(rank.__ray_call__.remote(lambda _: os.getpid())))
        with pytest.raises(LearnerError, match=r"learner-rank-1 .*close_channel"):
            learner.broadcast(engines)
        with pytest.raises(LearnerError, match="export"):
            learner.export(path)
        with pytest.raises(LearnerError, match="score"):
            learner.score(make_judged(0))
