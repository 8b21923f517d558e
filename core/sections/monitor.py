"""Where the numbers of a run go, besides its own files."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from core.sections.base import Section

SinkName = Literal["tensorboard", "wandb", "mlflow"]


def as_names(given: Any) -> Any:
    """Names separated by commas, with or without brackets, as a list; any other value unchanged.

    >>> as_names("[tensorboard, wandb]"), as_names("[]")
    (['tensorboard', 'wandb'], [])
    """
    if not isinstance(given, str):
        return given
    return [name.strip() for name in given.strip("[] ").split(",") if name.strip()]


class MonitorConfig(Section):
    """Where the numbers of a run go, besides its own files."""

    sinks: Annotated[tuple[SinkName, ...], BeforeValidator(as_names)] = ("tensorboard",)
    """Any of tensorboard, wandb, mlflow (the last two: requirements/sinks.txt). Each gets configuration, numbers, evaluations, samples and curves. A list, or names separated by commas."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the Prometheus metrics of a local Ray; 0: any free one, which is printed. A cluster's is set by its `ray start --metrics-export-port`."""
    project: Annotated[str, Field(min_length=1)] = "retrospect"
    """W&B project and MLflow experiment of the run."""
