"""The typed configuration of a run: every field with its default, unit and bounds. Every part gets only its sections.
Unknown keys are errors, and so are fields that contradict each other: those of a section, and those of several in
`Config`."""

from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from core.sections.algorithm import Aggregation, AlgorithmConfig, KlEstimator, Normalise
from core.sections.base import (
    AUTO,
    AutoBool,
    AutoPositive,
    Count,
    NonNegative,
    Positive,
    Section,
    Whole,
    as_names,
    one_of,
)
from core.sections.learner import Critic, LearnerConfig, ResolvedLearner, Schedule
from core.sections.registry import names
from core.sections.replay import Boundary, ReplayConfig, ReplaySchedule
from core.sections.rollout import ResolvedRollout, RolloutConfig
from core.sections.supervised import LanguageJudgeConfig, ResolvedRewardModel, RewardModelConfig, SftConfig
from core.sections.tasks import (
    CodeConfig,
    Columns,
    FewShot,
    PartConfig,
    RewardConfig,
    SandboxMode,
    Source,
    TaskConfig,
    evaluation_sets,
    every_source,
    task_sources,
    task_title,
)

Device = Literal["cpu", "cuda"]
"""Where engines and learner run."""
SinkName = Annotated[str, AfterValidator(one_of(names("monitor.sinks"), "class"))]


class RunConfig(Section):
    """The run as a whole."""

    name: Annotated[str, Field(max_length=200, pattern=r"^([^./\\\x00-\x1f][^/\\\x00-\x1f]*)?$")] = ""
    """Name of the run directory, without slashes; empty: recipe name and date."""
    root: Path = Path("runs")
    """Folder of the run directories."""
    mirror: Annotated[str, Field(pattern=r"^([a-z0-9+]+://[^@\s]+)?$")] = ""
    """URI of a folder, such as s3://bucket/path, that gets a copy of the run after every checkpoint; without keys,
    which come from the environment. Empty: none."""
    seed: Whole = 0
    """The one seed that all randomness is derived from."""
    iterations: Count = 40
    """Iterations to train: rollout, reward, score, replay, update, broadcast."""
    checkpoint_every: Count = 10
    """Iterations between checkpoints; the last and the best iteration are saved too."""
    keep_checkpoints: Count = 2
    """Newest checkpoints to keep, apart from the best one on held-out problems."""


class ModelConfig(Section):
    """The policy that training starts from."""

    path: str = "starter"
    """Hugging Face name, directory or `.gguf` file; 'starter': a small model for task arithmetic, built at the
    first run."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights. auto: the checkpoint's, but float32 on a CPU without instructions for bfloat16."""
    template_date: date | None = None
    """The date that a chat template with a date writes (Llama 3, Granite); null: the day on which the run began."""

    def dated(self) -> Self:
        """The section with today's date if it has none: a resumed run has the prompts of its beginning."""
        return self if self.template_date else self.model_copy(update={"template_date": date.today()})


class ClusterConfig(Section):
    """Resources asked of Ray."""

    address: str = "auto"
    """'auto': RAY_ADDRESS's cluster, else a head that runs on this machine, else a local one; 'local'; or host:port."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engines and learner run; auto: cuda where the cluster has GPUs."""
    rollout_cpus: NonNegative = 1.0
    """CPUs that one rollout actor reserves."""
    learner_cpus: NonNegative = 1.0
    """CPUs that one learner rank reserves."""
    colocate: AutoBool = Field(AUTO)
    """Place the engine and the learner rank of each number together: on GPUs the pair shares one GPU, so every GPU
    generates and trains by turns. Needs rollout.actors = learner.ranks. auto: on GPUs, if the two numbers are equal,
    rollout.tensor_parallel is 1 and rollout.max_staleness 0; else each has its own GPUs."""
    gpu_memory: AutoPositive = Field(AUTO)
    """Memory of each GPU to plan for, in GiB (of a card of 80 GB about 79). auto: as this machine's driver says."""
    wait: NonNegative = 0.0
    """Seconds to wait for an autoscaling cluster to bring up the asked resources."""


class EvaluationConfig(Section):
    """Evaluation on held-out problems, from the root only."""

    every: Whole = 10
    """Iterations between evaluations; 0: only before the first and after the last."""
    samples: Whole = 0
    """Sampled responses per problem, apart from the greedy one, for pass@k and maj@k; 0: greedy alone."""
    temperature: Positive = 1.0
    """Sampling temperature of the sampled responses."""


class MonitorConfig(Section):
    """Where the numbers of a run go, besides its own files."""

    sinks: Annotated[tuple[SinkName, ...], BeforeValidator(as_names)] = ("tensorboard",)
    """Any of tensorboard, wandb, mlflow (the last two: requirements/sinks.txt), and your own as module:class
    (docs/extending.md). Each gets configuration, numbers, evaluations, samples and curves. A list, or names separated
    by commas."""
    project: Annotated[str, Field(min_length=1)] = "retrospect"
    """W&B project and MLflow experiment of the run."""


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    rollout: RolloutConfig = RolloutConfig()
    replay: ReplayConfig = ReplayConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    sft: SftConfig = SftConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    cluster: ClusterConfig = ClusterConfig()
    monitor: MonitorConfig = MonitorConfig()

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        rollout, learner = self.rollout, self.learner
        trajectories = rollout.starts * rollout.samples
        if trajectories % learner.minibatches:
            raise ValueError(
                f"rollout.starts x rollout.samples = {rollout.starts} x {rollout.samples} = {trajectories} "
                f"trajectories do not divide into learner.minibatches = {learner.minibatches}; change one of the three"
            )
        minibatch = trajectories // learner.minibatches
        if minibatch < learner.ranks:
            raise ValueError(
                f"a minibatch has {minibatch} trajectories, fewer than learner.ranks = {learner.ranks}; lower "
                f"learner.minibatches or learner.ranks, or raise rollout.starts"
            )
        context = (rollout.max_prompt_tokens or 0) + (rollout.max_response_tokens or 0)
        if learner.micro_batch_tokens is not None and learner.micro_batch_tokens < context:
            raise ValueError(
                f"learner.micro_batch_tokens = {learner.micro_batch_tokens} is less than a whole sequence: "
                f"rollout.max_prompt_tokens + rollout.max_response_tokens = {context}; raise it to at least {context}"
            )
        return self

    @model_validator(mode="after")
    def _methods_agree(self) -> Self:
        rollout, replay = self.rollout, self.replay
        if not replay.fill and (rollout.resample or rollout.max_staleness):
            raise ValueError(
                "replay.fill = false makes iterations of different sizes, which rollout.resample and "
                "rollout.max_staleness above 0 cannot use; set both to 0, or replay.fill to true"
            )
        return self


class ResolvedConfig(Config):
    """A whole run without `auto`."""

    rollout: ResolvedRollout
    learner: ResolvedLearner
