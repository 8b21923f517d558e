"""Retrospect from Python: the same as the command line, with a function that watches every iteration.

    import retrospect

    config = retrospect.override(retrospect.load_config("configs/arithmetic.yaml"), ["--run.iterations=10"])
    run = retrospect.train(config, lambda metrics: metrics.evaluation_success > 0.5)
    result = retrospect.evaluate(config, run)

Or with objects: `retrospect.train(config, reward=function, data=rows)`.

Import it before torch: it sets what torch, Ray and vLLM read when they are imported. Outside the main thread Ctrl-C and
SIGTERM are not handled: end the run by the callback there.

In an installed copy this file is the package, and the folders lie in it. It puts the package's folder first on
`sys.path`, so `core` is ours in this process. In your own files `import core` is your own `core`, if you have one:
import `retrospect` before it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if (core := sys.modules.get("core")) and not hasattr(core, "PROGRAM"):
    raise ImportError(f"{core} has the name of one of ours: import retrospect before it")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from commands.boundary import clear_errors
from core.config import Config
from core.imports import separate_projects
from core.load import check_named, load_config, override
from core.startup import set_environment

if TYPE_CHECKING:
    from commands.objects import Reward
    from commands.train import Callback
    from trainer.evaluation.scores import Evaluation

__all__ = ["Config", "evaluate", "load_config", "override", "resume", "train"]

separate_projects()
set_environment()


def train(
    config: Config,
    callback: "Callback | None" = None,
    *,
    reward: "Reward | Sequence[Reward] | None" = None,
    data: Iterable[Mapping[str, Any]] | None = None,
    local: bool = False,
) -> Path:
    """Train a new run and return its folder. `local`: all in this process, without Ray. Errors that you can act on are
    `core.errors.RetrospectError`, of one line.

    `reward`: a function in one of the shapes of docs/data.md instead of `task.reward`, or several, which are summed.
    `data`: rows (a list of dicts, a datasets.Dataset) instead of `task.path`. Unless `config` names a task, it is
    `prompts`, which your reward judges. Both are kept in run.root/inputs, for `resume`.

    `callback` gets the metrics of every iteration (docs/metrics.md). When it returns True, the run saves and ends; its
    policy is then in the folder that `checkpoints/latest` names. Use either `local` or Ray in one process: `local`
    leaves its settings of threads, devices and sockets in the environment, and the memory of its engine in use.
    """
    with clear_errors():
        from commands import train
        from commands.objects import with_objects

        config = with_objects(config, reward, data)
        check_named(config)
        return train.train(config, "run", local, callback).path


def resume(
    run: Path | str,
    callback: "Callback | None" = None,
    *,
    options: Sequence[str] = (),
    local: bool = False,
) -> Path:
    """Continue a run from its last checkpoint, with fields changed by `options` ("--run.iterations=20"); otherwise as
    `train`."""
    with clear_errors():
        from commands import train

        return train.resume(str(run), options, local, callback).path


def evaluate(
    config: Config,
    target: Path | str = "",
    *,
    against: Path | str = "",
    reward: "Reward | Sequence[Reward] | None" = None,
    data: Iterable[Mapping[str, Any]] | None = None,
    local: bool = False,
) -> "Evaluation":
    """Evaluate a run, checkpoint or model (by default model.path) on the held-out problems, and print its numbers.

    `against`: a second one to compare with; the win rate is printed. `reward`, `data`: as `train` got them.
    """
    with clear_errors():
        from commands.evaluate import evaluate_models, recipe_of
        from commands.objects import with_objects

        config = with_objects(config, reward, data)
        check_named(config, "" if target and recipe_of(str(target)) else str(target))
        return evaluate_models(config, str(target), str(against), local=local)
