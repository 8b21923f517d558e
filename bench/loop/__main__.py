"""How fast is the whole loop compared with TRL's GRPO trainer? `python -m bench.loop [--quick]`.

An iteration is generation, reward and all optimizer steps. Ours also scores, updates the replay store, trains a critic,
and ends with a broadcast and its probe. Both sides have the same problems (those of configs/arithmetic.yaml), model,
samples, lengths, optimizer steps and cores. The model is the recipe's starter after little training, so that responses
use up their budget. The sides alternate, iteration by iteration, and all starts are at the root. Ours runs in three
forms: with the recipe's separate critic, with the critic as a head on the policy's trunk, and with GRPO and no critic.
The last two train as many weights as TRL. GRPO's update leaves out groups of equal rewards, here nearly all, which TRL
computes: its ratio shows what that saves, too.

With `--model FOLDER` a pretrained model is trained instead, in fp32, with responses of 160 tokens, one process on each
side and two of our forms; an entropy bonus of 1e-6 makes our policy take every step, although hardly any answer is
right. Then the memory of our processes is measured, too.

With `--device cuda` a pretrained model (of `make model` by default) is trained in bf16: 64 prompts x 8 x 256 tokens,
TRL with vLLM colocated on the same GPU, where both engines sleep during updates. `--quick` then runs one form, and
both engines without compilation. This has not been run yet.

TRL has one data-parallel process per core, which is faster than one process (2,968 against 2,416 tokens/s on two
cores).
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.demo import ARITHMETIC, Lap, changed, middle, opened, recipe, run_lap
from bench.loop.memory import PeakMemory
from bench.loop.trl import Job, TrlLap
from bench.models import MODEL, ROOT
from bench.report import Check, check, command_line, device_name, result_name, write
from core.config import Device, ResolvedConfig
from core.errors import RetrospectError
from core.startup import WAITING
from tasks.task import Task
from trainer.build import ModelAndTask, open_model_and_task
from trainer.cluster import connect
from trainer.metrics import PHASES

SHARED, GRPO = {"learner.value_model": "shared"}, {"algorithm.estimator": "grpo", "replay.ranking": "uniform"}
FORMS = {"": (1.5, {}), "critic on the policy's trunk: ": (None, SHARED), "GRPO, no critic: ": (None, GRPO)}
"""Our forms by the first words of their figures: goal against TRL, and what each changes in the recipe."""
PRETRAINED_FORMS = {"critic on the policy's trunk: ": (4.0, SHARED), "GRPO, no critic: ": (5.0, GRPO)}
CORES = os.cpu_count() or 1
PRETRAINED = {
    "model.dtype": "float32",
    "rollout.actors": 1,
    "rollout.threads": CORES,
    "rollout.samples": 8,
    "rollout.max_prompt_tokens": 64,
    "rollout.max_response_tokens": 160,
    "rollout.kv_cache_gib": 0.5,
    "learner.ranks": 1,
    "learner.threads": CORES,
    "learner.minibatches": 2,
    "learner.micro_batch_tokens": 2048,
    "learner.policy_lr": 1e-6,
    "algorithm.entropy_coefficient": 1e-6,
}
"""What a pretrained model changes in the recipe."""
ON_GPU = {
    "model.dtype": "bfloat16",
    "rollout.starts": 64,
    "rollout.max_response_tokens": 256,
    "rollout.gpu_memory_share": 0.3,
    "learner.zero_stage": 2,
    "learner.gradient_checkpointing": "true",
    "learner.micro_batch_tokens": 16_384,
    "cluster.device": "cuda",
}
"""What a GPU changes for a pretrained model. TRL's vLLM, which lies on the same GPU, has the same share."""
GPU_FORMS = {"GRPO, no critic: ": (1.2, GRPO), "critic on the policy's trunk: ": (1.0, SHARED)}
Forms = Mapping[str, tuple[float | None, Mapping[str, object]]]

Trl = Callable[[], TrlLap]  # runs one iteration of TRL's trainer


class Laps(NamedTuple):
    """Alternating iterations, without the first of each side."""

    ours: list[Lap]
    trl: list[TrlLap]
    memory: dict[str, float]  # GiB of our processes at their common peak, by name

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


def job_of(config: ResolvedConfig, model: str, task: Task, iterations: int, device: Device, eager: bool) -> Job:
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
        device=device,
        eager=eager,
    )


@contextmanager
def started_trl(job: Job, folder: Path, processes: int) -> Iterator[Trl]:
    """TRL's trainer as data-parallel processes, which share the cores."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # undo what `trainer.cluster` sets for our waiting threads
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment |= {"OMP_NUM_THREADS": str(CORES // processes), "HF_HUB_OFFLINE": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if job.device == "cpu" else {}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}

    def _start(rank: int) -> "subprocess.Popen[str]":
        pipe = subprocess.DEVNULL if rank else subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "bench.loop.trl", str(folder)],
            cwd=ROOT,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=pipe,
            stdout=pipe,
            text=True,
        )

    ranks = [_start(rank) for rank in range(processes)]
    answers, orders = ranks[0].stdout, ranks[0].stdin
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
        for process in ranks:
            process.kill()
            process.wait()


def measure(
    config: ResolvedConfig, ready: ModelAndTask, device: Device, folder: Path, trl: Trl, iterations: int
) -> Laps:
    """Run our iterations and TRL's alternately."""
    ours, of_trl = [], []
    with opened(config, ready, device, folder) as run, PeakMemory() as memory:
        for number in range(1, iterations + 1):
            ours.append(run_lap(run, number))
            of_trl.append(trl())
            took, theirs = ours[-1].seconds.total, of_trl[-1].seconds
            print(f"iteration {number}: {took:.1f} s, {ours[-1].tokens} tokens; TRL {theirs:.1f} s", flush=True)
    return Laps(ours[1:], of_trl[1:], memory.peak)


def compared(forms: Mapping[str, Laps], goals: Forms) -> list[Check]:
    """The checks of all our forms against TRL."""
    checks = []
    for form, laps in forms.items():
        name, ratio, goal = f"{form}whole iteration / TRL's GRPO trainer", laps.rate / laps.trl_rate, goals[form][0]
        checks.append(check(f"{form}generated tokens/s", laps.rate, "tokens/s", baseline=laps.trl_rate))
        checks.append(check(name, ratio, "ratio", ">=" if goal else None, goal or 0.0, baseline=1.0))
    return checks


def profile(forms: Mapping[str, Laps], memory: bool) -> list[Check]:
    """The seconds of our iterations by phase, those of the first form as shares, and its memory."""
    first, *others = forms.values()
    goals = {"broadcast": ("<=", 0.03)} if memory else {}
    total = first.seconds("total")
    generation = middle(first.ours, lambda lap: lap.tokens / lap.seconds.generate)
    checks = [
        check("generated tokens per iteration", middle(first.ours, lambda lap: lap.tokens), "tokens"),
        check("generated tokens/s, generation alone", generation, "tokens/s"),
        check("seconds per iteration", total, "s"),
        *(
            check(f"share of {phase}", first.seconds(phase) / total, "share", *goals.get(phase, ()))
            for phase in (*PHASES, "other")
        ),
        *(
            check(f"{form}{phase}", laps.seconds(phase), "s", baseline=first.seconds(phase) if laps in others else None)
            for form, laps in forms.items()
            for phase in ("score", "update")
        ),
    ]
    if memory:
        checks.append(check("memory of the whole run", sum(first.memory.values()), "GiB", "<=", 6.0))
        checks += [check(f"of which {name}", amount, "GiB") for name, amount in sorted(first.memory.items())]
    return checks


def settled(device: Device, quick: bool, model: Path | None) -> tuple[dict[str, object], Forms, int]:
    """The fields that change the recipe, our forms, and the iterations of each."""
    as_trl = {"replay.ratio": 0.0, "replay.imitated": 0, "algorithm.positive_coefficient": 0.0}
    if model is None:
        starts = ARITHMETIC.rollout.starts // (4 if quick else 1)
        return {"rollout.starts": starts, **as_trl}, FORMS, 3 if quick else 6
    common: dict[str, object] = {**as_trl, **PRETRAINED, "model.path": str(model.resolve())}
    if device == "cpu":
        return {**common, "rollout.starts": 2 if quick else 8}, PRETRAINED_FORMS, 2 if quick else 4
    eager = {"rollout.engine_options": json.dumps({"enforce_eager": True})} if quick else {}
    forms = dict(list(GPU_FORMS.items())[:1]) if quick else GPU_FORMS
    return {**common, **ON_GPU, **eager}, forms, 3 if quick else 6


def main(quick: bool, device: Device, model: Path | None) -> None:
    """Measure and write bench/results/loop*.json. Raises ClusterError."""
    card = device_name(device)
    if device == "cuda" and model is None:
        model = ROOT / MODEL
    fields, goals, iterations = settled(device, quick, model)
    config, trained = recipe(fields), "the demo's starter" if model is None else model.name
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        device = stack.enter_context(connect(config, "bench"))
        ready = stack.enter_context(open_model_and_task(config))
        config, rounds = ready.config, len(goals) * iterations  # TRL's alternate with each of our forms
        job = job_of(config, ready.model, ready.task, rounds, device, quick and device == "cuda")
        trl = stack.enter_context(started_trl(job, folder / "trl", CORES if model is None else 1))
        forms = {
            form: measure(changed(config, fields), ready, device, folder, trl, iterations)
            for form, (_, fields) in goals.items()
        }
    checks = [*compared(forms, goals), *profile(forms, memory=model is not None and device == "cpu")]
    settings = {
        "model": trained,
        "iterations": iterations,
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "engines": f"{config.rollout.actors} x {config.rollout.threads} threads",
        "ranks": f"{config.learner.ranks} x {config.learner.threads} threads",
        "cores": CORES,
        "device": card,
    }
    write(result_name("loop", device, model is not None), checks, settings, quick=quick)


if __name__ == "__main__":
    parser = command_line(__doc__, device=True)
    parser.add_argument("--model", type=Path, help="the folder of a pretrained model, which is trained instead")
    given = parser.parse_args()
    try:
        main(given.quick, given.device, given.model)
    except RetrospectError as error:
        sys.exit(f"error: {error}")
