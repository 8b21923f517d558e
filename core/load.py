"""Configuration files: YAML in, `Config` out. Every error is one line that names the field and says what to do."""

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from core import ROOT
from core.command_line import FIELDS, OptionParser, nearest
from core.config import Config, EvaluationSetConfig, SourceConfig
from core.errors import ConfigError


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


def load_config(path: Path | str) -> Config:
    """The configuration of a YAML file over the defaults. A path such as configs/rule.yaml that does not exist here is
    looked for in the project's own folder. Raises ConfigError, naming the nearest of an unknown key."""
    try:
        text = (Path(path) if Path(path).exists() else ROOT / path).read_text(encoding="utf-8")
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
    if not isinstance(data, dict | None):
        raise ConfigError(f"{path}: expected sections (run, model, task, ...) with fields, found {type(data).__name__}")
    return parse_config(data or {}, source=str(path))


def parse_config(data: Mapping[str, Any], source: str) -> Config:
    """Validate plain data against `Config`; every error line begins with `source` (a file name). Raises ConfigError."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def override(config: Config, options: Sequence[str]) -> Config:
    """The configuration with options `--section.field value` (or `=value`; `null` is none). Raises ConfigError."""
    data = config.model_dump()
    for option in OptionParser().read(options).fields:
        name, _, text = option.removeprefix("--").partition("=")
        *sections, leaf = name.split(".")
        section = data
        for key in sections:
            section = section[key]
        section[leaf] = None if text == "null" else text
    return parse_config(data, source="command line")


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
        if part := re.match(r"task\.(sources|eval_sets)\.[0-9]+\.", where):
            kind = SourceConfig if part[1] == "sources" else EvaluationSetConfig
            below = [name.removeprefix("task.") for name in FIELDS if name.startswith(("task.columns.", "task.code."))]
            names = [f"{part[0]}{field}" for field in (*kind.model_fields, *below)]
        return f"unknown key {where!r}; the nearest valid name is {nearest(where, names)!r}"
    return f"{where} = {first['input']!r}: {first['msg']}"


def setting(config: Config, name: str) -> Any:
    """The value of a field by its dotted name: 'run.seed', 'task.columns.prompt'."""
    return attrgetter(name)(config)


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML that `load_config` reads back to an equal `Config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
