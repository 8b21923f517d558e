"""What a user adds in Python, by its import path."""

import importlib
import os
import sys
from typing import Any

from core.errors import ConfigError


def imported(field: str, path: str) -> Any:
    """The object at an import path 'module:name', also in the working directory. Raises ConfigError."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigError(
            f"{field} {path!r}: {type(error).__name__}: {error}; write it as 'module:name', in the folder that you "
            "start from"
        ) from error
