"""What all sections of the configuration share."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
