"""What a user adds in Python, by its import path."""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from core.errors import ConfigError

MOST = 12  # names that an error lists


def member(home: ModuleType, name: str) -> Any:
    """What a module has under this name. Raises AttributeError that lists the functions and classes that it defines."""
    try:
        return getattr(home, name)
    except AttributeError as error:
        found = [
            known
            for known, what in vars(home).items()
            if callable(what) and getattr(what, "__module__", "") == home.__name__ and not known.startswith("_")
        ]
        raise AttributeError(f"{error}; it defines {', '.join(found[:MOST]) or 'no function or class'}") from None


def imported(field: str, path: str) -> Any:
    """The object at an import path 'module:name', also in the working directory. Raises ConfigError."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return member(importlib.import_module(module), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigError(
            f"{field} {path!r}: {type(error).__name__}: {error}; write it as 'module:name', in the folder that you "
            "start from"
        ) from error
