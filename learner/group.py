"""The learner as the loop sees it: score, update, broadcast, save. The driver's side of all ranks.

Called by `trainer.loop`. The maths over the global batch happens here (`learner.prepare`), the ranks get micro-batches that
are ready to run. Invariants: results do not depend on the number of ranks or on the cut; every wait has a deadline; after an
`LearnerError` the group is closed; `restart` and `restore` make it whole again.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.config import AlgorithmConfig, Device, LearnerConfig
from core.errors import DivergenceError, WeightError
from core.records import FloatArray, IntArray, Judged, Scored
from core.seeds import derive, generator
from core.weights import Sender, WeightReceiver
from learner.calibration import Boundaries, every_token
from learner.distributed.actor_critic import StepPlan
from learner.distributed.local import LocalRanks
from learner.distributed.ranks import R, Ranks
from learner.distributed.worker import RankWorker
from learner.losses import adapted_coefficient
from learner.packing.batch import Row, padding_share
from learner.packing.cutting import Cut, inputs, scatter, train_batches
from learner.packing.plan import CPU_OVERHEAD, GPU_OVERHEAD, plan, plan_packed
from learner.prepare import Prepared, blamed, prepare
from learner.progress import Layout, Progress, read_progress
from learner.schedule import learning_rate
from learner.stats import DROPPED, BroadcastReport, StepSums, UpdateFrame, UpdateStats, add_ranks, summarise


class LearnerGroup:
    """PPO on policy and critic over `learner.ranks` processes."""

    def __init__(
        self,
        model_path: str | Path,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        *,
        dtype: str,
        device: Device,
        temperature: float,
        total_steps: int,
        seed: int,
        cpus: float = 1.0,
        gpus: float = 1.0,
        local: bool = False,
        sender: type[Sender] | None = None,
    ) -> None:
        """Start the ranks and load the models.

        Args:
            model_path: Hugging Face directory or name of the policy; the critic's trunk starts from it too.
            config, algorithm: their sections.
            dtype: "float32" or "bfloat16".
            device: "cpu" or "cuda".
            temperature: of the rollouts; log-probabilities are those of softmax(logits / temperature).
            total_steps: optimizer steps of the whole run, for the learning-rate schedule.
            seed: the run's seed.
            cpus, gpus: what a rank reserves; GPUs on device "cuda" only.
            sender: a direct way for broadcasts, beside the object store.
            local: keep the one rank in this process instead of a Ray actor (debugging).

        Raises:
            ModelError: the model cannot be used. LearnerError: a rank did not come up.
        """
        self._config = config
        self._algorithm = algorithm
        self._seed = seed
        self._total_steps = total_steps
        self._overhead = GPU_OVERHEAD if device == "cuda" else CPU_OVERHEAD
        self._ranks: Ranks | LocalRanks

        def launch() -> None:
            self._ranks = (
                LocalRanks()
                if local
                else Ranks(
                    config.ranks, device=device, cpus=cpus, gpus=gpus, threads=config.threads, deadline=config.deadline
                )
            )
            ranks = range(len(self._ranks))
            address = self._ranks.call_first(RankWorker.address)
            self._all(RankWorker.join, list(ranks), len(ranks), address, device, config.deadline)
            arguments = (str(model_path), config, algorithm, dtype, temperature, derive(seed, "learner"))
            loaded = self._all(RankWorker.load, *arguments)[0]
            self._packed = loaded.packed
            self._all(RankWorker.open_channel, sender, config.deadline)
            layout = Layout(loaded.trained, config.zero_stage, config.value_model, config.lora_rank, config.lora_alpha)
            self._progress = Progress(len(ranks), layout, algorithm.kl_coefficient, algorithm.kl_coefficient)

        self._launch = launch
        launch()

    @property
    def version(self) -> int:
        """The weight version that the engines hold; grows with every broadcast."""
        return self._progress.version

    @version.setter
    def version(self, version: int) -> None:
        self._progress.version = version

    def score(self, judged: Sequence[Judged]) -> list[Scored]:
        """Values, proximal and reference log-probabilities of every trajectory, by the models as they are now."""
        rows = _rows(judged)
        cut = self._cut(rows)
        columns = self._ranks.call(RankWorker.score, inputs(cut, rows, self._packed))
        values = scatter(cut, rows, [[c.values for c in rank] for rank in columns])
        proximal = scatter(cut, rows, [[c.proximal for c in rank] for rank in columns])
        reference = scatter(cut, rows, [[c.reference for c in rank] for rank in columns])
        has_reference = self._algorithm.kl_coefficient > 0
        return [
            Scored(j, values[i], proximal[i], reference[i] if has_reference else None) for i, j in enumerate(judged)
        ]

    def values(self, judged: Sequence[Judged]) -> list[FloatArray]:
        """The values alone, as in `score`: for trajectories that are not trained on."""
        return self.begin_values(judged)()

    def begin_values(self, judged: Sequence[Judged]) -> Callable[[], list[FloatArray]]:
        """The same while something else goes on: what is returned waits for the values, and raises what the ranks raised."""
        return self._begin(RankWorker.values, _rows(judged))

    def update(self, scored: Sequence[Scored], cut: Boundaries = every_token) -> UpdateStats:
        """Train on a batch that `score` saw with the current weights: `epochs` passes of `minibatches` optimizer steps.

        During the critic's warm-up (the first `critic_warmup` updates, or until it has settled) only the critic learns, on
        Monte-Carlo returns (VC-PPO, 2503.01491). A minibatch with a NaN or Inf is not trained on; one that arises in a loss or a
        gradient skips that step on all ranks. Skipped steps are counted, and their number in the schedule goes on. `cut` gives
        the boundaries of a response, where the critic's calibration is measured.

        Raises:
            DivergenceError: `max_skipped_steps` in a row were skipped.
        """
        begin = time.monotonic()
        progress = self._progress
        train_policy = progress.begin(self._config.critic_warmup)
        algorithm = self._algorithm if train_policy else self._algorithm.model_copy(update={"value_lambda": 1.0})
        prepared = prepare(scored, algorithm, self.version, progress.kl_coefficient, cut)
        minibatches = self._minibatches(len(scored))
        plans = [self._step_plans(prepared, m, progress.steps + k, train_policy) for k, m in enumerate(minibatches)]
        finite = [prepared.finite(members) for members in minibatches]
        by_rank: list[list[StepPlan]] = [
            list(rank) for rank in zip(*(p for p, good in zip(plans, finite, strict=True) if good), strict=True)
        ]
        per_rank = self._ranks.call(RankWorker.update, by_rank) if by_rank else []
        done = (add_ranks(step) for step in zip(*per_rank, strict=True))
        steps = [next(done) if good else DROPPED for good in finite]
        read = [batch.inputs for rank in by_rank for step in rank for batch in step.batches]
        trained = [prepared.rows[i] for members, good in zip(minibatches, finite, strict=True) if good for i in members]
        frame = UpdateFrame(
            batch=prepared.stats,
            policy_lr=plans[-1][0].policy_lr,
            value_lr=plans[-1][0].value_lr,
            kl_coefficient=progress.kl_coefficient,
            tokens=int(prepared.offsets[-1]),
            padding_share=padding_share(read, trained),
            policy_trained=train_policy,
            seconds=time.monotonic() - begin,
        )
        self._note(scored, minibatches, steps, frame)
        return summarise(steps, frame)

    def _note(
        self, scored: Sequence[Scored], minibatches: list[list[int]], steps: list[StepSums], frame: UpdateFrame
    ) -> None:
        """Remember what the next update depends on; stop a run that skips step after step."""
        progress, target = self._progress, self._algorithm.kl_target
        skipped = [step.skipped for step in steps]
        progress.note_steps(skipped, blamed(scored, minibatches, skipped))
        batch = frame.batch
        progress.note_critic(batch.explained_variance, batch.returns_vary, self._config.critic_settled)
        if frame.policy_trained and target is not None and math.isfinite(batch.reference_kl):
            progress.kl_coefficient = adapted_coefficient(
                progress.kl_coefficient, batch.reference_kl, target, self._algorithm.kl_horizon, len(scored)
            )
        if progress.skipped_in_row >= self._config.max_skipped_steps:
            ids = tuple(progress.blamed)
            raise DivergenceError(
                f"{progress.skipped_in_row} optimizer steps in a row had a NaN or Inf (learner.max_skipped_steps "
                f"{self._config.max_skipped_steps}), last on {len(ids)} problems ({', '.join(ids[:3])}, ...); lower "
                f"learner.policy_lr or look at their rewards, then resume from the last checkpoint",
                ids,
            )

    def broadcast(self, receiver: WeightReceiver, probe: Sequence[IntArray]) -> BroadcastReport:
        """Give every engine the policy's weights as the next version and compare log-probabilities on `probe` [T >= 2].

        Raises:
            WeightError: an engine acknowledged another version or digest, or its log-probabilities are further from the
                learner's than `max_logprob_gap`.
            LearnerError: a rank is lost, also where the engines noticed that first.
        """
        begin = time.monotonic()
        version = self.version + 1
        (weights,) = [weights for weights in self._all(RankWorker.export_weights, version) if weights is not None]
        digest = weights.manifest.digest
        self.version = version  # of the learner's weights, whether or not an engine lives to get them
        try:
            acknowledged = receiver.load_weights(weights)
        finally:  # says, too, when the engines could not read them because a rank is lost
            self._all(RankWorker.close_channel)
        for engine in acknowledged:
            if (engine.version, engine.digest) != (version, digest):
                raise WeightError(
                    f"{engine.engine} acknowledged version {engine.version} ({engine.digest}), the learner sent "
                    f"version {version} ({digest}); resume from the last checkpoint"
                )
        gap = self._probe_gap(receiver.sequence_logprobs(probe), self.logprobs(probe)) if probe else 0.0
        return BroadcastReport(version, digest, gap, time.monotonic() - begin)

    def logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """Log-probabilities [T - 1] of tokens 1..T-1 of each sequence at temperature 1."""
        return self._begin(RankWorker.logprobs, [Row(sequence, 1) for sequence in sequences])()

    def save(self, directory: Path) -> list[str]:
        """Write policy, critic, optimizers, random states and counters into `directory` (made atomic by the caller).

        Returns the names of all files that any rank sees there: each must be there for the caller, too.

        Raises:
            CheckpointError: a rank cannot write.
        """
        directory.mkdir(parents=True, exist_ok=True)
        written = self._all(RankWorker.save, str(directory))
        self._progress.save(directory / "learner.json")
        return sorted({name for names in written for name in names})

    def restore(self, directory: Path) -> None:
        """Continue from what `save` wrote, bit for bit with the same number of ranks, up to rounding with another.

        The KL coefficient goes on as it was adapted, unless another one is configured now: then it starts from that.

        Raises:
            CheckpointError: the checkpoint is incomplete or of another learner.
        """
        progress = read_progress(directory / "learner.json", self._progress.layout)
        self._all(RankWorker.restore, str(directory), progress.ranks)
        progress.go_on(len(self._ranks), self._algorithm.kl_coefficient)
        self._progress = progress

    def export(self, directory: Path) -> None:
        """Write the policy and its tokenizer in Hugging Face format."""
        self._all(RankWorker.export, str(directory))

    def restart(self) -> None:
        """Fresh ranks with the model directory's weights, in place of those that an error has ended; then `restore`."""
        self.close()
        self._launch()

    def close(self) -> None:
        """End the ranks. Idempotent."""
        self._ranks.close()

    def _all(self, method: Callable[..., R], *args: Any) -> list[R]:
        """Call with the same arguments on all ranks; a list is taken per rank."""
        spread = [arg if isinstance(arg, list) else [arg] * len(self._ranks) for arg in args]
        return self._ranks.call(method, *spread)

    def _begin(self, method: Callable[..., list[FloatArray]], rows: Sequence[Row]) -> Callable[[], list[FloatArray]]:
        """One number per scored token of each row, by a method of `RankWorker` that reads micro-batches."""
        cut = self._cut(rows)
        finish = self._ranks.begin(method, inputs(cut, rows, self._packed))
        return lambda: scatter(cut, rows, finish())

    def _cut(self, rows: Sequence[Row]) -> Cut:
        lengths, budget = [len(row.tokens) for row in rows], self._config.micro_batch_tokens
        ranks = max(1, len(self._ranks))  # after they have ended there is none: the call that follows says so
        if self._packed:
            return plan_packed(lengths, budget, ranks)
        return plan(lengths, budget, ranks, self._overhead)

    def _minibatches(self, count: int) -> list[list[int]]:
        """Rows of every optimizer step of this update, in order."""
        steps: list[list[int]] = []
        for epoch in range(self._config.epochs):
            order = generator(self._seed, "minibatches", self._progress.updates, epoch).permutation(count)
            steps += [part.tolist() for part in np.array_split(order, self._config.minibatches) if len(part)]
        return steps

    def _step_plans(self, prepared: Prepared, members: list[int], step: int, train_policy: bool) -> list[StepPlan]:
        """One optimizer step, per rank."""
        cut = self._cut([prepared.rows[i] for i in members])
        late = (
            self._progress.steps - self._progress.policy_steps
        )  # the policy's schedule begins when it begins to learn
        policy_lr = self._rate(self._config.policy_lr, step - late, self._total_steps - late) if train_policy else 0.0
        value_lr = self._rate(self._config.value_lr, step, self._total_steps)
        in_loss = self._progress.kl_coefficient if self._algorithm.kl_placement == "loss" else 0.0
        return [
            StepPlan(batches, policy_lr, value_lr, in_loss, train_policy)
            for batches in train_batches(cut, prepared, members, self._algorithm.aggregation, self._packed)
        ]

    def _rate(self, peak: float, step: int, total: int) -> float:
        return learning_rate(peak, step, self._config.warmup_steps, total, self._config.schedule)

    def _probe_gap(self, engines: Sequence[Sequence[FloatArray]], own: Sequence[FloatArray]) -> float:
        worst = 0.0
        for number, engine in enumerate(engines):
            gaps = [float(np.max(np.abs(theirs - ours))) for theirs, ours in zip(engine, own, strict=True)]
            gap = float(np.max(gaps))
            if not gap <= self._config.max_logprob_gap:
                raise WeightError(
                    f"engine {number}: log-probabilities of the probe differ by {gap:.2e} from the learner's, more than "
                    f"learner.max_logprob_gap {self._config.max_logprob_gap:g}; the weights did not arrive as sent"
                )
            worst = max(worst, gap)
        return worst


def _rows(judged: Sequence[Judged]) -> list[Row]:
    return [Row(j.trajectory.sequence_ids, len(j.trajectory.start.context_ids)) for j in judged]
