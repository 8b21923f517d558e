"""The configuration from YAML files and command-line options: reads both, explains the fields, names the nearest for a
typo. Every error is one line that names the field and says what to do.

Invariant: an option is `--` and the field's dotted name in a recipe; hyphens count as underscores.
"""

import argparse
import difflib
import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from core import PROGRAM, ROOT
from core.config import Config, PartConfig, RewardConfig
from core.errors import ConfigError
from core.files import read_whole
from core.sections.base import closest, unnameable
from core.sections.meanings import MEANINGS, WITHOUT

RARELY_MEANT = ("evaluation.", "sft.", "reward_model.")
"""A field name without its section is looked up in these sections last, except in the section's own command."""
LARGEST_RECIPE = 16 * 2**20  # bytes
MOST_VALUES = 1_000_000  # of a recipe, its aliases written out
_Formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=40)
AnyConfig = TypeVar("AnyConfig", bound=Config)
KINDS = {int: "INT", float: "FLOAT", bool: "BOOL", str: "TEXT", Path: "PATH", date: "DATE"}


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


FIELDS: Mapping[str, FieldInfo] = dict(_leaves(Config))
"""Every field by its dotted name: 'run.seed', 'task.columns.prompt', ..."""


def explained(field: FieldInfo) -> str:
    """The text below a field, in one line."""
    return " ".join((field.description or "").split())


class OptionParser(argparse.ArgumentParser):
    """Parses fields into `fields`, a list of '--section.field=value', and the options that a command adds."""

    def __init__(self, command: str = "", about: str = "", fields: bool = True) -> None:
        """`fields`: False for a command that takes no configuration."""
        prog = f"{PROGRAM} {command}"
        super().__init__(prog, description=about, add_help=False, allow_abbrev=False, formatter_class=_Formatter)
        self._section = command.replace("-", "_")
        self.set_defaults(fields=[])
        self.add_argument(
            "-h", "--help", action=_Help, nargs="?", metavar="SECTION", help="this text, or a section's fields"
        )
        if fields:
            self.epilog = overview()
            for name in FIELDS:
                self.add_field(f"--{name}", name)

    def add_field(self, option: str, name: str, **shown: str) -> None:
        """An option that sets the field `name`; `shown`: metavar and help, without which --help leaves it out."""
        template = f"--{name}={{}}"
        shown = shown or {"help": argparse.SUPPRESS}
        self.add_argument(option, dest="fields", action="append", type=template.format, **shown)  # type: ignore[arg-type]

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. Raises ConfigError that names an unknown option and the nearest known one."""
        for text in arguments:
            if why := unnameable(text):
                self.error(f"{text!r} {why}")
        plain = [re.sub("^--[^=]+", lambda name: "--" + name[0][2:].replace("-", "_"), text) for text in arguments]
        known, rest = self.parse_known_args(plain)
        for text in sorted(rest, key=lambda text: not text.startswith("-")):
            name = text.partition("=")[0]
            if not name.startswith("-"):
                self.error(f"unexpected argument {name!r}")
            names = [option.removeprefix("--") for option in self._option_string_actions if option.startswith("--")]
            told = hint(name.lstrip("-"), names, self._section, "the nearest is '--{}'")
            self.error(f"unknown option {name!r}; {told}")
        return known

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"command line: {message}")


class _Help(argparse.Action):
    """Prints the short help text, or with a section the explanation of its fields, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, _: argparse.Namespace, section: Any, __: Any = None) -> None:
        print(explanation(section) if section else parser.format_help(), end="")
        parser.exit()


def overview() -> str:
    """All fields with their defaults, a paragraph per section."""
    lines = ["fields, --section.field VALUE, with their defaults (--help SECTION explains them):"]
    for section in Config.model_fields:
        names = [name for name in FIELDS if name.startswith(f"{section}.")]
        text = ", ".join(f"{name.removeprefix(f'{section}.')}={default_text(FIELDS[name])}" for name in names)
        width = max(60, shutil.get_terminal_size().columns - 2)
        lines.append(textwrap.fill(text, width, initial_indent=f"  {section:<13}", subsequent_indent=" " * 15))
    return "\n".join(lines)


def explanation(section: str) -> str:
    """Type, meaning and default of every field of a section. Raises ConfigError when there is no such section."""
    if section not in Config.model_fields:
        raise ConfigError(f"--help: no section {section!r}; {hint(section, Config.model_fields)}")
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, formatter_class=_Formatter)
    kind = Config.model_fields[section].annotation
    group = parser.add_argument_group(section, kind.__doc__ if kind else "")
    for name, field in FIELDS.items():
        if name.startswith(f"{section}."):
            about = f"{explained(field)} (default: {default_text(field)})".replace("%", "%%")
            group.add_argument(f"--{name}", metavar=value_kind(field), help=about)
    return parser.format_help()


def default_text(field: FieldInfo) -> str:
    """The default as an option would give it."""
    return json.dumps(field.default, default=str).strip('"') or '""'


def value_kind(field: FieldInfo) -> str:
    """What a value looks like."""
    choices = get_args(field.annotation)
    if get_origin(field.annotation) is Literal:
        return "{" + ",".join(choices) + "}"
    if get_origin(field.annotation) in (dict, tuple):
        return "JSON"
    return next(KINDS[kind] for kind in (field.annotation, *choices) if kind in KINDS)


def hint(name: str, names: Iterable[str], section: str = "", form: str = "the nearest is {!r}") -> str:
    """What to write instead of an unknown name: the nearest of `names` in this form, or why there is none.

    >>> hint("use_vllm", FIELDS), hint("foo", FIELDS)
    ('leave it out: it is always so', 'no name resembles it (--help lists them)')
    """
    for end in _ends(name):
        if why := next((why for why, words in WITHOUT.items() if end in words.split()), ""):
            return f"leave it out: {why}"
    found = nearest(name, names, section)
    return form.format(found) if found else "no name resembles it (--help lists them)"


TYPO = 0.8
"""Least similarity of names that differ by a slip. Others (eval_batch_size, ring_attn_size) mean something else."""


def nearest(name: str, names: Iterable[str], section: str = "") -> str:
    """The one of `names` that `name` means, or else the most similar, or none. A name without a section is first looked
    up in `section`.

    >>> nearest("replay.ratoi", FIELDS), nearest("learning_rate", FIELDS), nearest("lr", FIELDS, "sft")
    ('replay.ratio', 'learner.policy_lr', 'sft.arguments')
    >>> nearest("actor_rollout_ref.actor.optim.lr", FIELDS), nearest("critic.optim.lr", FIELDS)
    ('learner.policy_lr', 'learner.value_lr')
    """
    known = list(names)
    last = {full: full.rpartition(".")[2] for full in known}
    usual = {last[full]: full for full in reversed(known) if not full.startswith(RARELY_MEANT)}  # of several the first
    rare = {last[full]: full for full in known}
    meant: dict[str, str] = {}
    dotted: dict[str, str] = {}
    for field, words in ((field, text.split()) for field, text in MEANINGS.items()):
        meant |= {word: field for word in words if field in known}
        for full in known:
            if full == field or last[full] in words:
                dotted |= {f"{full.partition('.')[0]}.{word}": full for word in words}
    dotted |= {full: full for full in known}
    own = {key.removeprefix(f"{section}."): full for key, full in dotted.items() if key.startswith(f"{section}.")}
    keys = rare | meant | usual | own | dotted
    exact = next((keys[end] for end in _ends(name) if end in keys), "")
    similar = difflib.get_close_matches(name, keys, n=1, cutoff=TYPO)
    return exact or (keys[similar[0]] if similar else "")


def _ends(name: str) -> list[str]:
    """The name, and what follows each of its dots: `a.b.c`, `b.c`, `c`."""
    parts = name.lower().replace("-", "_").split(".")
    return [".".join(parts[at:]) for at in range(len(parts))]


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that occurs twice in a mapping: YAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a YAML node. Raises ConstructorError for a key that occurs twice."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                mark = node.value[at][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} occurs twice", mark)
        return super().construct_mapping(node, deep)


def load_config(*paths: Path | str) -> Config:
    """The configuration of YAML files over the defaults; of several files the later one wins, field by field. A path
    such as configs/demo.yaml that does not exist here is looked for in the project's own folder. Raises ConfigError,
    naming the nearest of an unknown key."""
    data: dict[str, Any] = {}
    for path in paths:
        data = _merged(data, _read_sections(path))
    return parse_config(data, source=" + ".join(map(str, paths)))


def _read_sections(path: Path | str) -> dict[str, Any]:
    """What a YAML file contains. Raises ConfigError."""
    try:
        text = read_whole(Path(path) if Path(path).exists() else ROOT / path, LARGEST_RECIPE).decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"--config {path}: {error.strerror}; give a YAML file such as configs/arithmetic.yaml"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    try:
        data = yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # also nested too deeply; a date such as 2024-99-99
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if _values(data, {}) > MOST_VALUES:
        raise ConfigError(f"{path}: its aliases (*name) stand for more than {MOST_VALUES:,} values; write fewer")
    if not isinstance(data, dict | None):
        raise ConfigError(f"{path}: expected sections (run, model, task, ...) with fields, found {type(data).__name__}")
    return data or {}


def _values(data: Any, known: dict[int, float]) -> float:
    """How many values `data` has when every alias is written out; infinity where one contains itself. `known`: of the
    parts that were counted, by identity.

    >>> _values({"a": [1, 2]}, {})
    4.0
    """
    if not isinstance(data, dict | list):
        return 1.0
    if id(data) not in known:
        known[id(data)] = math.inf  # while it is counted
        known[id(data)] = 1.0 + sum(_values(one, known) for one in (data.values() if isinstance(data, dict) else data))
    return known[id(data)]


def _merged(first: dict[str, Any], second: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Sections of two files. A field whose value is a mapping is replaced whole, as by an option.

    >>> _merged({"run": {"seed": 1, "name": "a"}}, {"run": {"seed": 2}})
    {'run': {'seed': 2, 'name': 'a'}}
    """
    found = dict(first)
    for name, value in second.items():
        path = f"{prefix}{name}"
        both = isinstance(value, dict) and isinstance(first.get(name), dict) and path not in FIELDS
        found[name] = _merged(first[name], value, f"{path}.") if both else value
    return found


def parse_config(data: Mapping[str, Any], source: str) -> Config:
    """Validate plain data against `Config`; every error line begins with `source` (a file name). Raises ConfigError."""
    return _parsed(data, source, Config)


def _parsed(data: Mapping[str, Any], source: str, kind: type[AnyConfig]) -> AnyConfig:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def override(config: AnyConfig, options: Sequence[str]) -> AnyConfig:
    """The configuration with options `--section.field value` (or `=value`; `null` is none). Raises ConfigError."""
    data = config.model_dump(exclude_unset=True)  # so that `check_named` knows what was named
    for option in OptionParser().read(options).fields:
        name, _, text = option.removeprefix("--").partition("=")
        *sections, leaf = name.split(".")
        section = data
        for key in sections:
            section = section.setdefault(key, {})
        section[leaf] = None if text == "null" else text
    return _parsed(data, "command line", type(config))


def check_named(config: Config, model: str = "", rows: Sequence[str] = ()) -> None:
    """Raises ConfigError unless recipe and options name a model and a task: the defaults are a toy, which only its own
    name stands for (task arithmetic, or model starter). `model`: one that the command names itself. `rows`: fields
    whose rows need no task."""
    task, path = config.task, model or config.model.path
    model_named = model or "path" in config.model.model_fields_set
    if task.model_fields_set & {"name", "sources"} or any(setting(config, name) for name in rows):
        toy = task.name == "arithmetic" and "name" in task.model_fields_set and not task.sources
        if not (model_named or toy):
            raise ConfigError("model.path: name a model: --model.path MODEL (Hugging Face name, folder, .gguf file)")
    elif task.path:
        raise ConfigError(
            f"task.name: it says how answers to the rows of {task.path} are judged; name it: --task.name gsm8k, "
            "math, or prompts with --task.reward, or in --config FILE"
        )
    elif not model_named:
        raise ConfigError(
            "model.path and task.name: name a model and a task: --config FILE (such as configs/demo.yaml), or "
            "--model.path MODEL --task.name gsm8k --task.path FILE"
        )
    elif path != "starter":
        raise ConfigError(
            f"task.name: nothing names the task of {path}; name one: --config FILE, or --task.name gsm8k --task.path "
            "FILE"
        )


def explain(error: ValidationError) -> str:
    """One line for the first problem of a pydantic error.

    >>> try: Config.model_validate({"replay": {"ratio": 1.5}})
    ... except ValidationError as error: explain(error)
    'replay.ratio = 1.5: Input should be less than 1'
    """
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = [*Config.model_fields, *FIELDS]
        if part := re.match(r"task\.rewards\.[0-9]+\.", where):
            names = [f"{part[0]}{field}" for field in RewardConfig.model_fields]
        elif part := re.match(r"task\.(sources|eval_sets)\.[0-9]+\.", where):
            below = [name.removeprefix("task.") for name in FIELDS if name.startswith(("task.columns.", "task.code."))]
            names = [f"{part[0]}{field}" for field in (*PartConfig.model_fields, *below)]
        return f"unknown key {where!r}; {hint(where, names, form='the nearest valid name is {!r}')}"
    text, near = first["msg"].removeprefix("Value error, "), ""
    if first["type"] == "value_error" and isinstance(first["input"], Mapping | BaseModel):
        return text  # of several fields, which it names
    if first["type"] == "literal_error":
        near = closest(first["input"], re.findall("'([^']*)'", first["ctx"]["expected"]))
    return f"{where} = {first['input']!r}: {text}{near}"


def setting(config: Config, name: str) -> Any:
    """The value of a field by its dotted name: 'run.seed', 'task.columns.prompt'."""
    return attrgetter(name)(config)


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML that `load_config` reads back to an equal `Config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
