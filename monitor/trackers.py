"""Experiment trackers: TensorBoard, Weights & Biases, MLflow or a user's own behind one small interface. Invariant:
nothing reads from a tracker, so it can be left out. Its library is imported only when it is used."""

import json
import logging
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from core.config import Config
from core.errors import CheckpointError, ConfigError, first_line
from core.load import FIELDS, dump_config, setting
from core.run_directory import RunDirectory, read_jsonl, write_atomically
from core.sections.registry import find, names
from trainer.evaluation.files import read_evaluations
from trainer.evaluation.table import evaluation_rows
from trainer.metrics import IterationMetrics, flatten, flatten_sources, metric_infos

Rows = Sequence[Mapping[str, Any]]
logger = logging.getLogger("retrospect.trackers")
MLFLOW_PARAMETERS = 100  # most parameters of one call of MLflow


class Tracker:
    """Shows a run somewhere; `step` is the iteration. `monitor.sinks` names a user's own subclass as module:class."""

    def __init__(self, config: Config, run: RunDirectory, last: int) -> None:
        """Begin a run, or go on with one after iteration `last`."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Show finite numbers by tag `group/name`."""

    def table(self, step: int, name: str, rows: Rows) -> None:
        """Show rows of the same columns: the samples or the evaluation of an iteration."""

    def picture(self, name: str, path: Path) -> None:
        """Show a PNG file."""

    def close(self) -> None:
        """Show what is left; the run has ended."""


class TrackerSink:
    """Gives a tracker the numbers of every iteration, and its samples and evaluations in the run directory. A tracker
    that fails costs its own numbers, not the run: a line says so once, until it works again."""

    def __init__(self, tracker: Tracker, run: RunDirectory, last: int) -> None:
        """What `run` has evaluated up to now, after iteration `last`, was shown when it was evaluated."""
        self._tracker, self._run, self._last = tracker, run, last or -1
        self._shown = max((line["iteration"] for line in read_evaluations(run.evaluations)), default=-1)
        self._tags = {info.name: f"{info.group}/{info.name}" for info in metric_infos()}
        self._fails = False

    def write(self, metrics: IterationMetrics) -> None:
        """Show one iteration."""
        with self._optional():
            self._write(metrics)
            self._fails = False

    def _write(self, metrics: IterationMetrics) -> None:
        step = self._last = metrics.iteration
        finite = {
            name: value for name, value in (flatten(metrics) | flatten_sources(metrics)).items() if math.isfinite(value)
        }
        self._tracker.numbers(step, {self._tags.get(name, name): float(value) for name, value in finite.items()})
        self._show_evaluations()
        if samples := read_jsonl(self._run.samples / f"{step:06d}.jsonl"):
            shown = [{name: value for name, value in row.items() if not isinstance(value, list)} for row in samples]
            self._tracker.table(step, "samples", shown)

    def _show_evaluations(self) -> None:
        """Those that were not shown before. That of an iteration which has not ended will be repeated."""
        for line in read_evaluations(self._run.evaluations):
            if self._shown < line["iteration"] <= self._last:
                rows = evaluation_rows(line)
                values = {f"evaluation/{row['set']}": row["success"] for row in rows}
                for row in rows:
                    if k := row.get("samples"):
                        label = f"evaluation/{row['set']}"
                        values |= {f"{label}_avg@{k}": row["average"], f"{label}_pass@{k}": row["any"]}
                self._tracker.numbers(line["iteration"], values)
                self._tracker.table(line["iteration"], "evaluation", rows)
                self._shown = line["iteration"]

    def close(self) -> None:
        """Show an evaluation that a resume has made up for, and the curves, and close the tracker."""
        with self._optional():
            self._show_evaluations()
            if self._run.curves.exists():
                self._tracker.picture("curves", self._run.curves)
        with self._optional():
            self._tracker.close()

    @contextmanager
    def _optional(self) -> Iterator[None]:
        """The run goes on without what is in the block."""
        try:
            yield
        except Exception as error:
            what = f"monitor.sinks: {type(self._tracker).__name__} has failed ({first_line(error)[:300]})"
            logger.warning("%s", what, exc_info=error)
            if not self._fails:
                print(f"{what}; the run goes on, and its own files have what is missing there", flush=True)
            self._fails = True


def check_trackers(config: Config) -> None:
    """Raises ConfigError when a tracker of `monitor.sinks` is not installed, or a user's own is none."""
    for name in config.monitor.sinks:
        find_tracker(name)
        if name in names("monitor.sinks") and find_spec(name) is None:
            raise ConfigError(
                f"monitor.sinks: {name} is not installed; run `pip install --no-deps -r requirements/sinks.txt`, or "
                "leave it out"
            )


def find_tracker(name: str) -> type[Tracker]:
    """The tracker that `monitor.sinks` names. Raises ConfigError."""
    kind = find("monitor.sinks", name)
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        raise ConfigError(f"monitor.sinks {name!r}: name a subclass of monitor.trackers.Tracker")
    return kind


def open_trackers(config: Config, run: RunDirectory, last: int) -> list[TrackerSink]:
    """The trackers of `monitor.sinks` for a run that continues after iteration `last`."""
    return [TrackerSink(find_tracker(name)(config, run, last), run, last) for name in config.monitor.sinks]


class TensorBoard(Tracker):
    """Event files in `RUN/tensorboard`. A resumed run purges what it repeats."""

    def __init__(self, config: Config, run: RunDirectory, last: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # imported late: it takes seconds

        self._writer = SummaryWriter(str(run.tensorboard), purge_step=last + 1 if last else 0)
        if not last:
            self._writer.add_text("config", f"```yaml\n{dump_config(config)}\n```")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars, on disk when it returns."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def table(self, step: int, name: str, rows: Rows) -> None:
        """A Markdown table."""
        lines = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
        cells = [
            ["".join(_MARKDOWN.get(character, character) for character in cell) for cell in line] for line in lines
        ]
        head = list(rows[0])
        text = "\n".join("|" + "|".join(line) + "|" for line in (head, ["---"] * len(head), *cells))
        self._writer.add_text(name, text, step)

    def picture(self, name: str, path: Path) -> None:
        """An image."""
        from matplotlib.image import imread

        self._writer.add_image(name, imread(path)[..., :3], dataformats="HWC")

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


_MARKDOWN = {"|": "\\|", "\n": "<br>", "<": "&lt;", ">": "&gt;"}


class WeightsAndBiases(Tracker):
    """A W&B run. `WANDB_MODE=offline` keeps it in `RUN/wandb`; a resumed run continues the same one."""

    def __init__(self, config: Config, run: RunDirectory, last: int) -> None:  # noqa: ARG002 (all trackers are opened alike)
        import wandb

        self._table, self._image = wandb.Table, wandb.Image
        self._run = wandb.init(
            project=config.monitor.project,
            name=run.name,
            id=_remembered(run, "wandb", partial(secrets.token_hex, 4)),
            resume="allow",
            dir=str(run.path),
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(console="off", silent=True, disable_git=True),
        )
        self._run.define_metric("*", step_metric="iteration")  # W&B's own step may not go back after a resume

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of the history."""
        self._run.log({**values, "iteration": step})

    def table(self, step: int, name: str, rows: Rows) -> None:
        """A table of the history."""
        table = self._table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({name: table, "iteration": step})

    def picture(self, name: str, path: Path) -> None:
        """An image in the run's summary."""
        self._run.log({name: self._image(str(path))})

    def close(self) -> None:
        """Finish the run; online this sends what is left."""
        self._run.finish()


class MLflow(Tracker):
    """A run on the server of `MLFLOW_TRACKING_URI`, or in `RUN/mlruns`; a resumed run continues the same one."""

    def __init__(self, config: Config, run: RunDirectory, last: int) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow wants a data base unless told otherwise
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._resumed = Metric, last > 0
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or (run.path / "mlruns").as_uri())

        def _create() -> str:
            existing = self._client.get_experiment_by_name(config.monitor.project)
            experiment = existing.experiment_id if existing else self._client.create_experiment(config.monitor.project)
            run_id = self._client.create_run(experiment, run_name=run.name).info.run_id
            parameters = [Param(name, str(setting(config, name))) for name in FIELDS]
            for at in range(0, len(parameters), MLFLOW_PARAMETERS):
                self._client.log_batch(run_id, params=parameters[at : at + MLFLOW_PARAMETERS])
            return str(run_id)

        self._id = _remembered(run, "mlflow", _create)
        self._client.update_run(self._id, status="RUNNING")
        self._files = partial(self._client.list_artifacts, self._id)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics. A tag has only the characters that MLflow allows."""
        tags = {tag: re.sub(r"[^\w\-. :/]", "_", tag) for tag in values}
        self._client.log_batch(self._id, metrics=[self._metric(tags[tag], values[tag], 0, step) for tag in values])

    def table(self, step: int, name: str, rows: Rows) -> None:
        """A JSON table among the artifacts. MLflow would append to one that is there, after a resume."""
        if self._resumed and any(file.path.endswith(f"{step:06d}.json") for file in self._files(name)):
            return
        columns = {column: [row[column] for row in rows] for column in rows[0]}
        self._client.log_table(self._id, columns, f"{name}/{step:06d}.json")

    def picture(self, name: str, path: Path) -> None:  # noqa: ARG002 (the file has the name)
        """A file among the artifacts."""
        self._client.log_artifact(self._id, str(path))

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)


def _remembered(run: RunDirectory, tracker: str, create: Callable[[], str]) -> str:
    """The run's id in a tracker; a new one is kept in trackers.json, for a resume."""
    try:
        ids = dict(json.loads(run.trackers.read_text(encoding="utf-8"))) if run.trackers.exists() else {}
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{run.trackers}: damaged ({first_line(error)}); delete it") from None
    if tracker not in ids:
        ids[tracker] = create()
        write_atomically(run.trackers, json.dumps(ids) + "\n")
    return str(ids[tracker])
