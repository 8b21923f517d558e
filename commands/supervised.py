"""What `sft` and `reward-model` share: a run of TRL's trainer on our rows, which leaves a Hugging Face folder.

Invariants: held-out rows and evaluation prompts are never trained on; nothing of a run is written for bad input.
"""

import json
import math
import os
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from commands.options import configuration
from core.config import Config, Device, task_title
from core.errors import CheckpointError, ConfigError, DataError, DivergenceError, first_line
from core.load import dump_config, load_config
from core.machine import this_machine
from core.plan import choose_device
from core.run_directory import (
    RunDirectory,
    keep_lines,
    open_log,
    open_to_readers,
    write_atomically,
    write_versions,
)
from core.sections.base import closest
from core.seeds import derive
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.sources import load_rows, missing_column
from trainer import checkpoint
from trainer.model.automatic import resolved_type
from trainer.model.files import check_vocabulary, inspect_model, load_tokenizer, resolve_model
from trainer.model.gguf import model_folder

SectionName = Literal["sft", "reward_model"]
ROWS: Mapping[SectionName, str] = {"sft": "sft.path", "reward_model": "reward_model.pairs"}
"""The field that names a command's rows."""
Row = dict[str, list[int]]
"""A row as TRL reads it: `input_ids` and `labels` (-100: no loss), or `chosen_ids` and `rejected_ids`."""
HELD_OUT = 128
"""Most rows that are held out; of fewer than ten times as many it is a tenth."""
UNPRINTED = ("_runtime", "_per_second", "_flos")
"""Ends of the names of numbers that are only written."""
OURS: Mapping[str, str] = {
    "output_dir": "run.root and run.name",
    "resume_from_checkpoint": "--resume",
    "save_total_limit": "run.keep_checkpoints",
    "seed": "run.seed",
    "use_cpu": "cluster.device",
}
"""TRL's arguments that follow from other fields or options."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a command."""

    train: Sequence[Row]
    held_out: Sequence[Row]


Read = Callable[[Config, str, int], Rows]
"""Reads the rows of a recipe for a model; longer ones than so many tokens are left out."""


def supervise(
    options: Namespace, section: SectionName, read: Read, finish: Callable[[Path, Sequence[Row], Device], None]
) -> int:
    """Start a new run, or with --resume continue one from TRL's last checkpoint. `finish` gets the model's folder and
    the held-out rows. Returns the exit status."""
    if options.resume is None:
        config = configuration(options, rows=(ROWS[section],))
        config = config.model_copy(update={"model": config.model.dated()})
        run = RunDirectory.create(config.run.root, config.run.name, section.replace("_", "-"))
    elif options.fields or options.config:
        extra = options.fields[0] if options.fields else "--config"
        raise ConfigError(f"--resume uses the run's own configuration; leave out {extra}")
    else:
        run = RunDirectory.open(Path(options.resume))
        config = load_config(run.config)
    with run.lock():
        resumed = None if options.resume is None else last_checkpoint(run, section)
        device = _device(config)
        model, config, context = _model(config, device)
        arguments = trl_arguments(config, section, run, device, context)
        rows = read(config, model, arguments.max_length)
        print(f"{len(rows.train)} rows to learn, {len(rows.held_out)} held out")
        if resumed is None:
            run.clear()
            write_atomically(run.config, dump_config(config))
        with open_log(run), checkpoint.replacing(run.policy) as folder:
            write_versions(run)
            arguments.eval_on_start = resumed is None and arguments.eval_on_start
            _train(section, model, config, arguments, rows, run, resumed, folder)
            finish(folder, rows.held_out, device)
            open_to_readers(folder)
    print(f"model   {run.policy}\nnumbers {run.metrics}")
    return 0


def _device(config: Config) -> Device:
    """Where TRL trains, in this process. Raises ConfigError for a GPU that is not here."""
    device = choose_device(config.cluster, lambda: this_machine().gpus > 0)
    if device == "cuda" and not this_machine().gpus:
        raise ConfigError("cluster.device = cuda: this machine has no GPU; set it to cpu, or run the command on one")
    if device == "cuda":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # TRL refuses several in one process
    return device


def trl_arguments(config: Config, section: SectionName, run: RunDirectory, device: Device, context: int) -> Any:
    """TRL's arguments: ours, and over them the recipe's; `max_length` is within the model's context. Raises ConfigError
    that names a wrong one."""
    try:
        from trl import RewardConfig, SFTConfig
    except ImportError as error:
        raise ConfigError(
            f"TRL cannot be imported ({first_line(error)}); run `make setup`, or install requirements/cpu.txt"
        ) from error
    kind = RewardConfig if section == "reward_model" else SFTConfig
    given = _checked(getattr(config, section).arguments, f"{section}.arguments", kind)
    own = {
        "output_dir": str(run.checkpoints),
        "seed": derive(config.run.seed, "supervised") % 2**32,
        "save_total_limit": config.run.keep_checkpoints,
        "use_cpu": device == "cpu",
        "report_to": "none",
        "disable_tqdm": True,
        "eval_on_start": True,
        "bf16": config.model.dtype == "bfloat16",
    }
    if (given.get("max_length") or 0) > context:
        raise ConfigError(
            f"{section}.arguments.max_length = {given['max_length']}, but the model's context is {context} tokens; "
            "lower it"
        )
    try:
        made = kind(**own | given)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"{section}.arguments: {first_line(error)}") from error
    made.max_length = min(made.max_length or context, context)
    return made


def _checked(given: Mapping[str, Any], where: str, kind: Any) -> dict[str, Any]:
    """The arguments of the recipe as the types of TRL's class `kind`. Raises ConfigError that names a wrong one."""
    types, names = get_type_hints(kind), {field.name for field in fields(kind)}
    for name in given:
        if name in OURS:
            raise ConfigError(f"{where}.{name} cannot be set; use {OURS[name]}")
        if name not in names:
            raise ConfigError(f"{where}.{name}: TRL's {kind.__name__} has no such argument{closest(name, names)}")
    found = {}
    for name, value in given.items():
        try:
            adapter = TypeAdapter(types[name], config=ConfigDict(arbitrary_types_allowed=True))
            found[name] = adapter.validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"{where}.{name} = {value!r}: {error.errors()[0]['msg']}") from None
    return found


def last_checkpoint(run: RunDirectory, section: SectionName) -> Path:
    """TRL's newest complete checkpoint of the run. Raises CheckpointError when there is none of this command."""
    if checkpoint.saved(run) is not None:
        raise CheckpointError(f"{run.path} is a run of `launch.py train`; resume it with that command")
    states = run.checkpoints.glob("checkpoint-*/trainer_state.json")  # the file that is written last
    found = sorted((file.parent for file in states), key=lambda folder: int(folder.name.rpartition("-")[2]))
    if not found:
        raise CheckpointError(f"{run.path}: no checkpoint yet (the run stopped before the first); start a new run")
    classifier = "SequenceClassification" in (found[-1] / "config.json").read_text(encoding="utf-8")
    if classifier != (section == "reward_model"):
        command = "reward-model" if classifier else "sft"
        raise CheckpointError(f"{run.path} is a run of `launch.py {command}`; resume it with that command")
    return found[-1]


def _model(config: Config, device: Device) -> tuple[str, Config, int]:
    """Check model.path: its directory or hub name, the configuration with the type of its weights, and its context in
    tokens. Raises ModelError, ConfigError."""
    if config.learner.lora_rank:
        raise ConfigError(
            f"learner.lora_rank = {config.learner.lora_rank}: supervised training trains all weights; set it to 0 for "
            "this command"
        )
    path = model_folder(config.model.path, "model.path")
    model = resolve_model(path, config.task, config.run.seed)
    info = inspect_model(model)
    check_vocabulary(model, info, load_tokenizer(model))
    config, notes = resolved_type(config, info, this_machine(), device)
    print(*(note.text for note in notes), sep="\n", end="\n" * bool(notes))
    return model, config, info.context


def _train(
    section: SectionName,
    model: str,
    config: Config,
    arguments: Any,
    rows: Rows,
    run: RunDirectory,
    resumed: Path | None,
    folder: Path,
) -> None:
    """Train, measure on the held-out rows, and write model and tokenizer. Raises ConfigError, DivergenceError."""
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import PrinterCallback
    from transformers.utils.logging import disable_progress_bar
    from trl import RewardTrainer, SFTTrainer

    from learner.models.pretrained import make_savable

    disable_progress_bars()
    disable_progress_bar()
    kind = RewardTrainer if section == "reward_model" else SFTTrainer
    data = {"train_dataset": Dataset.from_list(rows.train), "eval_dataset": Dataset.from_list(rows.held_out)}
    try:
        trainer = kind(model, arguments, **data, processing_class=load_tokenizer(model), callbacks=[_recorder(run)])
    except ValueError as error:
        raise ConfigError(f"{section}.arguments: TRL refuses them: {first_line(error)}") from error
    trainer.remove_callback(PrinterCallback)
    make_savable(trainer.model)
    if resumed is not None:
        keep_lines(run.metrics, "step", int(resumed.name.rpartition("-")[2]))
    trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    loss = trainer.evaluate()["eval_loss"]
    if not math.isfinite(loss):
        raise DivergenceError(f"the held-out loss is {loss}; lower {section}.arguments.learning_rate")
    trainer.model.config.use_cache = True  # TRL trains without
    trainer.model.to(getattr(torch, config.model.dtype))
    trainer.save_model(str(folder))
    (folder / "training_args.bin").unlink()  # paths of this machine


def _recorder(run: RunDirectory) -> Any:
    """A callback that writes TRL's numbers into metrics.jsonl and prints them."""
    from transformers import TrainerCallback

    begun = time.monotonic()

    class Recorder(TrainerCallback):  # type: ignore[misc]
        """A line for everything that TRL logs."""

        def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any], **_: Any) -> None:
            """Write the numbers with the optimizer steps and seconds so far."""
            line = {"step": state.global_step, **logs, "seconds": time.monotonic() - begun}
            with run.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            shown = ", ".join(f"{name} {value:.4g}" for name, value in logs.items() if not name.endswith(UNPRINTED))
            print(f"step {state.global_step}/{state.max_steps}: {shown}", flush=True)

    return Recorder()


def read_dialogues(path: str, split: str, field: str, *columns: str) -> list[list[tuple[str, Messages]]]:
    """The dialogues of each row, one per column, with its place in the file. `field`: what an error names. Raises
    DataError."""
    found = []
    for number, row in enumerate(load_rows(path, split), 1):
        if missing := missing_column(row, [(field, column) for column in columns], f"{path}: row {number}"):
            raise DataError(missing)
        places = [(column, f"{path}: row {number}: column {column!r} ({field})") for column in columns]
        found.append([(where, chat.read_messages(row[column], where)) for column, where in places])
    return found


def hold_out(config: Config, path: str, rows: Mapping[str, Sequence[Row]], evaluated: Set[str]) -> Rows:
    """Training rows and held-out ones, those with the smallest keys, for any seed and order. `rows` of one key (a hash)
    stay together; keys in `evaluated` are not trained on. Raises DataError when no training row is left."""
    ordered = [(key, row) for key in sorted(rows) for row in rows[key]]
    count = min(HELD_OUT, -(-len(ordered) // 10))
    last = ordered[count - 1][0] if ordered else ""  # the other rows of the last held-out key are held out too
    held_out = [row for key, row in ordered if key <= last]
    learned = [row for key, row in ordered if key > last and key not in evaluated]
    skipped = len(ordered) - len(held_out) - len(learned)
    if not learned and skipped:
        raise DataError(
            f"{path}: every row that is not held out is an evaluation problem of task {task_title(config.task)}; lower "
            f"task.eval_problems or give other rows"
        )
    if not learned:
        raise DataError(
            f"{path}: {len(ordered)} rows can be trained on, and {len(held_out)} of them are held out; give more rows, "
            "or raise max_length in the section's arguments"
        )
    if skipped:
        print(f"{path}: {skipped} rows not learned: they are evaluation problems of task {task_title(config.task)}")
    return Rows(learned, held_out)
