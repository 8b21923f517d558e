"""The picture of runs."""

import json
from contextlib import closing
from pathlib import Path

from matplotlib.image import imread

from bench.picture import draw
from core.config import Config
from core.load import dump_config
from core.run_directory import RunDirectory
from monitor.run_files import RunFiles, read_run
from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink


def a_run(path: Path, success: float) -> RunFiles:
    run = RunDirectory.create(path.parent, path.name, "demo")
    run.config.write_text(dump_config(Config()))
    rest = {"low": 0.05, "high": 0.95, "problems": 3, "pass": {}, "levels": {}, "sources": {}}
    lines = ({"iteration": number, "success": share, **rest} for number, share in ((0, 0.1), (2, success)))
    run.evaluations.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with closing(JsonlSink(run.metrics)) as sink:
        for number in (1, 2):
            sink.write(iteration(number))
    return read_run(run)


def test_each_run_has_its_colour(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "first", 0.9), a_run(tmp_path / "second", 0.2)
    for name, runs in (("both", [first, second]), ("one", [first])):
        draw(runs, ["a", "b"][: len(runs)], tmp_path / f"{name}.png")
    orange = {  # the second colour of monitor.charts, #d55e00
        name: ((imread(tmp_path / f"{name}.png")[..., :3] - [0xD5 / 255, 0x5E / 255, 0]) ** 2).sum(axis=2) < 1e-3
        for name in ("both", "one")
    }
    assert orange["both"].sum() > 100
    assert not orange["one"].any()
