"""What a user adds in Python, by its import path, also from a project whose folders have the names of ours.

One process has one module `tasks`, and that is ours. A user's `tasks/mine.py` becomes `user_project.tasks.mine`. Which
of them an import means depends on the file that it is in: in a user's file it is the user's if there is one, else ours.
"""

import builtins
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from core import ROOT
from core.errors import ConfigError

MOST = 12  # names that an error lists
PROJECT = "user_project"  # the package of a user's modules that have the names of ours
OURS = frozenset(
    ("actors", "commands", "core", "learner", "monitor", "replay", "tasks", "trainer", "launch")  # as in pyproject.toml
)
"""Names that are ours in every process."""
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")})
_builtin_import = builtins.__import__


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
    try:
        return member(module_with(module, name), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigError(
            f"{field} {path!r}: {type(error).__name__}: {error}; write it as 'module:name', in the folder that you "
            "start from"
        ) from error


def module_with(module: str, name: str) -> ModuleType:
    """The module at this import path: ours if it has this name, else that of the user's project. Raises whatever an
    import raises."""
    separate_projects()
    theirs = _of_project(module)
    if theirs is None:
        return importlib.import_module(module)
    ours = importlib.import_module(module) if _spec(module) else None
    return ours if ours and hasattr(ours, name) else importlib.import_module(theirs)


def separate_projects() -> bool:
    """Let a user's modules be found, apart from ours. Returns whether any has the name of one of ours. For the start of
    a process, and before a user's code is imported; what has changed since an earlier call is taken in. Raises
    ImportError when a user's module was imported by one of our names."""
    for name in OURS & sys.modules.keys():
        file = getattr(sys.modules[name], "__file__", None) or ""
        if not os.path.realpath(file).startswith(f"{ROOT}{os.sep}"):
            raise ImportError(f"{sys.modules[name]} has the name of one of ours: import retrospect before it")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    sys.modules.setdefault(PROJECT, ModuleType(PROJECT)).__path__ = _roots()
    importlib.invalidate_caches()
    clash = any(map(_of_project, OURS))
    if clash and builtins.__import__ is _builtin_import:  # only here: every import statement then goes through it
        builtins.__import__ = _import
        sys.meta_path.insert(0, _Finder())
    return clash


class _Finder(MetaPathFinder):
    """Finds our packages whatever comes before them on `sys.path`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As `importlib` calls it: None leaves a name to others."""
        return PathFinder.find_spec(name, [str(ROOT)], target) if path is None and name in OURS else None


def _roots() -> list[str]:
    """Where a user's modules may lie: the working directory and `sys.path`, without us, copies of us, and libraries."""
    places = dict.fromkeys([os.getcwd(), *(os.path.abspath(path) for path in sys.path)])
    return [
        place
        for place in places
        if not f"{place}{os.sep}".startswith(_LIBRARIES) and not Path(place, "core", Path(__file__).name).exists()
    ]


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`import` in a process where a user's modules have the names of ours."""
    top = name.partition(".")[0]
    if level or top not in OURS or not _is_users(globals) or (theirs := _of_project(name)) is None:
        return _builtin_import(name, globals, locals, fromlist, level)
    if fromlist:
        return _builtin_import(theirs, globals, locals, fromlist)
    importlib.import_module(theirs)
    return sys.modules[f"{PROJECT}.{top}"]


def _is_users(importer: Mapping[str, object] | None) -> bool:
    """Whether a module with these globals is a user's: neither ours nor a library's."""
    importer = importer or {}
    file = importer.get("__file__")
    if not isinstance(file, str):
        return importer.get("__name__") == "__main__"  # a prompt, a notebook or `python -c`
    file = os.path.abspath(file)
    part = file.removeprefix(f"{ROOT}{os.sep}").partition(os.sep)[0].removesuffix(".py")
    ours = file.startswith(f"{ROOT}{os.sep}") and part in OURS
    return not ours and not file.startswith(_LIBRARIES)


def _of_project(module: str) -> str | None:
    """The name under which the user's module can be imported, if it has the name of one of ours and exists."""
    theirs = f"{PROJECT}.{module}"
    return theirs if module.partition(".")[0] in OURS and _spec(theirs) else None


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is; None if it does not exist. Imports its parents, and raises what they raise."""
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return None
        raise
