"""The command line: `python launch.py COMMAND ...`. The commands are in `commands/options.py`."""

import difflib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from commands.boundary import printable_output, status_of
from core import PROGRAM
from core.errors import ConfigError
from core.interruption import INTERRUPTED
from core.startup import set_environment, without_gc

HELP = f"""
Every field of the configuration is an option: `{PROGRAM} COMMAND --help`.
`--version` prints what is installed; `--traceback` shows where an error came from."""


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit status: 0 done, 1 a defect, 2 a user error, 130 interrupted. `--traceback` lets
    an exception through."""
    printable_output()
    given = [argument for argument in arguments if argument != "--traceback"]
    try:
        status = _run(given)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        resumes = given[:1] == ["train"]
        hint = f"; `{PROGRAM} train --resume RUN` continues from the last checkpoint" if resumes else ""
        print(f"interrupted{hint}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if len(given) < len(arguments):
            raise
        return status_of(error)


def _check_folder() -> None:
    """Raises ConfigError where the working directory was deleted: every relative path would be a riddle."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the folder that this was started in is gone; go to another one") from None


def _run(arguments: Sequence[str]) -> int:
    _check_folder()
    if not arguments or arguments[0] in ("-h", "--help"):
        from commands.options import overview

        print(overview(), HELP, sep="\n")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from core.run_directory import collect_versions

        print("\n".join(f"{name} {version}" for name, version in collect_versions().items()))
        return 0
    name, *rest = arguments
    signal.signal(signal.SIGTERM, _interrupt)
    from commands.options import COMMANDS, read_options

    if name not in COMMANDS:
        near = [f"; the nearest is {command!r}" for command in difflib.get_close_matches(name, COMMANDS, n=1)]
        raise ConfigError(f"unknown command {name!r}{''.join(near)}; name one of {', '.join(COMMANDS)}")
    options = read_options(name, rest)  # before libraries are imported, so that a typo is reported at once
    set_environment()
    with without_gc():
        command = COMMANDS[name].load()
    return command(options)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a signal handler)
    """Handle termination (`ray job stop`) like an interrupt from the keyboard, so that a run closes its parts."""
    raise KeyboardInterrupt


def run() -> None:
    """The console script `retrospect`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
