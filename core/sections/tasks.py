"""Starter model, task and data."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from core.errors import ConfigError
from core.sections.base import Section, as_mapping

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
        2048,
        ge=300,
        description="Tokens of the byte-level BPE (text tasks and stories; the other generated tasks use characters).",
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
        description="Tasks rule, stories, lock, countdown: share of warm-start answers that have the right form but random choices, so that what is right must be discovered.",
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
    tests: str | None = Field(
        None,
        description="Column of a program's tests: a list of asserts (task mbpp), a function check(candidate) (humaneval), inputs and outputs (apps).",
    )
    setup: str | None = Field(None, description="Column of statements that run with the program (mbpp, apps).")
    entry_point: str | None = Field(
        None,
        description="Column of the name of the function that is tested (humaneval; apps where the tests do not name it).",
    )
    checker: str | None = Field(
        None,
        description="Column of a Python program that judges what was printed, for problems with several answers (apps).",
    )
    language: str | None = Field(
        None, description="Column of the language of the program: python, cpp or javascript; none: python (apps)."
    )


class CodeConfig(Section):
    """Rewards of programs, what they start with, and their limits (tasks mbpp, humaneval, apps)."""

    compile_error: float = Field(-1.0, description="Reward of a program that does not compile.")
    runtime_error: float = Field(
        -0.6, description="Reward of a program that raises, ends, or takes too much time or memory in all tests."
    )
    any_error_fails: bool = Field(
        False,
        description="Give `runtime_error` already for one such test, as StepCoder does; otherwise it is one failed test.",
    )
    failed: float = Field(-0.3, description="Reward of a program that runs and fails all tests.")
    passed: float = Field(1.0, description="Reward of a program that passes all tests.")
    fraction: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Weight of passing some tests: such a program gets failed + fraction x share passed x (passed - failed).",
    )
    visible_share: float = Field(
        0.0,
        ge=0,
        description="Weight of a test that the prompt shows, relative to a hidden one, among the tests passed.",
    )
    setup: Literal["before", "after"] = Field(
        "after", description="Whether the setup of mbpp runs before or after the program."
    )
    prelude: str | None = Field(
        None,
        description="Python statements that run before every program; none: those of the format's benchmark (apps: its imports).",
    )
    packages: tuple[str, ...] = Field((), description="Installed packages that programs may import, such as numpy.")
    tolerance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Absolute or relative error of numbers in outputs (apps), where the row has no `tolerance`.",
    )
    memory_mib: int = Field(512, ge=64, description="Memory of a program, in MiB.")
    output_mib: int = Field(16, ge=1, description="Output of a program in one test, in MiB.")
    program_seconds: float = Field(
        20.0,
        gt=0,
        description="Seconds that all tests of a program may take together: CPU time, or a third of the time on the clock if that is more; later tests count as failed.",
    )

    @property
    def worst(self) -> float:
        """The reward of a response that could not be judged. It is the lowest, so that breaking the judge does not pay."""
        return min(self.compile_error, self.runtime_error, self.failed, self.passed)


class FewShot(Section):
    """A solved example that every prompt shows."""

    prompt: str = Field(description="The question, as {prompt} of the template.")
    response: str = Field(description="What a model should answer.")


class DataConfig(Section):
    """A data set, the form of its prompts, and the judge of its responses."""

    name: Literal[
        "arithmetic",
        "lock",
        "countdown",
        "rule",
        "stories",
        "calculator",
        "gsm8k",
        "math",
        "mbpp",
        "humaneval",
        "apps",
        "dialogue",
    ] = Field("arithmetic", description="Task: it sets how prompts are built and how answers are judged.")
    path: str = Field(
        "",
        description="Hugging Face data set name, local directory, .jsonl or .parquet file; empty: the task generates its problems (arithmetic, lock, countdown, rule, stories, calculator).",
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
        description="Text of the prompt, with {prompt} for the question, or with {column} for other columns of the row; the tokenizer's chat template, if it has one, is applied to this text.",
    )
    system: str = Field("", description="System prompt: a message of the chat template, else text before the prompt.")
    examples: Annotated[tuple[FewShot, ...], BeforeValidator(as_mapping)] = Field(
        (),
        description="Solved examples (prompt, response) that every prompt shows first: turns of the chat template, else text.",
    )
    bad_rows: Literal["refuse", "skip"] = Field(
        "refuse",
        description="Rows that cannot be used. refuse: stop before training; skip: leave them out and say how many.",
    )
    min_operations: int = Field(
        4,
        ge=1,
        description="Generated tasks: fewest operations of a problem to train on (arithmetic: of the chain; lock: presses of the shortest way, at most 6; countdown: one less than the numbers, at most 5; rule: lines; stories: sentences to read; calculator: calls).",
    )
    max_operations: int = Field(10, ge=1, description="Generated tasks: most operations of a problem to train on.")
    problems: int = Field(
        4096, ge=1, description="Generated tasks: training problems to make. Other tasks: most rows that are used."
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
        description="Seconds of processor time that one verdict may take before the response counts as wrong, and ten times as many on the wall clock (programs: CPU seconds per test, and seconds of idling for all tests together).",
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


class SourceConfig(DataConfig):
    """One data set of a mixture. A field that it leaves out has the value of the task section."""

    label: str = Field(
        "", pattern=r"^[\w.-]*$", description="What metrics and evaluations call this data set; empty: its task's name."
    )
    weight: float = Field(1.0, gt=0, description="Share of the fresh problems, relative to the other data sets.")

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields that were given: the others stay those of the task section when the file is read again."""
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}


class TaskConfig(DataConfig):
    """Task and data."""

    sampling: Literal["uniform", "hard"] = Field(
        "uniform",
        description="Fresh problems. uniform: each once per epoch; hard: by their running success rate, unsolved ones up to 5 times as often as solved ones.",
    )
    sources: Annotated[tuple[SourceConfig, ...], BeforeValidator(as_mapping)] = Field(
        (),
        description="A mixture: its data sets, each with fields of this section that differ, and with label and weight; empty: this section is the only one.",
    )


class Source(NamedTuple):
    """One data set of a task."""

    label: str  # empty if the task has only one
    weight: float
    config: TaskConfig  # without `sources`


def task_sources(task: TaskConfig) -> tuple[Source, ...]:
    """The data sets of a task, one or a mixture. Raises ConfigError when two have the same label."""
    if not task.sources:
        return (Source("", 1.0, task),)
    found = []
    for source in task.sources:
        given = {name: getattr(source, name) for name in source.model_fields_set - {"label", "weight"}}
        config = task.model_copy(update={**given, "sources": ()})
        found.append(Source(source.label or config.name, source.weight, config))
    labels = [source.label for source in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(f"task.sources: two data sets are called {twice!r}; give each a label of its own")
    return tuple(found)


def task_title(task: TaskConfig) -> str:
    """What messages and files call a task: its name, or the labels of a mixture.

    >>> task_title(TaskConfig(sources=(SourceConfig(name="gsm8k"), SourceConfig(name="math"))))
    'gsm8k+math'
    """
    return "+".join(source.label for source in task_sources(task)) or task.name
