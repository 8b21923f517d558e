"""Configuration files: YAML in, `Config` out, every mistake as one line that names the field and the remedy.

Called by `launch.py` and by the tests of the recipes. Nothing here imports an engine.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from core.config import Config
from core.errors import ConfigError


def load_config(path: Path) -> Config:
    """The configuration of a YAML file; sections and fields that it leaves out keep their defaults.

    Raises ConfigError for an unreadable file, an unknown key (with the nearest valid name) or a bad value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; give a YAML file such as configs/demo.yaml") from None
    try:
        data = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected sections (run, model, task, ...) with fields, found {type(data).__name__}")
    return parse_config(data, source=str(path))


def parse_config(data: Mapping[str, Any], source: str) -> Config:
    """Validate plain data against `Config`; `source` (a file name) opens every error line."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def override(config: Config, options: Sequence[str]) -> Config:
    """The configuration with command-line options applied: `--section.field value` or `--section.field=value`.

    Hyphens count as underscores; `null` unsets an optional field. Raises ConfigError naming the option.
    """
    data = config.model_dump()
    known = set(field_names())
    rest = list(options)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        field = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or field not in known or "." not in field:
            raise ConfigError(f"command line: unknown option {name!r}; the nearest valid one is '--{nearest(field)}'")
        if not equals and not rest:
            raise ConfigError(f"command line: {name} needs a value")
        *sections, leaf = field.split(".")
        place = data
        for section in sections:
            place = place[section]
        text = value if equals else rest.pop(0)
        place[leaf] = None if text == "null" else text
    return parse_config(data, source="command line")


def nearest(name: str) -> str:
    """The dotted field or section name that looks most like `name`."""
    return difflib.get_close_matches(name, list(field_names()), n=1, cutoff=0.0)[0]


def explain(error: ValidationError) -> str:
    """One line for the first problem of a pydantic error.

    >>> try: Config.model_validate({"replay": {"ratio": 1.5}})
    ... except ValidationError as error: explain(error)
    'replay.ratio = 1.5: Input should be less than 1'
    """
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}; the nearest valid name is {nearest(where)!r}"
    return f"{where} = {first['input']!r}: {first['msg']}"


def field_names(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """All sections and fields by their dotted names: 'run', 'run.seed', ..."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from field_names(field.annotation, f"{prefix}{name}.")


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML that `load_config` reads back to an equal `Config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
