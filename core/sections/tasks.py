"""What is trained on: starter model, data, task."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from core.sections.base import Section

SandboxMode = Literal["bubblewrap", "unsafe-subprocess"]
"""What confines a program that a model wrote; fails closed unless told otherwise."""


class StarterConfig(Section):
    """The small warm-started model that stands in for a pretrained one (used when model.path is 'starter')."""

    hidden_size: int = Field(
        128,
        ge=8,
        description="Width of the model: heads x a head size that the CPU engine has (32, 64, 80, 96, 112, 128).",
    )
    layers: int = Field(3, ge=1, description="Transformer layers.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    vocabulary: int = Field(
        2048, ge=300, description="Tokens of the byte-level BPE (text tasks; synthetic tasks use characters)."
    )
    steps: int = Field(
        700, ge=0, description="Optimizer steps of supervised warm-start; 0: random weights (for `launch.py sft`)."
    )
    batch_size: int = Field(64, ge=1, description="Solutions per warm-start step.")
    lr: float = Field(2e-3, gt=0, description="Peak learning rate of the warm-start.")
    max_operations: int = Field(
        8,
        ge=1,
        description="Generated tasks: most operations of a problem shown during the warm-start; each operation more is 0.6 times as frequent.",
    )
    slip: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Generated tasks: share of warm-start solutions that leave the last line out, a habit for training to undo.",
    )
    cache: Path = Field(
        Path(".cache/starters"), description="Where built starters are kept, by hash of these settings."
    )


class Columns(Section):
    """Which column of the data set holds what."""

    prompt: str = Field("prompt", description="Column of the question.")
    answer: str = Field(
        "answer", description="Column that the verifier reads the gold answer from; not read where there are `tests`."
    )
    solution: str | None = Field(
        None, description="Column of the canonical solution; none: the task has no canonical solutions."
    )
    level: str | None = Field(None, description="Column of the difficulty level, for reports.")
    tests: str | None = Field(None, description="Column of the unit tests: a list of assert statements (task mbpp).")
    setup: str | None = Field(
        None, description="Column of statements that the tests need, run after the program (mbpp)."
    )


class CodeConfig(Section):
    """What a program earns, and how much memory it gets (task mbpp)."""

    compile_error: float = Field(-1.0, description="Reward of a program that does not compile.")
    runtime_error: float = Field(
        -0.6, description="Reward of a program that raises, ends, or takes too much time or memory in any test."
    )
    failed: float = Field(-0.3, description="Reward of a program that runs and fails all tests.")
    passed: float = Field(1.0, description="Reward of a program that passes all tests.")
    fraction: float = Field(
        1.0,
        ge=0,
        le=1,
        description="What passing some tests is worth: such a program earns failed + fraction x share passed x (passed - failed).",
    )
    memory_mib: int = Field(512, ge=64, description="Memory of a program, in MiB.")

    @property
    def worst(self) -> float:
        """What a response earns that could not be judged: nothing is gained by breaking the judge."""
        return min(self.compile_error, self.runtime_error, self.failed, self.passed)


class TaskConfig(Section):
    """What is trained on."""

    name: Literal["arithmetic", "lock", "countdown", "gsm8k", "math", "mbpp", "dialogue"] = Field(
        "arithmetic", description="Task: how prompts are put and answers are judged."
    )
    path: str = Field(
        "",
        description="Hugging Face data set name, local directory, .jsonl or .parquet file; empty: the task generates its problems (arithmetic, lock, countdown).",
    )
    split: str = Field("train", description="Split of a Hugging Face data set to train on.")
    eval_path: str = Field(
        "", description="Data set of the evaluation problems; empty: `eval_problems` are held out of `path`."
    )
    eval_split: str = Field("test", description="Split of a Hugging Face data set to evaluate on.")
    eval_problems: int = Field(
        256,
        ge=1,
        description="Evaluation problems, of eval_path the first so many; neither they nor the other rows of eval_path enter training or the replay store.",
    )
    columns: Columns = Columns()
    template: str = Field(
        "{prompt}",
        description="Text of the prompt, with {prompt} for the question; the tokenizer's chat template is put around it when there is one.",
    )
    min_operations: int = Field(
        4,
        ge=1,
        description="Generated tasks: fewest operations of a problem to train on (arithmetic: of the chain; lock: presses of the shortest way, at most 6; countdown: numbers less one, at most 5).",
    )
    max_operations: int = Field(10, ge=1, description="Generated tasks: most operations of a problem to train on.")
    problems: int = Field(
        4096, ge=1, description="Generated tasks: training problems to make; others: at most this many rows are used."
    )
    sampling: Literal["uniform", "hard"] = Field(
        "uniform",
        description="Fresh problems: each once per epoch, or hard: by their running success rate, unsolved ones up to 5 times as often as solved ones.",
    )
    reward: str = Field(
        "",
        description="Your own reward, 'module:function' (importable from the working directory): takes (reference answer, response text), returns a number, a bool or a core.records.Verdict; empty: the task's verifier.",
    )
    judge_workers: int = Field(
        1,
        ge=0,
        description="Processes that judge responses; 0: judge in the driver's own process, without limits (debugging).",
    )
    judge_timeout: float = Field(
        5.0,
        gt=0,
        description="Seconds that one verdict may take before it counts as wrong (mbpp: of processor time, and three times that by the clock).",
    )
    judge_memory_gib: float = Field(
        8.0,
        ge=0,
        description="Address space of a judging process, in GiB; 0: no bound, for a reward that loads a model.",
    )
    sandbox: SandboxMode = Field(
        "bubblewrap",
        description="What programs that the model wrote run in. unsafe-subprocess needs no bubblewrap and protects nothing but time and memory: such a program can do all that you can.",
    )
    code: CodeConfig = CodeConfig()
