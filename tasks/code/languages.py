"""The languages that a program may be written in.

Called by `tasks/code/formats.py` (rows) and `tasks/code/sandbox.py`. Python runs in a copy of the sandbox's own interpreter. Another
language is a file name and two commands, which run in the sandbox's working directory.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.errors import DataError


@dataclass(frozen=True, slots=True)
class Language:
    """How to run a program of another language than Python."""

    file: str  # name of the source file
    compile: tuple[str, ...]  # command that makes `program`; empty: none
    run: tuple[str, ...]
    # whether its runtime reserves far more addresses than memory, so that its limit counts only what it can write to
    reserves: bool = False


LANGUAGES: Mapping[str, Language | None] = {
    "python": None,
    "cpp": Language("program.cpp", ("g++", "-std=c++17", "-O2", "-o", "program", "program.cpp"), ("./program",)),
    "javascript": Language("program.js", (), ("node", "program.js"), reserves=True),
}


def find_language(name: str) -> Language | None:
    """The language with its commands as full paths; None: Python. Raises DataError when it is unknown or not installed."""
    if name not in LANGUAGES:
        raise DataError(f"language {name!r} is not known; use one of {', '.join(LANGUAGES)}")
    language = LANGUAGES[name]
    return language and replace(language, compile=_found(name, language.compile), run=_found(name, language.run))


def _found(name: str, command: tuple[str, ...]) -> tuple[str, ...]:
    if not command or command[0].startswith("./"):
        return command
    path = shutil.which(command[0], path="/usr/bin:/usr/local/bin")  # what the sandbox has
    if path is None:
        raise DataError(
            f"language {name!r} needs {command[0]}, which is not in /usr/bin; install it or leave its rows out"
        )
    return (path, *command[1:])
