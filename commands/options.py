"""All commands: what each runs, its description, and its options besides the fields of the configuration.

Invariant: nothing here imports an engine or a model library, so a typo is reported at once.
"""

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from core import PROGRAM
from core.config import Config
from core.load import OptionParser, check_named, load_config, override
from core.sections.base import LARGEST


def read_options(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """The options given to a command. --help ends here. Raises ConfigError, also for a wrong recipe or field."""
    options = command_parser(command).read(arguments)
    if COMMANDS[command].fields:
        override(load_config(*options.config), options.fields)
    return options


def command_parser(command: str) -> OptionParser:
    """The parser of a command's options."""
    chosen = COMMANDS[command]
    parser = OptionParser(command, chosen.about, chosen.fields)
    parser.set_defaults(local=False)
    if chosen.fields:
        about = "recipe; given several times, a later one changes fields of the earlier ones"
        parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=about)
    for add in chosen.options:
        add(parser)
    return parser


def configuration(options: argparse.Namespace, *recipe: Path, model: str = "", rows: Sequence[str] = ()) -> Config:
    """The defaults, changed by each --config (or else by `recipe`), then by the fields in `options`. Raises
    ConfigError, also where they name no model or no task (`model`, `rows`: as in `check_named`)."""
    config = override(load_config(*options.config or recipe), options.fields)
    check_named(config, model, rows)
    return config


def _whole(most: int, least: int = 0) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`."""

    def _read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"give a whole number from {least} to {most}, not {text[:20]!r}")
        return int(text)

    return _read


def _run_directory(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("give a run directory, not an empty text")
    return text


def _resume(parser: OptionParser) -> None:
    about = "continue this run from its last checkpoint; train: also its URI"
    parser.add_argument("--resume", type=_run_directory, metavar="RUN", help=about)


def _engines(parser: OptionParser) -> None:
    parser.add_argument("--local", action="store_true", help="everything in this one process, without Ray (debugging)")


def _evaluate(parser: OptionParser) -> None:
    parser.set_defaults(target="")
    either = parser.add_mutually_exclusive_group()
    about = "run, checkpoint or model (default: model.path)"
    either.add_argument("target", nargs="?", default=argparse.SUPPRESS, help=about)
    either.add_argument("--checkpoint", dest="target", default=argparse.SUPPRESS, metavar="PATH", help="the same")
    parser.add_argument("--against", default="", metavar="PATH", help="a second one to compare with: win rate")
    parser.add_argument("--responses", type=Path, metavar="FILE", help=".jsonl or .parquet for all responses")
    parser.add_field("--task", "task.name", metavar="NAME", help="short for --task.name")


def _check(parser: OptionParser) -> None:
    parser.add_argument("--all", action="store_true", help="print every field, not only those that were changed")
    parser.add_argument("--offline", action="store_true", help="leave out model, data and cluster")
    about = "plan for a cluster of so many GPUs (their memory: --cluster.gpu_memory)"
    parser.add_argument("--gpus", type=_whole(LARGEST), metavar="COUNT", help=about)


def _replay(parser: OptionParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, running or not")
    parser.add_argument("--problem", metavar="ID", help="states of this problem only")
    parser.add_argument("--provenance", metavar="KIND", help="own_failed, own_partial, own_successful or canonical")
    parser.add_argument(
        "--depth", type=_whole(LARGEST), nargs=2, metavar=("FROM", "TO"), help="prefix length in tokens"
    )
    parser.add_argument("--top", type=_whole(LARGEST, 1), default=3, help="states shown per problem (default: 3)")
    parser.add_argument("--problems", type=_whole(LARGEST, 1), default=5, help="problems shown (default: 5)")
    parser.add_argument("--export", metavar="FILE", help="write all matching states as one Parquet file")


def _inspect(parser: OptionParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, running or not")
    parser.add_argument("--port", type=_whole(65535), default=0, help="port on loopback (default: any free one)")


def _runs(parser: OptionParser) -> None:
    about = "folder of the run directories (default: runs)"
    parser.add_argument("root", type=Path, nargs="?", default=Path("runs"), help=about)


def _report(parser: OptionParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory, finished, stopped or running")
    about = "one page for all runs (default for several: report.html)"
    parser.add_argument("--output", type=Path, metavar="FILE", help=about)


def _export(parser: OptionParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, finished, stopped or running")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="an empty folder, or hub:OWNER/NAME")
    parser.add_argument("--public", action="store_true", help="hub: make a new repository public (default: private)")


class Command(NamedTuple):
    """One command of `launch.py`."""

    function: str  # import path 'module:function'; it gets the options and returns the exit status
    arguments: str  # in the overview
    about: str
    options: Sequence[Callable[[OptionParser], None]] = ()  # functions that add its own options
    fields: bool = True  # whether it takes a configuration

    def load(self) -> Callable[[argparse.Namespace], int]:
        """Import the function, with the libraries that it needs."""
        module, _, name = self.function.partition(":")
        run: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(module), name)
        return run


COMMANDS: Mapping[str, Command] = {
    "train": Command(
        "commands.train:train_recipe",
        "[--config FILE | --resume RUN]",
        "Train a recipe, or continue a run.",
        [_resume, _engines],
    ),
    "evaluate": Command(
        "commands.evaluate:evaluate_target",
        "RUN|CHECKPOINT|MODEL [--against B]",
        "Evaluate a model on held-out problems (--config: by default its run's).",
        [_evaluate, _engines],
    ),
    "sft": Command(
        "commands.sft:fine_tune",
        "--config FILE",
        "Fine-tune model.path on canonical solutions or dialogues.",
        [_resume],
    ),
    "reward-model": Command(
        "commands.reward_model:train_reward_model",
        "--config FILE",
        "Train a reward model on preference pairs.",
        [_resume],
    ),
    "check": Command(
        "commands.check:check_recipe",
        "--config FILE [--offline] [--gpus COUNT] [--all]",
        "Check a recipe without training.",
        [_check],
    ),
    "replay": Command(
        "commands.replay:show_states", "RUN", "Show or export the states of a run's replay store.", [_replay], False
    ),
    "inspect": Command(
        "commands.inspect:inspect_run",
        "RUN",
        "Show a run's replay store in a browser, live, and what the run did with each of its problems: visits, depths "
        "of the replayed states, first success from the root and at all.",
        [_inspect],
        False,
    ),
    "runs": Command("commands.runs:list_runs", "[ROOT]", "List the runs of a folder.", [_runs], False),
    "report": Command(
        "commands.report:report_runs",
        "RUN...",
        "Summarise runs and write them as one page; several are compared.",
        [_report],
        False,
    ),
    "export": Command(
        "commands.export:export_run",
        "RUN --to FOLDER|hub:OWNER/NAME",
        "Export a run's policy with its tokenizer and a model card.",
        [_export],
        False,
    ),
}
"""All commands by name: whoever lists, explains or runs commands reads them here."""


def overview() -> str:
    """All commands, one per line."""
    calls = {f"{name} {command.arguments}": command.about for name, command in COMMANDS.items()}
    return "\n".join(f"    {PROGRAM} {call:<44} {about}" for call, about in calls.items())
