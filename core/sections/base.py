"""What all sections of the configuration share."""

import difflib
import os
import re
from collections.abc import Callable, Collection
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo, field_validator

LARGEST = 2**53
"""Larger numbers have no exact neighbours as floats: no count, size or seed is one."""
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
AUTO: Any = "auto"
"""What a recipe writes for a number that follows from model, data and machine: `None` in a `Config`, a number in the
`ResolvedConfig` that `trainer.model.automatic` makes of it."""


def _chosen_later(given: Any) -> Any:
    """`AUTO` as None."""
    if given == AUTO:
        return None
    if str(given).startswith("-") or given in (0, "0"):
        raise ValueError(f"give a number above 0, or {AUTO}")
    return given


_Automatic = (BeforeValidator(_chosen_later), PlainSerializer(lambda number: AUTO if number is None else number))
AutoCount = Annotated[int | None, *_Automatic]
"""A count, or `auto`."""
AutoPositive = Annotated[float | None, *_Automatic]
"""A positive number, or `auto`."""
AutoShare = Annotated[float | None, Field(gt=0, le=1), *_Automatic]
"""A share above 0, or `auto`."""
AutoBool = Annotated[bool | None, BeforeValidator(lambda given: None if given == AUTO else given), _Automatic[1]]
"""True, false, or `auto`."""


TEXTS = {"template", "system", "response", "criterion"}
"""Fields whose text a model reads. A name of a file may have other bytes than those of UTF-8."""


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys forbidden, all numbers finite. The text below a field is its
    description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, given: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number, numbers beyond LARGEST, and texts that no file can have as its name."""
        if isinstance(given, str | Path) and (why := unnameable(str(given))):
            raise ValueError(f"the text {why}")
        if info.field_name in TEXTS and isinstance(given, str) and given != given.encode("utf-8", "replace").decode():
            raise ValueError("bytes that are not UTF-8; in the locale C set LC_ALL=C.UTF-8")
        annotation = cls.model_fields[info.field_name or ""].annotation
        if not {int, float} & {annotation, *get_args(annotation)}:
            return given
        if isinstance(given, bool):
            raise ValueError("give a number, not true or false")
        if isinstance(given, int | float | str) and _is_too_large(given):
            raise ValueError(f"at most {LARGEST}")
        return given


def _is_too_large(given: float | str) -> bool:
    """Whether a number, or a text of one, is finite and beyond LARGEST."""
    try:
        number = Decimal(given)
    except ArithmeticError:  # no number
        return False
    return number.is_finite() and number.copy_abs() > LARGEST


def unnameable(text: str) -> str:
    """Why no file can have this name; empty if one can."""
    try:
        return "has a null character" if b"\0" in os.fsencode(text) else ""
    except UnicodeEncodeError:
        return "has half of a character (a lone surrogate), and cannot be a name of a file"


def closest(given: object, names: Collection[str]) -> str:
    """'; the nearest is ...' for an error, if one of the names is near."""
    near = difflib.get_close_matches(str(given), names, n=1)
    return f"; the nearest is {near[0]!r}" if near else ""


def one_of(names: Collection[str], kind: str = "function") -> Callable[[str], str]:
    """A validator that takes one of the names, or the import path of a user's own function or class."""

    def _check(given: str) -> str:
        if given not in names and not re.fullmatch(r"[\w.]+:\w+", given):
            raise ValueError(
                f"name one of {', '.join(names)}, or your own {kind} as module:{kind}{closest(given, names)}"
            )
        return given

    return _check


def own_path(given: str) -> str:
    """A validator of the import path of a user's own class."""
    if not re.fullmatch(r"[\w.]+:\w+", given):
        raise ValueError("name your own class as module:Class")
    return given


def as_mapping(given: Any) -> Any:
    """A text of the command line read as YAML (hence also JSON); any other value unchanged.

    >>> as_mapping('{"top_k": 5}')
    {'top_k': 5}
    """
    if not isinstance(given, str):
        return given
    try:
        return yaml.safe_load(given) if given.strip() else {}
    except yaml.YAMLError:
        raise ValueError("not valid JSON") from None


def as_names(given: Any) -> Any:
    """Names separated by commas, with or without brackets and quotes, as a list; any other value unchanged.

    >>> as_names("tensorboard, wandb"), as_names('["tensorboard"]'), as_names("[]")
    (['tensorboard', 'wandb'], ['tensorboard'], [])
    """
    if not isinstance(given, str):
        return given
    names = (name.strip("\"' ") for name in given.strip("[] ").split(","))
    return [name for name in names if name]


Options = Annotated[dict[str, Any], BeforeValidator(as_mapping)]
"""Another library's options by name: a mapping in a recipe, JSON on the command line."""
