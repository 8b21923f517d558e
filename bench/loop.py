"""How fast is the whole loop compared with TRL's GRPO trainer? `python -m bench.loop [--quick]`.

An iteration is generation, reward and all optimizer steps. Ours also scores, updates the replay store, trains a critic,
and ends with a broadcast and its probe. Both sides have the same problems (those of configs/arithmetic.yaml), model,
samples, lengths, optimizer steps and cores. The model is the recipe's starter after little training, so that responses
use up their budget. The sides alternate, iteration by iteration, and all starts are at the root. Ours runs in three
forms: with the recipe's separate critic, with the critic as a head on the policy's trunk, and with GRPO and no critic.
The last two train as many weights as TRL. GRPO's update leaves out groups of equal rewards, here nearly all, which TRL
computes: its ratio shows what that saves, too.

TRL runs in another environment (requirements/bench.txt), which `make bench` prepares. BENCH_PYTHON names its
interpreter (default: .venv-bench/bin/python). It has one data-parallel process per core, which is faster than one
process (2,968 against 2,416 tokens/s on two cores). Without that environment only ours is measured.
"""

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.demo import ARITHMETIC, Lap, changed, components, middle, recipe, run_lap
from bench.models import ROOT
from bench.report import Check, check, command_line, write
from bench.trl_loop import Job, TrlLap
from core.config import Config, Device
from core.startup import WAITING
from tasks.task import Task
from trainer import build
from trainer.build import ModelAndTask, open_model_and_task
from trainer.cluster import connect
from trainer.metrics import PHASES

GOAL = 1.5
FORMS = {
    "": {},
    "critic on the policy's trunk: ": {"learner.value_model": "shared"},
    "GRPO, no critic: ": {"algorithm.estimator": "grpo", "replay.ranking": "uniform"},
}
"""Our forms by the first words of their figures: what each changes in the recipe, whose critic is a separate model."""

Trl = Callable[[], TrlLap]
"""Runs one iteration of TRL's trainer."""


class Laps(NamedTuple):
    """Alternating iterations, without the first of each side."""

    ours: list[Lap]
    trl: list[TrlLap]  # none without TRL

    @property
    def rate(self) -> float:
        """Generated tokens per second of our whole iterations."""
        return middle(self.ours, lambda lap: lap.tokens / lap.seconds.total)

    @property
    def trl_rate(self) -> float:
        """Generated tokens per second of TRL's whole iterations."""
        return median(lap.tokens / lap.seconds for lap in self.trl)

    def seconds(self, phase: str) -> float:
        """Median seconds of one of our phases."""
        return middle(self.ours, lambda lap: getattr(lap.seconds, phase))


def job_of(config: Config, model: str, task: Task, iterations: int) -> Job:
    """The same work for TRL."""
    return Job(
        model=str(Path(model).resolve()),
        prompts=[str(task.tokenizer.decode(problem.prompt_ids.tolist())) for problem in task.train],
        references=[problem.reference for problem in task.train],
        starts=config.rollout.starts,
        samples=config.rollout.samples,
        max_response_tokens=config.rollout.max_response_tokens,
        minibatches=config.learner.minibatches,
        policy_lr=config.learner.policy_lr,
        iterations=iterations,
    )


@contextmanager
def started_trl(python: Path, job: Job, folder: Path) -> Iterator[Trl]:
    """TRL's trainer as one data-parallel process per core."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    cores = os.cpu_count() or 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # undo what `trainer.cluster` sets for our waiting threads
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(cores)}

    def _start(rank: int) -> "subprocess.Popen[str]":
        pipe = subprocess.DEVNULL if rank else subprocess.PIPE
        return subprocess.Popen(
            [str(python), "-W", "ignore", "-m", "bench.trl_loop", str(folder)],
            cwd=ROOT,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=pipe,
            stdout=pipe,
            text=True,
        )

    processes = [_start(rank) for rank in range(cores)]
    answers, orders = processes[0].stdout, processes[0].stdin
    assert answers
    assert orders

    def _step() -> TrlLap:
        orders.write("go\n")
        orders.flush()
        line = answers.readline()
        assert line, "TRL's trainer has ended; see its output above"
        return TrlLap(*json.loads(line))

    try:
        yield _step
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(
    config: Config, ready: ModelAndTask, device: Device, folder: Path, trl: Trl | None, iterations: int
) -> Laps:
    """Run our iterations and TRL's alternately."""
    settings, laps = build.iteration_settings(config), Laps([], [])
    with components(config, ready, device, folder) as parts:
        for number in range(1, iterations + 1):
            laps.ours.append(run_lap(parts, settings, number))
            if trl:
                laps.trl.append(trl())
    return Laps(laps.ours[1:], laps.trl[1:])


def compared(forms: Mapping[str, Laps]) -> list[Check]:
    """The checks of all our forms against TRL; the recipe's has the goal."""
    checks = []
    for form, laps in forms.items():
        name, ratio = f"{form}whole iteration / TRL's GRPO trainer", laps.rate / laps.trl_rate
        checks.append(check(f"{form}generated tokens/s", laps.rate, "tokens/s", baseline=laps.trl_rate))
        checks.append(check(name, ratio, "ratio", None if form else ">=", GOAL, baseline=1.0))
    return checks


def profile(forms: Mapping[str, Laps]) -> list[Check]:
    """The seconds of our iterations by phase."""
    separate = forms[""]
    total = separate.seconds("total")
    generation = middle(separate.ours, lambda lap: lap.tokens / lap.seconds.generate)
    return [
        check("generated tokens per iteration", middle(separate.ours, lambda lap: lap.tokens), "tokens"),
        check("generated tokens/s, generation alone", generation, "tokens/s"),
        check("seconds per iteration", total, "s"),
        *(check(f"share of {phase}", separate.seconds(phase) / total, "share") for phase in (*PHASES, "other")),
        *(
            check(f"{form}{phase}", laps.seconds(phase), "s", baseline=separate.seconds(phase) if form else None)
            for form, laps in forms.items()
            for phase in ("score", "update")
        ),
    ]


def main(quick: bool) -> None:
    """Measure and write bench/results/loop.json."""
    as_trl = {"replay.ratio": 0.0, "replay.imitated": 0, "algorithm.positive_coefficient": 0.0}
    config = recipe({"rollout.starts": ARITHMETIC.rollout.starts // (4 if quick else 1), **as_trl})
    iterations = 3 if quick else 6
    python = Path(os.environ.get("BENCH_PYTHON", ROOT / ".venv-bench" / "bin" / "python"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        device = stack.enter_context(connect(config, "bench"))
        ready = stack.enter_context(open_model_and_task(config))
        trl = None
        if python.exists():
            job = job_of(config, ready.model, ready.task, len(FORMS) * iterations)  # alternates with each of our forms
            trl = stack.enter_context(started_trl(python, job, folder / "trl"))
        forms = {
            form: measure(changed(config, fields), ready, device, folder, trl, iterations)
            for form, fields in FORMS.items()
        }
    if not python.exists():
        print(f"TRL is left out: no {python} (`make bench` prepares it)")
    checks = [*(compared(forms) if trl else []), *profile(forms)]
    settings = {
        "iterations": iterations,
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "engines": f"{config.rollout.actors} x {config.rollout.threads} threads",
        "ranks": f"{config.learner.ranks} x {config.learner.threads} threads",
        "cores": os.cpu_count() or 1,
        "device": device,
    }
    write("loop", checks, settings, quick=quick)


if __name__ == "__main__":
    main(command_line(__doc__).parse_args().quick)
