"""The command line.

    python launch.py train                                     the CPU default (configs/arithmetic.yaml)
    python launch.py train --config FILE --replay.ratio 0.25   a recipe with changes
    python launch.py train --resume RUN                        continue from RUN's last checkpoint (fields may be changed)
    python launch.py evaluate RUN|CHECKPOINT|MODEL             accuracy, pass@k, maj@k on held-out problems
    python launch.py evaluate A --against B                    win rate of one model against another
    python launch.py sft --config FILE                         supervised fine-tuning: a warm start
    python launch.py reward-model --config FILE                train a reward model on preference pairs
    python launch.py check --config FILE [--offline]           all checks that are possible before training
    python launch.py replay RUN                                the states in a run's replay store, as text or Parquet
    python launch.py inspect RUN                               the same in a browser, live, on this machine only
    python launch.py runs [ROOT]                               the runs of a folder: state, step, success, size
    python launch.py report RUN...                             results so far, as text and as one page; several are compared
    python launch.py export RUN --to FOLDER|hub:OWNER/NAME     the policy with its tokenizer and a model card
    python launch.py completion bash|zsh                       the script that completes the console script `retrospect`

Every field of the configuration is an option: `python launch.py COMMAND --help`. `--version` prints what is installed.
"""

import difflib
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from types import FrameType

from core.errors import ConfigError, RetrospectError
from core.interruption import INTERRUPTED
from core.startup import set_environment, without_gc


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit status: 0 done, 2 a user error, 130 interrupted."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from core.run_directory import collect_versions

        print("\n".join(f"{name} {version}" for name, version in collect_versions().items()))
        return 0
    name, *rest = arguments
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        from commands.options import COMMANDS, read_options

        if name not in COMMANDS:
            (near,) = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.0)
            raise ConfigError(f"unknown command {name!r}; the nearest is {near!r} (of {', '.join(COMMANDS)})")
        options = read_options(name, rest)  # before libraries are imported, so that a typo is reported at once
        set_environment()
        with without_gc():
            command = _command(name)
        return command(options)
    except RetrospectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "; `python launch.py train --resume RUN` continues from the last checkpoint" if name == "train" else ""
        print(f"interrupted{hint}", file=sys.stderr)
        return INTERRUPTED


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a signal handler)
    """Handle termination (`ray job stop`) like an interrupt from the keyboard, so that a run closes its parts."""
    raise KeyboardInterrupt


def _command(name: str) -> Callable[[Namespace], int]:
    """Import a command with the libraries that it needs."""
    match name:
        case "train":
            return _train
        case "evaluate":
            from commands.evaluate import evaluate_target as command
        case "sft":
            from commands.sft import fine_tune as command
        case "reward-model":
            from commands.reward_model import train_reward_model as command
        case "check":
            from commands.check import check_recipe as command
        case "replay":
            from commands.replay import show_states as command
        case "inspect":
            from commands.inspect import inspect_run as command
        case "runs":
            from commands.runs import list_runs as command
        case "export":
            from commands.export import export_run as command
        case "completion":
            from commands.completion import print_completion as command
        case _:
            from commands.report import report_runs as command
    return command


def _train(options: Namespace) -> int:
    from commands.options import DEFAULT, configuration

    if options.resume and options.config:
        raise ConfigError("--resume takes the run's own configuration; leave out --config, or change single fields")
    config = None if options.resume else configuration(options)
    with without_gc():
        from commands.train import resume, train
    if config is None:
        resume(options.resume, options.fields, options.local)
    else:
        train(config, (options.config or DEFAULT).stem, options.local)
    return 0


def run() -> None:
    """The console script `retrospect`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
