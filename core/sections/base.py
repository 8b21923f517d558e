"""What all sections of the configuration share."""

from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


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


Options = Annotated[dict[str, Any], BeforeValidator(as_mapping)]
"""Another library's options by name: a mapping in a recipe, JSON on the command line."""
