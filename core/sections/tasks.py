"""Starter model, task and data."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from core.sections.base import Section

SandboxMode = Literal["bubblewrap", "unsafe-subprocess"]
"""How programs that a model wrote are confined. Without a working bubblewrap, the default refuses to run them."""


class StarterConfig(Section):
    """The small warm-started model that stands in for a pretrained one (used when model.path is 'starter')."""

    hidden_size: int = Field(
        128,
        ge=8,
        description="Width of the model: heads x a head size that the CPU engine supports (32, 64, 80, 96, 112, 128).",
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
        description="Generated tasks: most operations of a warm-start problem; problems with one more operation are 0.6 times as frequent.",
    )
    slip: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Generated tasks: share of warm-start solutions without their last line; training must correct this habit.",
    )
    guess: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Task rule: share of warm-start answers that have the right form but random choices; 1: the rule must be discovered.",
    )
    cache: Path = Field(
        Path(".cache/starters"), description="Where built starters are kept, by hash of these settings."
    )


class Columns(Section):
    """The names of the data set's columns."""

    prompt: str = Field("prompt", description="Column of the question.")
    answer: str = Field(
        "answer", description="Column of the gold answer, which the verifier needs; not read if `tests` is set."
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
    """Rewards of programs, and their memory limit (task mbpp)."""

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
        description="Weight of passing some tests: such a program gets failed + fraction x share passed x (passed - failed).",
    )
    memory_mib: int = Field(512, ge=64, description="Memory of a program, in MiB.")

    @property
    def worst(self) -> float:
        """The reward of a response that could not be judged. It is the lowest, so that breaking the judge does not pay."""
        return min(self.compile_error, self.runtime_error, self.failed, self.passed)


class TaskConfig(Section):
    """Task and data."""

    name: Literal["arithmetic", "lock", "countdown", "rule", "gsm8k", "math", "mbpp", "dialogue"] = Field(
        "arithmetic", description="Task: it sets how prompts are built and how answers are judged."
    )
    path: str = Field(
        "",
        description="Hugging Face data set name, local directory, .jsonl or .parquet file; empty: the task generates its problems (arithmetic, lock, countdown, rule).",
    )
    split: str = Field("train", description="Split of a Hugging Face data set to train on.")
    eval_path: str = Field(
        "", description="Data set of the evaluation problems; empty: `eval_problems` are held out of `path`."
    )
    eval_split: str = Field("test", description="Split of a Hugging Face data set to evaluate on.")
    eval_problems: int = Field(
        256,
        ge=1,
        description="Evaluation problems; with eval_path its first rows. They and all other rows of eval_path stay out of training and of the replay store.",
    )
    columns: Columns = Columns()
    template: str = Field(
        "{prompt}",
        description="Text of the prompt, with {prompt} for the question; the tokenizer's chat template, if it has one, is applied to this text.",
    )
    min_operations: int = Field(
        4,
        ge=1,
        description="Generated tasks: fewest operations of a problem to train on (arithmetic: of the chain; lock: presses of the shortest way, at most 6; countdown: one less than the numbers, at most 5; rule: lines).",
    )
    max_operations: int = Field(10, ge=1, description="Generated tasks: most operations of a problem to train on.")
    problems: int = Field(
        4096, ge=1, description="Generated tasks: training problems to make. Other tasks: most rows that are used."
    )
    sampling: Literal["uniform", "hard"] = Field(
        "uniform",
        description="Fresh problems. uniform: each once per epoch; hard: by their running success rate, unsolved ones up to 5 times as often as solved ones.",
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
        description="Seconds of processor time that one verdict may take before the response counts as wrong, and ten times as many on the wall clock (mbpp: this much CPU time, and three times as much wall-clock time).",
    )
    judge_memory_gib: float = Field(
        8.0,
        ge=0,
        description="Address space of a judging process, in GiB; 0: no limit, for a reward that loads a model.",
    )
    sandbox: SandboxMode = Field(
        "bubblewrap",
        description="Sandbox of programs that the model wrote. unsafe-subprocess needs no bubblewrap and limits only time and memory: a program can do everything that you can.",
    )
    code: CodeConfig = CodeConfig()
