"""Task and data."""

from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from core.sections.base import (
    AUTO,
    AutoCount,
    Count,
    Options,
    Positive,
    Section,
    Whole,
    as_mapping,
    as_names,
    one_of,
)
from core.sections.registry import names

SandboxMode = Literal["bubblewrap", "unsafe-subprocess"]
"""How programs that a model wrote are confined. Without a working bubblewrap, the default refuses to run them."""


class Columns(Section):
    """The names of the data set's columns."""

    prompt: str = "prompt"
    """Column of the question: a text, or a list of messages."""
    answer: str = "answer"
    """Column of the gold answer, which the verifier needs; not read if `tests` is set. A dot names a field inside a column (reward_model.ground_truth). Where there is no `answer`, verl's and TRL's columns are tried: reward_model.ground_truth, ground_truth, solution."""
    solution: str | None = None
    """Column of the canonical solution; none: the task has no canonical solutions."""
    level: str | None = None
    """Column of the difficulty level, for reports."""
    tests: str | None = None
    """Column of a program's tests: a list of asserts (task mbpp), a function check(candidate) (humaneval), inputs and outputs (apps)."""
    setup: str | None = None
    """Column of statements that run with the program (mbpp, apps)."""
    entry_point: str | None = None
    """Column of the name of the function that is tested (humaneval; apps where the tests do not name it)."""
    checker: str | None = None
    """Column of a Python program that judges what was printed, for problems with several answers (apps)."""


class CodeConfig(Section):
    """Rewards of programs, what they start with, and their limits (tasks mbpp, humaneval, apps)."""

    reward: Literal["graded", "share", "all"] = "graded"
    """graded: 1 if all tests pass; -1 for a program that does not compile, -0.6 for one that raises in all tests, else
    -0.3 + 1.3 x the share of tests passed (CodeRL). share: the share of tests passed. all: 1 if all tests pass, else 0."""
    packages: Annotated[tuple[str, ...], BeforeValidator(as_names)] = ()
    """Installed packages that programs may import, such as numpy."""
    memory_mib: Annotated[int, Field(ge=64)] = 512
    """Memory of a program, in MiB."""
    program_seconds: Positive = 20.0
    """Seconds that all tests of a program may take together: CPU time, or a third of the time on the clock if that is more; later tests count as failed."""

    @property
    def worst(self) -> float:
        """The reward of a response that could not be judged. It is the lowest, so that breaking the judge does not pay."""
        return -1.0 if self.reward == "graded" else 0.0


class FewShot(Section):
    """A solved example that every prompt shows."""

    prompt: str
    """The question, as {prompt} of the template."""
    response: str
    """What a model should answer."""


class RewardConfig(Section):
    """One of several rewards of the user's own."""

    name: Annotated[str, Field(min_length=1)]
    """As `task.reward`; task: the task's own judge."""
    weight: float = 1.0
    """Factor of its value in the sum."""
    label: Annotated[str, Field(pattern=r"^[\w.:-]*$")] = ""
    """Its name in metrics; empty: that of the function or server."""

    @property
    def remote(self) -> bool:
        """Whether a server gives it."""
        return self.name.startswith(("http://", "https://"))

    @property
    def title(self) -> str:
        """Its label, or what stands in for one."""
        return self.label or (urlsplit(self.name).netloc if self.remote else self.name.rpartition(":")[2])


def _pair(given: Any) -> Any:
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ValueError("give the fewest and the most, such as 2,4")
    return given


def _ascending(given: tuple[int, int]) -> tuple[int, int]:
    if given[0] > given[1]:
        raise ValueError("give the fewest first")
    return given


class DataSetConfig(Section):
    """A data set: problems to train on and others that are held out, the form of their prompts, and the judge of their
    responses."""

    name: Annotated[str, AfterValidator(one_of(names("task.name"), "task"))] = Field(
        "arithmetic",
        description=f"Task: it sets how prompts are built and how answers are judged. {', '.join(names('task.name'))}, or your own as module:NAME (docs/extending.md).",
    )
    path: str = ""
    """Hugging Face data set name, local directory, .jsonl or .parquet file; a data set of Reasoning Gym (task reasoning_gym); an environment of verifiers (task verifiers); empty: the task generates its problems (arithmetic, sums)."""
    split: str = "train"
    """Split of a Hugging Face data set to train on."""
    parameters: Options = Field({})
    """Task reasoning_gym: parameters of its data set by name, all but seed and size. Task verifiers: arguments of its environment."""
    eval_path: str = ""
    """Data set of the evaluation problems; empty: `eval_problems` are held out of `path`."""
    eval_split: str = "test"
    """Split of a Hugging Face data set to evaluate on."""
    eval_problems: Count = 256
    """Evaluation problems; with eval_path its first rows. They and all other rows of eval_path stay out of training and of the replay store."""
    columns: Columns = Columns()
    template: str = "{prompt}"
    """Text of the prompt, with {prompt} for the question, or with {column} for other columns of the row; the tokenizer's chat template, if it has one, is applied to this text. Of a prompt of several messages the user's last is the question."""
    system: str = ""
    """System prompt: a message of the chat template, else text before the prompt."""
    examples: Annotated[tuple[FewShot, ...], BeforeValidator(as_mapping)] = ()
    """Solved examples (prompt, response) that every prompt shows first: turns of the chat template, else text."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """Rows that cannot be used. refuse: stop before training; skip: leave them out and say how many."""
    operations: Annotated[
        tuple[Count, Count], BeforeValidator(_pair), BeforeValidator(as_names), AfterValidator(_ascending)
    ] = (4, 10)
    """Generated tasks: fewest and most operations of a problem (arithmetic: of the chain; sums: sums and differences)."""
    problems: AutoCount = Field(AUTO)
    """Generated tasks: training problems to make. Other tasks: most rows that are used. auto: 4,096, or all rows."""
    reward: str = ""
    """Your own reward, 'module:function' (importable from the working directory) in the shape of this project, TRL or verl, or the URL of a server (docs/data.md); empty: the task's verifier."""
    rewards: Annotated[tuple[RewardConfig, ...], BeforeValidator(as_mapping)] = ()
    """Several rewards instead, each with name (as `reward`), weight and label: their weighted sum counts, the first that applies says what is correct."""
    success_reward: float | None = None
    """A response is a success from this reward on; none: as its judge says, and for a number above 0."""
    judge_workers: Whole = 1
    """Processes that judge responses; 0: judge in the driver's own process, without limits (debugging)."""
    judge_timeout: Positive = 5.0
    """Seconds of processor time that one verdict may take before the response counts as wrong, and ten times as many on the wall clock (programs: CPU seconds per test, and seconds of idling for all tests together)."""
    sandbox: SandboxMode = "bubblewrap"
    """Sandbox of programs that the model wrote. unsafe-subprocess needs no bubblewrap and limits only time and memory: a program can do everything that you can."""
    code: CodeConfig = CodeConfig()

    @property
    def title(self) -> str:
        """The task's name, of a user's own without its module."""
        return self.name.rpartition(":")[2]

    @property
    def own_rewards(self) -> tuple[RewardConfig, ...]:
        """The user's own rewards; none: the task's verifier judges."""
        return self.rewards or ((RewardConfig(name=self.reward),) if self.reward else ())


class PartConfig(DataSetConfig):
    """One data set of several: of a mixture, or one that is only evaluated. A field that it leaves out has the value of
    the task section; `split` and `problems` of one that is only evaluated do not: they are `test` and all rows (of
    generated tasks and `verifiers` 256)."""

    label: Annotated[str, Field(pattern=r"^[\w.-]*$")] = ""
    """What metrics and evaluations call this data set; empty: its task's name."""
    weight: Positive = 1.0
    """In a mixture: share of the fresh problems, relative to the other data sets."""
    samples: AutoCount = Field(AUTO)
    """Only evaluated: sampled responses per problem, apart from the greedy one, for avg@k and pass@k. auto:
    `evaluation.samples`."""

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields that were given: the others stay those of the task section when the file is read again."""
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}


class TaskConfig(DataSetConfig):
    """Task and data."""

    sampling: Literal["uniform", "hard"] = "uniform"
    """Fresh problems. uniform: each once per epoch; hard: by their running success rate, unsolved ones up to 5 times as often as solved ones."""
    sources: Annotated[tuple[PartConfig, ...], BeforeValidator(as_mapping)] = ()
    """A mixture: its data sets, each with fields of this section that differ, and with label and weight; empty: this section is the only one."""
    eval_sets: Annotated[tuple[PartConfig, ...], BeforeValidator(as_mapping)] = ()
    """More sets that are evaluated with the held-out problems and never trained on, each with fields of this section that differ, and with label and samples (docs/tasks.md)."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        for field, parts, foreign in (
            ("sources", self.sources, {"samples"}),
            ("eval_sets", self.eval_sets, {"weight", "eval_path", "eval_split", "eval_problems"}),
        ):
            for name in sorted(foreign & {name for part in parts for name in part.model_fields_set}):
                raise ValueError(f"task.{field} cannot have the field {name!r}; leave it out")
        sources, sets = task_sources(self), evaluation_sets(self)
        labels = [source.label or self.title for source in sources]
        _all_different("task.sources: two data sets", labels)
        _all_different("task.eval_sets: two data sets", [*labels, *(one.label for one in sets)])
        for _, _, config in (*sources, *sets):
            if config.reward and config.rewards:
                raise ValueError("task.reward and task.rewards are both set; keep one of them")
            _all_different("task.rewards: two rewards", [each.title for each in config.rewards])
        return self


def _all_different(what: str, labels: list[str]) -> None:
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"{what} are called {twice!r}; give each a label of its own")


class Source(NamedTuple):
    """One data set of a task, or one of its evaluation sets."""

    label: str  # empty if the task has only one data set
    weight: float  # share of the fresh problems; an evaluation set has none
    config: TaskConfig  # without `sources` and `eval_sets`


def task_sources(task: TaskConfig) -> tuple[Source, ...]:
    """The data sets of a task, one or a mixture."""
    if not task.sources:
        return (Source("", 1.0, task.model_copy(update={"eval_sets": ()})),)
    parts = [(part, _with_given(task, part)) for part in task.sources]
    return tuple(Source(part.label or config.title, part.weight, config) for part, config in parts)


GENERATED_EVALUATION = 256  # problems of a generated evaluation set that does not say how many


def evaluation_sets(task: TaskConfig) -> tuple[Source, ...]:
    """The evaluation sets of a task, in the order of `eval_sets`. The held-out half of each config is the set
    (`eval_path`); `problems` is none for all rows."""
    found = []
    for part in task.eval_sets:
        config = _with_given(task, part)
        counts = {"problems": part.problems, "eval_problems": part.problems or GENERATED_EVALUATION}
        split = part.split if "split" in part.model_fields_set else "test"
        config = config.model_copy(update={**counts, "eval_path": config.path, "eval_split": split})
        found.append(Source(part.label or config.title, 0.0, config))
    return tuple(found)


def every_source(task: TaskConfig) -> tuple[Source, ...]:
    """The data sets of a task and its evaluation sets."""
    return (*task_sources(task), *evaluation_sets(task))


def _with_given(task: TaskConfig, part: PartConfig) -> TaskConfig:
    """The task section with the fields that a part of it gives."""
    given = {name: getattr(part, name) for name in part.model_fields_set & TaskConfig.model_fields.keys()}
    return task.model_copy(update={**given, "sources": (), "eval_sets": ()})


def task_title(task: TaskConfig) -> str:
    """What messages and files call a task: its name, or the labels of a mixture.

    >>> task_title(TaskConfig(sources=(PartConfig(name="gsm8k"), PartConfig(name="math"))))
    'gsm8k+math'
    """
    return "+".join(source.label for source in task_sources(task)) or task.title
