"""The learner seen from the driver: it scores, updates, broadcasts and saves. The maths over the global batch happens
here (`learner.targets`). Invariants: results do not depend on the number of ranks or on the micro-batches; every wait
has a deadline; a `LearnerError` ends all ranks, and `restart` with `restore` brings them back."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from core.config import AlgorithmConfig, Device, ResolvedLearner
from core.errors import ConfigError, DivergenceError, WeightError
from core.records import Boundaries, FloatArray, IntArray, Rollout, Start, Use, unsolved_share, used
from core.seeds import derive, generator
from core.weights import Sender, WeightReceiver
from learner.calibration import every_token
from learner.distributed.actor_critic import StepPlan
from learner.distributed.ranks import LocalRanks, Ranks
from learner.distributed.worker import RankWorker
from learner.losses import adapted_coefficient, faded_coefficient
from learner.packing.assign import Assignment, assign_steps_apart, assign_trees
from learner.packing.batch import (
    Row,
    input_batches,
    over_continuation,
    results_by_row,
    row_of,
    shared_share,
)
from learner.probe import Gap, check_gap, check_noise, gap_between
from learner.state import CheckpointLayout, LearnerState, learning_rate, read_state
from learner.stats import NOT_TRIED, BroadcastReport, StepSums, UpdateStats, add_ranks, summarise_update
from learner.targets import TargetBatch, compute_targets, skipped_problems, train_batches, with_imitated

PROBE_EVERY = 10  # broadcasts between two probes; the first is always probed
PROBE_SEQUENCES = 8  # training problems whose prompts (and canonical solutions, if there are any) are the probe
MOST_SKIPPED = 8  # optimizer steps in a row that are skipped for a NaN or Inf before the run stops


@dataclass(frozen=True, slots=True)
class TakenStep:
    """One optimizer step of an update."""

    members: list[int]  # trajectories
    plans: list[StepPlan]  # per rank
    sums: StepSums  # over all ranks; NOT_TRIED: left out for a NaN or Inf in its targets


@dataclass(frozen=True, slots=True)
class LearnerRecipe:
    """What a learner is started from, and started from again when its ranks are lost."""

    model: str | Path  # Hugging Face directory or name of the policy; the critic's trunk starts from it too
    config: ResolvedLearner
    algorithm: AlgorithmConfig
    dtype: str
    device: Device
    temperature: float  # of the rollouts; log-probabilities are those of softmax(logits / temperature)
    longest: int  # tokens of the longest possible response
    total_steps: int  # optimizer steps of the whole run, for the learning-rate schedule
    seed: int
    cpus: float = 1.0  # of a rank
    gpus: float = 1.0
    local: bool = False  # run the one rank in this process instead of a Ray actor (debugging)
    sender: type[Sender] | None = None  # sends weights directly to the engines, in addition to the object store


class LearnerGroup:
    """PPO on policy and critic over `learner.ranks` processes."""

    def __init__(self, recipe: LearnerRecipe) -> None:
        """Start the ranks and load the models. Raises ModelError when the model cannot be used, else LearnerError."""
        self._recipe = recipe
        self._config, self._algorithm = recipe.config, recipe.algorithm
        self._noise: tuple[Sequence[IntArray], Gap] | None = None  # the probe, and the gap on it before training
        self._launch()

    def _launch(self) -> None:
        recipe, config, kl = self._recipe, self._config, self._algorithm.kl_coefficient
        self._ranks: Ranks = (
            LocalRanks() if recipe.local else Ranks(config, device=recipe.device, cpus=recipe.cpus, gpus=recipe.gpus)
        )
        self._ranks.join(recipe.device, config.deadline)
        arguments = (config, self._algorithm, recipe.dtype, recipe.temperature, derive(recipe.seed, "learner"))
        trained = self._ranks.call_same(RankWorker.load, str(recipe.model), *arguments)[0]
        self._ranks.call_same(RankWorker.open_channel, recipe.sender, config.deadline)
        fields = (config.zero_stage, config.value_model, config.lora_rank, config.lora_alpha)
        self._state = LearnerState(len(self._ranks), CheckpointLayout(trained, *fields), kl, kl)

    @property
    def _has_critic(self) -> bool:
        return self._config.value_model != "none"

    @property
    def version(self) -> int:
        """The weight version that the engines have; grows by one with every broadcast."""
        return self._state.version

    @version.setter
    def version(self, version: int) -> None:
        """Set it after a restored checkpoint or a lost broadcast."""
        self._state.version = version

    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with values, proximal and reference log-probabilities by the current models, in order: those to
        train on, those to imitate, those that only count (not scored), and those to value (values alone)."""
        trained, counted = used(rollouts, Use.TRAIN), used(rollouts, Use.COUNT)
        imitated, valued = used(rollouts, Use.IMITATE), used(rollouts, Use.VALUE)
        values = self.values(valued) if valued else []
        return [
            *self._score(trained),
            *self._score(imitated),
            *counted,
            *(replace(rollout, values=own) for rollout, own in zip(valued, values, strict=True)),
        ]

    def _score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        if not rollouts:
            return []
        rows = [row_of(rollout) for rollout in rollouts]
        assignment = self._assign(rows)
        untrained = [self._state.policy_steps == 0] * len(assignment)
        scores = self._ranks.call(RankWorker.score, input_batches(assignment, rows), untrained)
        columns = zip(*scores, strict=True)  # of each: [rank][micro-batch]
        values, proximal, reference = (results_by_row(assignment, rows, column) for column in columns)
        return [
            replace(
                rollout,
                values=over_continuation(values[i], rollout),
                proximal=over_continuation(proximal[i], rollout),
                reference=over_continuation(reference[i], rollout),
            )
            for i, rollout in enumerate(rollouts)
        ]

    def values(self, rollouts: Sequence[Rollout]) -> list[FloatArray]:
        """Only the values of `score` [C], for rollouts that are not trained on."""
        found = self._per_token(RankWorker.values, [row_of(rollout) for rollout in rollouts])
        return [over_continuation(own, rollout) for own, rollout in zip(found, rollouts, strict=True)]

    def update(self, rollouts: Sequence[Rollout], boundaries: Boundaries = every_token) -> UpdateStats:
        """Train on rollouts that were scored with the current weights: `epochs` passes of `minibatches` optimizer
        steps.

        During the critic's warm-up only the critic learns, on Monte-Carlo returns (VC-PPO, 2503.01491); so it does on
        equal rewards without imitated responses, which say nothing about the policy.

        A minibatch with a NaN or Inf is left out; one that arises in a loss or a gradient skips that step on all ranks.
        Skipped steps count in the learning-rate schedule.

        Raises DivergenceError when `MOST_SKIPPED` in a row were skipped.
        """
        warm = self._state.begin_update(self._config.critic_warmup)
        scored, imitated = used(rollouts, Use.TRAIN), used(rollouts, Use.IMITATE)
        algorithm = self._current_algorithm(unsolved_share(rollouts), warm)
        kl = algorithm.kl_coefficient
        batch = compute_targets(scored, algorithm, self.version, kl, boundaries, self._recipe.longest)
        if warm and imitated:
            batch = with_imitated(batch, imitated)
        own = [item.start for item in scored]
        earlier = [item.start for item in imitated] if warm else []
        train_policy = warm and batch.teaches(range(len(batch.rows)), algorithm)
        taken = self._train(batch, algorithm, own, earlier, train_policy)
        self._note(scored, taken, batch.stats.reference_kl, train_policy)
        return self._summary(batch, taken, kl, train_policy)

    def _current_algorithm(self, unsolved: float, warm: bool) -> AlgorithmConfig:
        """The algorithm of this update: with the KL coefficient that it has now, and Monte-Carlo returns in warm-up."""
        kl = self._state.kl_coefficient
        kl = faded_coefficient(kl, unsolved) if self._algorithm.kl_fades else kl
        changed = {"kl_coefficient": kl} if warm else {"kl_coefficient": kl, "value_lambda": 1.0}
        return self._algorithm.model_copy(update=changed)

    def _train(
        self,
        batch: TargetBatch,
        algorithm: AlgorithmConfig,
        own: Sequence[Start],
        earlier: Sequence[Start],
        train_policy: bool,
    ) -> list[TakenStep]:
        """The passes over the batch: rollouts of the starts `own`, then imitated ones of the starts `earlier`. One is
        made even if nothing learns."""
        config, taken = self._config, list[TakenStep]()
        for number in range(config.epochs if train_policy or self._has_critic else 1):
            rng = generator(self._recipe.seed, "minibatches", self._state.updates, number)
            minibatches = assign_steps_apart(own, earlier, config.minibatches, rng)
            taken += self._pass(batch, algorithm, taken, minibatches, train_policy)
        return taken

    def _summary(self, batch: TargetBatch, taken: Sequence[TakenStep], kl: float, train_policy: bool) -> UpdateStats:
        tried = [step for step in taken if step.sums is not NOT_TRIED]
        return summarise_update(
            [step.sums for step in taken],
            batch.stats,
            policy_lr=next((step.plans[0].policy_lr for step in reversed(taken) if step.plans[0].train_policy), 0.0),
            value_lr=taken[-1].plans[0].value_lr,
            kl_coefficient=kl,
            shared_share=shared_share(
                [micro.inputs for step in tried for plan in step.plans for micro in plan.batches],
                [batch.rows[i] for step in tried for i in step.members],
            ),
            policy_trained=train_policy,
            critic=self._has_critic,
        )

    def _pass(
        self,
        batch: TargetBatch,
        algorithm: AlgorithmConfig,
        before: Sequence[TakenStep],
        minibatches: list[list[int]],
        policy: bool,
    ) -> list[TakenStep]:
        """One pass over the batch, after the steps `before` of this update. `policy`: whether the policy learns."""
        state, total = self._state, self._recipe.total_steps
        kl_in_loss = algorithm.kl_coefficient if algorithm.kl_placement == "loss" else 0.0
        policy_step = state.policy_steps + sum(step.plans[0].train_policy for step in before)
        value_step = state.steps + len(before)
        late = state.steps - state.policy_steps  # the policy's schedule begins with its first step
        plans: list[list[StepPlan]] = []  # [minibatch][rank]
        for members in minibatches:
            trains = policy and (kl_in_loss > 0 or batch.teaches(members, algorithm))
            policy_lr = self._rate(self._config.policy_lr, policy_step, total - late) if trains else 0.0
            value_lr = self._rate(self._config.value_lr, value_step, total)
            assignment = self._assign([batch.rows[i] for i in members])
            by_rank = train_batches(assignment, batch, members, algorithm.aggregation, self._recipe.longest)
            plans.append(
                [StepPlan(batches, policy_lr, value_lr, kl_in_loss, trains, self._has_critic) for batches in by_rank]
            )
            policy_step, value_step = policy_step + trains, value_step + 1
        finite = [batch.finite(members) for members in minibatches]
        of_ranks = list(zip(*(plan for plan, good in zip(plans, finite, strict=True) if good), strict=True))
        per_rank = self._ranks.call(RankWorker.update, of_ranks) if of_ranks else []
        done = (add_ranks(step) for step in zip(*per_rank, strict=True))
        sums = [next(done) if good else NOT_TRIED for good in finite]
        return [TakenStep(*step) for step in zip(minibatches, plans, sums, strict=True)]

    def _note(
        self, scored: Sequence[Rollout], taken: Sequence[TakenStep], reference_kl: float, policy_trained: bool
    ) -> None:
        """Record what the next update depends on. Raises DivergenceError after too many skipped steps in a row."""
        state, target = self._state, self._algorithm.kl_target
        skipped = [step.sums.skipped for step in taken]
        state.note_steps(
            skipped,
            skipped_problems(scored, [[row for row in step.members if row < len(scored)] for step in taken], skipped),
            steps=self._config.epochs * self._config.minibatches,
            policy_steps=sum(step.plans[0].train_policy for step in taken),
        )
        if policy_trained and target is not None and math.isfinite(reference_kl):
            state.kl_coefficient = adapted_coefficient(state.kl_coefficient, reference_kl, target, len(scored))
        if state.skipped_in_row >= MOST_SKIPPED:
            ids = tuple(state.skipped_problems)
            raise DivergenceError(
                f"{state.skipped_in_row} optimizer steps in a row had a NaN or Inf, "
                f"last on {len(ids)} problems ({', '.join(ids[:3])}, ...); lower "
                f"learner.policy_lr or look at their rewards, then resume from the last checkpoint",
                ids,
            )

    def measure_noise(self, receiver: WeightReceiver, sequences: Iterable[IntArray]) -> Gap:
        """Remember the gap of engines and learner with the same weights; more than rounding raises WeightError."""
        probe = list(islice(sequences, PROBE_SEQUENCES))
        noise = gap_between(receiver.sequence_logprobs(probe), self.logprobs(probe))
        check_noise(noise, self._recipe.dtype)
        self._noise = probe, noise
        return noise

    def broadcast(self, receiver: WeightReceiver) -> BroadcastReport:
        """Send the policy's weights to every engine, and probe at the first and every `PROBE_EVERY`-th version. Raises
        WeightError for another acknowledgement or a gap beyond the noise; LearnerError when a rank died."""
        version = self.version + 1
        exported = self._ranks.call_same(RankWorker.export_weights, version)
        (weights,) = [weights for weights in exported if weights is not None]
        digest = weights.manifest.digest
        self.version = version  # counts even if no engine receives the weights
        try:
            acknowledged = receiver.load_weights(weights)
        finally:  # a LearnerError here explains why the engines could not read the weights
            self._ranks.call_same(RankWorker.close_channel)
        for engine in acknowledged:
            if (engine.version, engine.digest) != (version, digest):
                raise WeightError(
                    f"{engine.engine} acknowledged version {engine.version} ({engine.digest}), the learner sent "
                    f"version {version} ({digest}); resume from the last checkpoint"
                )
        probed = version == 1 or version % PROBE_EVERY == 0
        return BroadcastReport(version, self.check_engines(receiver) if probed else None)

    def check_engines(self, receiver: WeightReceiver) -> Gap | None:
        """How far engines and learner are apart; None without measured noise. Raises WeightError beyond the noise."""
        if self._noise is None:
            return None
        probe, noise = self._noise
        gap = gap_between(receiver.sequence_logprobs(probe), self.logprobs(probe))
        check_gap(gap, noise, self.version)
        return gap

    def logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """Log-probabilities [T - 1] of tokens 1..T-1 of each sequence at temperature 1."""
        return self._per_token(RankWorker.logprobs, [Row(sequence, 1) for sequence in sequences])

    def check_sees(self, file: Path) -> None:
        """Raises ConfigError when a rank lacks a file of the run directory that the driver has written."""
        seen = self._ranks.call_same(RankWorker.sees, str(file))
        if blind := [f"learner-rank-{rank}" for rank, one in enumerate(seen) if not one]:
            raise ConfigError(
                f"run.root: {', '.join(blind)} cannot see {file}; set run.root to storage that all nodes see"
            )

    def save(self, directory: Path) -> list[str]:
        """Write policy, critic, optimizers, random states and counters into `directory`. Returns the names of all files
        that any rank sees there; the caller checks that it sees them too. Raises CheckpointError."""
        directory.mkdir(parents=True, exist_ok=True)
        written = self._ranks.call_same(RankWorker.save, str(directory))
        self._state.save(directory / "learner.json")
        return sorted({name for names in written for name in names})

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote: training continues bit for bit with as many ranks, up to rounding with others. The KL
        coefficient stays adapted unless another is configured. Raises CheckpointError."""
        state = read_state(directory / "learner.json", self._state.layout)
        self._ranks.call_same(RankWorker.restore, str(directory), state.ranks)
        state.continue_with(len(self._ranks), self._algorithm.kl_coefficient)
        self._state = state

    def export(self, directory: Path) -> None:
        """Write the policy and its tokenizer in Hugging Face format."""
        self._ranks.call_same(RankWorker.export, str(directory))

    def restart(self) -> None:
        """Start new ranks from the model directory after an error ended the old ones. Call `restore` next."""
        self.close()
        self._launch()

    def close(self) -> None:
        """End the ranks. Idempotent."""
        self._ranks.close()

    def _per_token(self, method: Callable[..., list[FloatArray]], rows: Sequence[Row]) -> list[FloatArray]:
        """Call a method that gives one number per scored token."""
        assignment = self._assign(rows)
        return results_by_row(assignment, rows, self._ranks.call(method, input_batches(assignment, rows)))

    def _assign(self, rows: Sequence[Row]) -> Assignment:
        ranks = max(1, len(self._ranks))  # there are 0 after an error: then the next call raises
        return assign_trees([row.tokens for row in rows], self._config.micro_batch_tokens, ranks)

    def _rate(self, peak: float, step: int, total: int) -> float:
        return learning_rate(peak, step, self._config.warmup_steps, total, self._config.schedule)
