"""The description of each command, and its options besides the fields of the configuration.

Invariant: nothing here imports an engine or a model library, so a mistyped option is reported at once.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import core
from core.command_line import OptionParser
from core.config import Config
from core.load import load_config, override

DEFAULT = Path(core.__file__).parents[1] / "configs" / "demo.yaml"
"""The recipe without --config. Its path is relative to a package, because `ray submit` copies only launch.py."""


def read_options(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """The options given to a command; `fields` are those of the configuration. --help ends here. Raises ConfigError."""
    return command_parser(command).read(arguments)


def command_parser(command: str) -> OptionParser:
    """The parser of a command's options."""
    about, fields, adders = COMMANDS[command]
    parser = OptionParser(command, about, fields)
    parser.set_defaults(local=False)
    if fields:
        parser.add_argument("--config", type=Path, metavar="FILE", help="recipe (default: configs/demo.yaml)")
    for add in adders:
        add(parser)
    return parser


def configuration(options: argparse.Namespace, recipe: Path = DEFAULT) -> Config:
    """The defaults, changed by --config (or else by `recipe`), then by the fields in `options`. Raises ConfigError."""
    return override(load_config(options.config or recipe), options.fields)


def _resume(parser: OptionParser) -> None:
    parser.add_argument(
        "--resume", metavar="RUN", help="continue this run from its last checkpoint; train: also its URI"
    )


def _engines(parser: OptionParser) -> None:
    parser.add_argument("--local", action="store_true", help="everything in this one process, without Ray (debugging)")


def _evaluate(parser: OptionParser) -> None:
    parser.set_defaults(target="")
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "target", nargs="?", default=argparse.SUPPRESS, help="run, checkpoint or model (default: model.path)"
    )
    one.add_argument("--checkpoint", dest="target", default=argparse.SUPPRESS, metavar="PATH", help="the same")
    parser.add_argument("--against", default="", metavar="PATH", help="a second one to compare with: win rate")
    parser.add_argument("--responses", type=Path, metavar="FILE", help=".jsonl or .parquet for all responses")
    parser.add_field("--task", "task.name", metavar="NAME", help="short for --task.name")


def _check(parser: OptionParser) -> None:
    parser.add_argument("--offline", action="store_true", help="leave out model, data and cluster")


def _replay(parser: OptionParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, running or not")
    parser.add_argument("--problem", metavar="ID", help="states of this problem only")
    parser.add_argument("--provenance", metavar="KIND", help="own_failed, own_successful or canonical")
    parser.add_argument("--depth", type=int, nargs=2, metavar=("FROM", "TO"), help="prefix length in tokens")
    parser.add_argument("--top", type=int, default=3, help="states shown per problem (default: 3)")
    parser.add_argument("--problems", type=int, default=5, help="problems shown (default: 5)")
    parser.add_argument("--export", metavar="FILE", help="write all matching states as one Parquet file")


def _inspect(parser: OptionParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, running or not")
    parser.add_argument("--port", type=int, default=0, help="port on loopback (default: any free one)")


def _runs(parser: OptionParser) -> None:
    parser.add_argument(
        "root", type=Path, nargs="?", default=Path("runs"), help="folder of the run directories (default: runs)"
    )


def _report(parser: OptionParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory, finished, stopped or running")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="page of several runs (default: report.html)",
    )


def _export(parser: OptionParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, finished, stopped or running")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="an empty folder, or hub:OWNER/NAME")
    parser.add_argument("--public", action="store_true", help="hub: make a new repository public (default: private)")


COMMANDS: Mapping[str, tuple[str, bool, Sequence[Callable[[OptionParser], None]]]] = {
    "train": ("Train a recipe, or continue a run.", True, [_resume, _engines]),
    "evaluate": (
        "Evaluate a model on held-out problems (--config: by default its run's).",
        True,
        [_evaluate, _engines],
    ),
    "sft": ("Fine-tune model.path on canonical solutions or dialogues.", True, [_resume]),
    "reward-model": ("Train a reward model on preference pairs.", True, [_resume]),
    "check": ("Check a recipe without training.", True, [_check]),
    "replay": ("Show or export the states of a run's replay store.", False, [_replay]),
    "inspect": ("Show a run's replay store in a browser, live.", False, [_inspect]),
    "runs": ("List the runs of a folder.", False, [_runs]),
    "report": ("Summarise runs and write them as one page; several are compared.", False, [_report]),
    "export": ("Export a run's policy with its tokenizer and a model card.", False, [_export]),
}
"""Command -> its description, whether it takes a configuration, and the functions that add its own options."""
