"""One run in this process: `python -m bench.learning.run FILE.json`. The file says which run, and which table gets its
result. Invariant: a result is written only when its run is complete."""

import json
import shutil
import sys
from pathlib import Path

from bench.learning.plan import SETTINGS, configuration, starter_of
from bench.runs import Run, append_line
from bench.tasks.starters import build_starter
from bench.training import Schedule, opened, train
from core.config import Config
from core.startup import set_environment
from trainer.local import single_process

POINTS = 20  # evaluations in a run, at equal distances in generated tokens
LAST_SAMPLES = 32  # of each held-out problem after training
STARTER_SEED = 0


def with_starter(run: Run, config: Config) -> Config:
    """The configuration with the starter of all seeds, as users share a pretrained model."""
    place = Path(".cache/starters").resolve() / run.part.replace(" ", "-")
    path = build_starter(place, starter_of(run), config.task, STARTER_SEED)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def main(path: Path) -> None:
    """Perform the order in `path` and append its result to its table."""
    set_environment()
    order = json.loads(path.read_text(encoding="utf-8"))
    run, work = Run(**order["run"]), Path(order["work"])
    budget = round(order["scale"] * SETTINGS[run.part].tokens)
    config = with_starter(run, single_process(configuration(run, work, order["changes"])))
    with opened(run.name, config) as (parts, resolved, directory):
        found = train(parts, resolved, directory, Schedule(budget, POINTS, LAST_SAMPLES))
    del found["iterations"]  # no page reads them, and all runs together have a megabyte
    append_line(Path(order["table"]), {"run": order["run"], **order["about"], **found})
    shutil.rmtree(work / run.name, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
