"""The command line: `python launch.py COMMAND ...`. The commands are in `commands/options.py`."""

import difflib
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from core import PROGRAM
from core.errors import ConfigError, RetrospectError
from core.interruption import INTERRUPTED
from core.startup import set_environment, without_gc

HELP = f"""
Every field of the configuration is an option: `{PROGRAM} COMMAND --help`.
`--version` prints what is installed."""


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit status: 0 done, 2 a user error, 130 interrupted."""
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
    try:
        from commands.options import COMMANDS, read_options

        if name not in COMMANDS:
            (near,) = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.0)
            raise ConfigError(f"unknown command {name!r}; the nearest is {near!r} (of {', '.join(COMMANDS)})")
        options = read_options(name, rest)  # before libraries are imported, so that a typo is reported at once
        set_environment()
        with without_gc():
            command = COMMANDS[name].load()
        return command(options)
    except RetrospectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = f"; `{PROGRAM} train --resume RUN` continues from the last checkpoint" if name == "train" else ""
        print(f"interrupted{hint}", file=sys.stderr)
        return INTERRUPTED


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a signal handler)
    """Handle termination (`ray job stop`) like an interrupt from the keyboard, so that a run closes its parts."""
    raise KeyboardInterrupt


def run() -> None:
    """The console script `retrospect`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
