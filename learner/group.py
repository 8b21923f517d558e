"""The learner seen from the driver: it scores, updates, broadcasts and saves. What the tokens of an update weigh is
decided before (`learner.credit`). Invariants: results do not depend on the number of ranks or on the micro-batches;
every wait has a deadline; a `LearnerError` ends all ranks, and `restart` with `restore` brings them back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from core.config import AlgorithmConfig, Device, ResolvedLearner
from core.errors import ConfigError, WeightError
from core.machine import largest
from core.records import FloatArray, IntArray, Rollout, Use, used
from core.seeds import derive, generator
from core.transport import OfPairs
from core.weights import Sender, WeightReceiver
from learner.batch import Batch
from learner.distributed.ranks import LocalRanks, Ranks
from learner.distributed.worker import RankWorker
from learner.packing.assign import Assignment, assign_steps_apart, assign_trees
from learner.packing.micro_batches import (
    Row,
    input_batches,
    over_continuation,
    results_by_row,
    row_of,
)
from learner.probe import Gap, check_gap, check_noise, gap_between
from learner.state import CheckpointLayout, LearnerState, read_state
from learner.stats import BroadcastReport, UpdateStats
from learner.update import Step, note, planned, summary

PROBE_EVERY = 10  # broadcasts between two probes; the first is always probed
PROBE_SEQUENCES = 8  # training problems whose prompts (and canonical solutions, if there are any) are the probe


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """What a learner is started from, and started from again when its ranks are lost."""

    model: str | Path  # Hugging Face directory or name of the policy; the critic's trunk starts from it too
    config: ResolvedLearner
    algorithm: AlgorithmConfig
    temperature: float  # of the rollouts
    dtype: str
    device: Device
    total_steps: int  # optimizer steps of the whole run, for the learning-rate schedule
    seed: int
    cpus: float = 1.0  # of a rank
    gpus: float = 0.0
    local: bool = False  # run the one rank in this process instead of a Ray actor (debugging)
    sender: type[Sender] | None = None  # sends weights directly to the engines, in addition to the object store
    pairs: bool = False  # every rank sends to the engine of its number; else rank 0 to all


class LearnerGroup:
    """Policy and critic on `learner.ranks` processes."""

    def __init__(self, spec: LearnerSpec) -> None:
        """Start the ranks and load the models. Raises ModelError when the model cannot be used, else LearnerError."""
        self._spec = spec
        self._config = spec.config
        self._noise: tuple[Sequence[IntArray], Gap] | None = None  # the probe, and the gap on it before training
        self._launch()

    def _launch(self) -> None:
        spec, config, kl = self._spec, self._config, self._spec.algorithm.kl_coefficient
        self._ranks: Ranks = (
            LocalRanks() if spec.local else Ranks(config, device=spec.device, cpus=spec.cpus, gpus=spec.gpus)
        )
        self._ranks.join(spec.device, config.deadline)
        arguments = (config, spec.algorithm, spec.temperature, spec.dtype, derive(spec.seed, "learner"))
        trained = self._ranks.call_same(RankWorker.load, str(spec.model), *arguments)[0]
        self._ranks.call_same(RankWorker.open_channel, spec.sender, spec.pairs, config.deadline)
        fields = (config.zero_stage, config.value_model, config.lora_rank, config.lora_alpha)
        self._layout = CheckpointLayout(trained, *fields)
        self.state = LearnerState(kl, kl)

    @property
    def _has_critic(self) -> bool:
        return self._config.value_model != "none"

    @property
    def version(self) -> int:
        """The weight version that the engines have; grows by one with every broadcast."""
        return self.state.version

    @version.setter
    def version(self, version: int) -> None:
        """Set it after a restored checkpoint or a lost broadcast."""
        self.state.version = version

    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with values, proximal and reference log-probabilities by the current models, in order: those to
        train on, those to imitate and canonical solutions, those that only count (not scored), and those to value
        (values alone)."""
        trained, counted = used(rollouts, Use.TRAIN), used(rollouts, Use.COUNT)
        others, valued = used(rollouts, Use.IMITATE, Use.SOLUTION), used(rollouts, Use.VALUE)
        values = self.values(valued) if valued else []
        return [
            *self._score(trained),
            *self._score(others),
            *counted,
            *(replace(rollout, values=own) for rollout, own in zip(valued, values, strict=True)),
        ]

    def _score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        if not rollouts:
            return []
        rows = [row_of(rollout) for rollout in rollouts]
        assignment = self._assign(rows)
        untrained = [self.state.policy_steps == 0] * len(assignment)
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
        values = self._per_token(RankWorker.values, [row_of(rollout) for rollout in rollouts])
        return [over_continuation(own, rollout) for own, rollout in zip(values, rollouts, strict=True)]

    def update(self, batch: Batch) -> UpdateStats:
        """Train on a batch of rollouts that were scored with the current weights: `epochs` passes of `minibatches`
        optimizer steps. One pass is made even if nothing learns.

        A minibatch with a NaN or Inf is left out; one that arises in a loss or a gradient skips that step on all ranks.
        Skipped steps count in the learning-rate schedule.

        Raises DivergenceError when `MOST_SKIPPED` in a row were skipped.
        """
        config, state, steps, learns = self._config, self.state, list[Step](), batch.policy_learns()
        own, imitated, total = batch.starts(Use.TRAIN), batch.starts(Use.IMITATE), self._spec.total_steps
        for number in range(config.epochs if learns or self._has_critic else 1):
            rng = generator(self._spec.seed, "minibatches", state.updates, number)
            minibatches = assign_steps_apart(own, imitated, config.minibatches, rng)
            steps += self._taken(planned(batch, minibatches, steps, state, config, total, self._assign))
        note(state, batch, steps, config, self._spec.algorithm.kl_target)
        return summary(batch, steps, self._has_critic)

    def _taken(self, steps: Sequence[Step]) -> list[Step]:
        """The steps with what the ranks say of them; those with a NaN or Inf in their columns are not taken."""
        by_rank = list(zip(*(step.plans for step in steps if step.finite), strict=True))
        done = zip(*(self._ranks.call(RankWorker.update, by_rank) if by_rank else []), strict=True)
        return [step.taken(next(done)) if step.finite else step for step in steps]

    def measure_noise(self, receiver: WeightReceiver, sequences: Iterable[IntArray]) -> Gap:
        """Remember the gap of engines and learner with the same weights; more than rounding raises WeightError."""
        probe = list(islice(sequences, PROBE_SEQUENCES))
        noise = gap_between(receiver.sequence_logprobs(probe), self.logprobs(probe))
        check_noise(noise, self._spec.dtype)
        self._noise = probe, noise
        return noise

    def broadcast(self, receiver: WeightReceiver) -> BroadcastReport:
        """Send the policy's weights to every engine, and probe at the first and every `PROBE_EVERY`-th version. Raises
        WeightError for another acknowledgement or a gap beyond the noise; LearnerError when a rank died."""
        version = self.version + 1
        exported = self._ranks.call_same(RankWorker.export_weights, version)
        (weights,) = [weights for weights, _ in exported if weights is not None]
        offers = tuple(offer for _, offer in exported if offer is not None)
        if offers and self._spec.pairs:
            weights = replace(weights, direct=OfPairs(offers))
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
        return BroadcastReport(
            version,
            self.check_engines(receiver) if probed else None,
            engine=largest(engine.memory for engine in acknowledged),
            learner=largest(self._ranks.call_same(RankWorker.peak_memory)),
        )

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
        self.state.save(directory / "learner.json", len(self._ranks), self._layout)
        return sorted({name for names in written for name in names})

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote: training continues bit for bit with as many ranks, up to rounding with others. The KL
        coefficient stays adapted unless another is configured. Raises CheckpointError."""
        state, ranks = read_state(directory / "learner.json", self._layout)
        self._ranks.call_same(RankWorker.restore, str(directory), ranks)
        state.continue_with(self._spec.algorithm.kl_coefficient)
        self.state = state

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
