"""A reward function and rows that a Python program hands to `retrospect.train`, as files that the run's processes read.

Invariant: the files are named by their content, so a resumed or evaluated run finds the same problems and reward."""

import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from core.config import Config, RewardConfig
from core.errors import ConfigError, DataError, first_line
from core.run_directory import write_atomically

Reward = Callable[..., Any]
FOLDER = "inputs"  # below run.root


def with_objects(
    config: Config, reward: Reward | Sequence[Reward] | None, data: Iterable[Mapping[str, Any]] | None
) -> Config:
    """The configuration with the user's reward (or several, summed) and rows. Without a name the task is `prompts`, and
    a tenth of the rows is held out (at most 256). Raises ConfigError, DataError."""
    if not isinstance(config, Config):
        raise ConfigError(f"config is {type(config).__name__}; give a retrospect.Config, as of load_config or override")
    task, folder = config.task, (config.run.root / FOLDER).expanduser().resolve()
    changed: dict[str, Any] = {}
    if reward is not None:
        functions = list(reward) if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
        if wrong := next((one for one in functions if not callable(one)), None):
            raise ConfigError(f"reward is {wrong!r}; give a function, or several in a list")
        changed |= {"reward": "", "rewards": _rewards(functions, folder)}
    if data is not None:
        path, count = _write_rows(data, folder)
        changed |= {"path": path, "sources": ()}
        if not {"eval_problems", "eval_path"} & task.model_fields_set:
            changed["eval_problems"] = min(task.eval_problems, max(1, count // 10))
    if changed and "name" not in task.model_fields_set and not task.sources:
        changed["name"] = "prompts"
    return config.model_copy(update={"task": task.model_copy(update=changed)})


def _rewards(functions: Sequence[Reward], folder: Path) -> tuple[RewardConfig, ...]:
    labels = [getattr(one, "__name__", type(one).__name__).strip("<>") for one in functions]
    return tuple(
        RewardConfig(name=_import_path(one, folder), label=label if labels.count(label) == 1 else f"{label}_{number}")
        for number, (one, label) in enumerate(zip(functions, labels, strict=True), 1)
    )


def _import_path(function: Reward, folder: Path) -> str:
    """'module:name' of a function that any process can import from the working directory, else of its copy in a
    file."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    home = sys.modules.get(module)
    file = Path(getattr(home, "__file__", None) or "none")
    if file.with_suffix("") == Path(os.getcwd(), *module.split(".")) and getattr(home, name, None) is function:
        return f"{module}:{name}"
    if home is not None and module != "__main__" and file.suffix == ".py" and "site-packages" not in file.parts:
        cloudpickle.register_pickle_by_value(home)  # a process elsewhere cannot import it
    try:
        content = base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as error:  # pickling runs the code of what the function refers to
        raise ConfigError(f"reward {name or function!r} cannot be sent to a judge: {first_line(error)}") from error
    return f"tasks.rewards.pickled:{_keep(folder, 'reward', '.pkl', content)}"


def _write_rows(data: Iterable[Mapping[str, Any]], folder: Path) -> tuple[str, int]:
    """Write rows (a list of dicts, a datasets.Dataset); returns the file's path and how many they are."""
    lines = []
    if isinstance(data, str | Path | Mapping) or not isinstance(data, Iterable):
        raise DataError(
            f"data is {type(data).__name__}; give a list of dicts or a datasets.Dataset (task.path for files)"
        )
    for number, row in enumerate(data, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"data: row {number} is {type(row).__name__}; give a dict of columns")
        try:
            lines.append(json.dumps(dict(row), default=_plain))
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"data: row {number}: {first_line(error)}; give texts, numbers, lists and dicts") from None
    if not lines:
        raise DataError("data has no rows; give at least two")
    return _keep(folder, "rows", ".jsonl", "\n".join([*lines, ""])), len(lines)


def _plain(cell: Any) -> Any:
    """A cell that JSON does not know: an array or number of numpy, as of pandas, by its values, others as text."""
    return cell.tolist() if hasattr(cell, "tolist") else str(cell)


def _keep(folder: Path, kind: str, suffix: str, content: str) -> str:
    """Write a file that is named by its content; returns its path."""
    path = folder / f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:16]}{suffix}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return str(path)
