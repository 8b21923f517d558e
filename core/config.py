"""The typed configuration of a run: every field with its default, unit and bounds.

Every part gets only its sections. Unknown keys are errors. Checks that need more than one field are in `core/plan.py`.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from core.sections.algorithm import AlgorithmConfig
from core.sections.base import Section
from core.sections.learner import LearnerConfig
from core.sections.monitor import MonitorConfig
from core.sections.replay import ReplayConfig
from core.sections.rollout import RolloutConfig
from core.sections.supervised import LanguageJudgeConfig, RewardModelConfig, SftConfig, SupervisedConfig
from core.sections.tasks import (
    CodeConfig,
    Columns,
    FewShot,
    SandboxMode,
    Source,
    SourceConfig,
    StarterConfig,
    TaskConfig,
    task_sources,
    task_title,
)

Device = Literal["cpu", "cuda"]
"""Where engines and learner run."""


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field(
        "",
        max_length=200,
        pattern=r"^([^./\\\x00-\x1f][^/\\\x00-\x1f]*)?$",
        description="Name of the run directory, without slashes; empty: recipe name and date.",
    )
    root: Path = Field(Path("runs"), description="Folder of the run directories.")
    mirror: str = Field(
        "",
        pattern=r"^([a-z0-9+]+://[^@\s]+)?$",
        description="URI of a folder, such as s3://bucket/path, that gets a copy of the run after every checkpoint; without keys, which come from the environment. Empty: none.",
    )
    seed: int = Field(0, ge=0, description="The one seed that all randomness is derived from.")
    iterations: int = Field(
        40, ge=1, description="Iterations to train: rollout, reward, score, replay, update, broadcast."
    )
    checkpoint_every: int = Field(
        10, ge=1, description="Iterations between checkpoints; the last and the best iteration are saved too."
    )
    keep_checkpoints: int = Field(
        2, ge=1, description="Newest checkpoints to keep, apart from the best one on held-out problems."
    )


class ModelConfig(Section):
    """The policy that training starts from."""

    path: str = Field(
        "starter",
        description="Hugging Face model name or local directory; 'starter': build and warm-start a small model for the task (see `starter`).",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of the weights in learner and engines; float32 on CPU."
    )


class ClusterConfig(Section):
    """Resources asked of Ray."""

    address: str = Field(
        "auto",
        description="'auto': the cluster of RAY_ADDRESS, else a head that runs on this machine, else a local one; 'local': always a local one; or host:port.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where engines and learner run; auto: cuda where the cluster has GPUs."
    )
    rollout_cpus: float = Field(1.0, ge=0, description="CPUs that one rollout actor reserves.")
    learner_cpus: float = Field(1.0, ge=0, description="CPUs that one learner rank reserves.")
    learner_gpus: float = Field(1.0, ge=0, description="GPUs that one learner rank reserves (device cuda).")
    spread: bool = Field(
        False,
        description="Spread the rollout actors over the nodes, and the learner ranks; false: as few nodes for each as possible.",
    )
    wait: float = Field(
        0.0, ge=0, description="Seconds to wait for an autoscaling cluster to bring up the asked resources."
    )


class EvaluationConfig(Section):
    """Evaluation on held-out problems, from the root only."""

    every: int = Field(
        10, ge=0, description="Iterations between evaluations; 0: only before the first and after the last."
    )
    samples: int = Field(
        0,
        ge=0,
        description="Sampled responses per problem, apart from the greedy one, for pass@k and maj@k; 0: greedy alone.",
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of the sampled responses.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling of the sampled responses.")


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    starter: StarterConfig = StarterConfig()
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
