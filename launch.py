"""The command line: train, evaluate, check, replay, report. Wiring only.

    python launch.py train                                     the CPU default (configs/demo.yaml)
    python launch.py train --config FILE --replay.ratio 0.25   a recipe with changes
    python launch.py train --resume RUN                        go on from RUN's last checkpoint (fields may be changed)
    python launch.py evaluate RUN|CHECKPOINT|MODEL             accuracy, pass@k, maj@k on held-out problems
    python launch.py evaluate A --against B                    win rate of one model against another
    python launch.py sft --config FILE                         supervised fine-tuning: a warm start
    python launch.py reward-model --config FILE                train a reward model on preference pairs
    python launch.py check --config FILE [--offline]           everything that can be known before training
    python launch.py replay RUN                                the states in a run's replay store, as text or Parquet
    python launch.py report RUN                                what a run has reached so far; draws its curves.png anew

Every field of the configuration is an option; `python launch.py train --help` explains them all.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, get_origin

import core
from core.config import Config
from core.errors import ConfigError, RetrospectError
from core.load import load_config, override
from core.run_directory import RunDirectory
from core.startup import uncollected, waiting

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

DEFAULT = Path(core.__file__).parents[1] / "configs" / "demo.yaml"  # not beside this file: `ray submit` copies it alone
INTERRUPTED = 130  # exit status of a program stopped by a signal


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit status: 0 done, 2 an error of the user's, 130 interrupted."""
    commands = {
        "train": train,
        "evaluate": evaluate,
        "sft": sft,
        "reward-model": reward_model,
        "check": check,
        "replay": replay,
        "report": report,
    }
    if not arguments or arguments[0] not in commands:
        print(__doc__)
        return 0 if arguments[:1] in (["--help"], ["-h"]) else 2
    signal.signal(signal.SIGTERM, interrupt)
    try:
        return commands[arguments[0]](arguments[1:])
    except RetrospectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "; `python launch.py train --resume RUN` goes on from the last checkpoint"
        print(f"interrupted{hint if arguments[0] == 'train' else ''}", file=sys.stderr)
        return INTERRUPTED


def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a signal handler)
    """A terminated run (`ray job stop`) closes its parts like one that was interrupted from the keyboard."""
    raise KeyboardInterrupt


def parse(own: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own options with --config, and what is left: options of single fields."""
    own.add_argument("--config", type=Path, default=None, metavar="FILE", help="recipe (default: configs/demo.yaml)")
    return own.parse_known_args(arguments)


def resolve(command: str, base: Path, fields: Sequence[str], own: argparse.ArgumentParser) -> Config:
    """The configuration: defaults, then the file `base`, then single fields; --help ends here. Raises ConfigError."""
    config = load_config(base)
    if {"--help", "-h"} & set(fields):
        show_help(command, config, own)
    return override(config, fields)


def show_help(command: str, base: Config, own: argparse.ArgumentParser) -> NoReturn:
    """Explain the command and every field with the recipe's values as defaults, and exit."""
    import tyro

    about = f"python launch.py {command}\n{own.format_help().partition('options:')[2] or own.format_help()}"
    tyro.cli(
        Config,
        default=base,
        args=["--help"],
        prog=f"launch.py {command}",
        description=about,
        registry=mappings_as_json(),
    )
    sys.exit(0)


def mappings_as_json() -> "ConstructorRegistry":
    """How --help shows fields that are mappings; without it tyro leaves empty ones out."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
        if get_origin(info.type) is not dict:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="JSON",
            instance_from_str=lambda texts: json.loads(texts[0]),
            is_instance=lambda given: isinstance(given, dict),
            str_from_instance=lambda given: [json.dumps(given)],
        )

    return registry


def options() -> argparse.ArgumentParser:
    """A parser for a command's own options; --help is left to the parser of the fields."""
    return argparse.ArgumentParser(add_help=False, allow_abbrev=False)


def running_options() -> argparse.ArgumentParser:
    """The options of the commands that start engines."""
    own = options()
    own.add_argument("--local", action="store_true", help="everything in this one process, without Ray (debugging)")
    own.add_argument("--engine", default=None, choices=("vllm", "hf"), help="short for --rollout.engine")
    return own


def with_engine(engine: str | None, fields: list[str]) -> list[str]:
    """Options of single fields, with --engine among them under its whole name."""
    return fields if engine is None else [*fields, "--rollout.engine", engine]


def train(arguments: Sequence[str]) -> int:
    """Train a recipe, or resume a run."""
    own = running_options()
    own.add_argument("--resume", type=Path, default=None, metavar="RUN", help="run directory to go on with")
    known, fields = parse(own, arguments)
    fields = with_engine(known.engine, fields)
    if known.local:
        os.environ |= waiting()  # read with torch's import
    with uncollected():
        from commands import train as commands

    if known.resume is not None:
        if known.config is not None:
            raise ConfigError("--resume takes the run's own configuration; leave out --config, or change single fields")
        return commands.resume(known.resume, fields, known.local)
    recipe = known.config or DEFAULT
    return commands.train(resolve("train", recipe, fields, own), recipe.stem, known.local)


def evaluate(arguments: Sequence[str]) -> int:
    """Evaluate a run, checkpoint or model (the first argument; default: model.path) on held-out problems.

    The configuration is that of --config, or of the run that the checkpoint lies in, or the default recipe.
    """
    given = bool(arguments) and not arguments[0].startswith("-")
    target = arguments[0] if given else ""
    own = running_options()
    own.add_argument("--checkpoint", default="", metavar="PATH", help="the same as the first argument")
    own.add_argument("--task", default=None, metavar="NAME", help="short for --task.name")
    own.add_argument("--against", default="", metavar="PATH", help="run, checkpoint or model to compare with: win rate")
    own.add_argument(
        "--responses", type=Path, default=None, metavar="FILE", help=".jsonl or .parquet for all responses"
    )
    known, fields = parse(own, arguments[given:])
    if known.checkpoint and target:
        raise ConfigError(f"evaluate: both {target!r} and --checkpoint name what to evaluate; leave one out")
    if known.local:
        os.environ |= waiting()  # read with torch's import
    from commands import evaluate as evaluation
    from trainer.model_files import run_of

    target = target or known.checkpoint
    run = run_of(Path(target)) if target else None
    base = known.config or (run.config if run else DEFAULT)
    named = [] if known.task is None else ["--task.name", known.task]
    fields = with_engine(known.engine, fields)
    config = resolve("evaluate", base, [*named, *fields], own)
    return evaluation.run(config, target, known.against, known.responses, known.local)


def sft(arguments: Sequence[str]) -> int:
    """Fine-tune model.path on canonical solutions or dialogues, or resume such a run."""
    from commands import sft as command

    own = options()
    own.add_argument("--resume", type=Path, default=None, metavar="RUN", help="run directory to go on with")
    known, fields = parse(own, arguments)
    if known.resume is not None:
        return command.resume(known.resume, fields)
    return command.run(resolve("sft", known.config or DEFAULT, fields, own), "sft")


def reward_model(arguments: Sequence[str]) -> int:
    """Train a reward model on preference pairs, or resume such a run."""
    from commands import reward_model as command

    own = options()
    own.add_argument("--resume", type=Path, default=None, metavar="RUN", help="run directory to go on with")
    known, fields = parse(own, arguments)
    if known.resume is not None:
        return command.resume(known.resume, fields)
    return command.run(resolve("reward-model", known.config or DEFAULT, fields, own), "reward-model")


def check(arguments: Sequence[str]) -> int:
    """Check a recipe without training."""
    from commands.check import print_check

    own = options()
    own.add_argument(
        "--offline", action="store_true", help="check nothing that needs a network, data, model or cluster"
    )
    known, fields = parse(own, arguments)
    print_check(resolve("check", known.config or DEFAULT, fields, own), known.offline)
    return 0


def replay(arguments: Sequence[str]) -> int:
    """Show or export the states of a run's replay store."""
    from commands import replay as browse

    own = argparse.ArgumentParser(prog="launch.py replay", description=browse.__doc__)
    own.add_argument("run", type=Path, help="run directory, running or not")
    own.add_argument("--problem", default=None, metavar="ID", help="states of this problem only")
    own.add_argument("--provenance", default=None, help="own_failed, own_successful or canonical")
    own.add_argument("--depth", type=int, nargs=2, default=None, metavar=("FROM", "TO"), help="prefix length in tokens")
    own.add_argument("--top", type=int, default=3, help="states shown per problem (default: 3)")
    own.add_argument("--problems", type=int, default=5, help="problems shown (default: 5)")
    own.add_argument("--export", default=None, metavar="FILE", help="write all matching states as one Parquet file")
    known = own.parse_args(arguments)
    depth = None if known.depth is None else (known.depth[0], known.depth[1])
    chosen = browse.Filter(known.problem, known.provenance, depth)
    return browse.replay(known.run, chosen, known.top, known.problems, known.export)


def report(arguments: Sequence[str]) -> int:
    """Summarise a run and draw its curves."""
    from monitor import report as reports

    own = argparse.ArgumentParser(prog="launch.py report", description=report.__doc__)
    own.add_argument("run", type=Path, help="run directory, finished, stopped or running")
    reports.print_report(RunDirectory.open(own.parse_args(arguments).run))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
