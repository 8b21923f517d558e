"""The checks: each runs a part of the project that needs a GPU, within its own time limit."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.gpu.steps import FailedError, Place, perform, planned, rows, summary, tensors

ITERATIONS = 4
KILLED = 2  # iterations after which a run is killed; its checkpoint is of them
Fields = Mapping[str, object]
COMMON: Fields = {
    "run.iterations": ITERATIONS,
    "run.checkpoint_every": KILLED,
    "evaluation.every": 0,
    "task.eval_problems": 32,
    "cluster.address": "local",
}
ON_GPU: Fields = {  # a cache of fixed size, so that several checks fit side by side
    "model.dtype": "bfloat16",
    "rollout.gpu_memory_share": 0.1,
    "rollout.engine_options": json.dumps({"kv_cache_memory_bytes": 2 * 2**30}),
}
PAIRS = [
    {"chosen": [{"role": "user", "content": f"How many is {n} apples?"}, {"role": "assistant", "content": good}],
     "rejected": [{"role": "user", "content": f"How many is {n} apples?"}, {"role": "assistant", "content": bad}]}
    for n in range(48)
    for good, bad in [(f"{n} apples, counted with care.", "No."), (f"That is {n}.", "Ask somebody else.")]
]  # fmt: skip
"""Preferences for the reward model."""


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the project."""

    name: str
    about: str
    seconds: float  # its limit
    measure: Callable[[Place], str]  # returns the figures; raises FailedError


def options(place: Place, name: str, fields: Fields, recipe: str = "configs/sums_smollm2.yaml") -> list[str]:
    """The options of a run of a check."""
    common = {**COMMON, "run.root": place.folder / "runs", "run.name": name, "cluster.device": place.device}
    common |= {"model.path": place.model, **(ON_GPU if place.device == "cuda" else {})}
    given = {**common, **fields}
    return ["--config", recipe, *(text for key, value in given.items() for text in (f"--{key}", str(value)))]


def train(place: Place, name: str, fields: Fields = COMMON, recipe: str = "configs/sums_smollm2.yaml") -> str:
    """A short run from the start; its figures."""
    shutil.rmtree(place.run(name), ignore_errors=True)  # of an earlier try
    perform(place, name, ["launch.py", "train", *options(place, name, fields, recipe)])
    return summary(place.run(name), ITERATIONS) + planned(place.log(name))


def trained(**fields: object) -> Callable[[Place, str], str]:
    """A check that is one run of configs/sums_smollm2.yaml with some fields, dots as two underscores."""
    chosen = {key.replace("__", "."): value for key, value in fields.items()}
    return lambda place, name: train(place, name, chosen)


def resumed(place: Place, name: str) -> str:
    """Kill a run after its first checkpoint, resume it, and compare its policy with that of an uninterrupted one."""
    metrics = place.run(name) / "metrics.jsonl"
    shutil.rmtree(place.run(name), ignore_errors=True)
    if not place.run("train").exists():
        train(place, "train")
    command = ["launch.py", "train", *options(place, name, COMMON)]
    perform(place, name, command, until=lambda: len(rows(metrics)) > KILLED)
    killed = len(rows(metrics))
    perform(place, name, ["launch.py", "train", "--resume", str(place.run(name)), "--cluster.address", "local"])
    found = summary(place.run(name), ITERATIONS)
    ours, theirs = tensors(place.run(name) / "policy"), tensors(place.run("train") / "policy")
    if not ours or set(ours) != set(theirs):
        raise FailedError("the resumed run has another policy than the uninterrupted one")
    largest = max(float((ours[key].float() - theirs[key].float()).abs().max()) for key in ours)
    return f"killed after {killed}; weights differ from an uninterrupted run's by {largest:.2g} at most; {found}"


def reward_model(place: Place, name: str) -> str:
    """Train a reward model on the GPU, then a policy against it, both on the one card."""
    recipe, model = "configs/dialogue_smollm2.yaml", place.run("reward")
    pairs = place.folder / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    data = {"task.path": pairs, "task.split": "train", "reward_model.pairs": pairs, "reward_model.split": "train"}
    shutil.rmtree(model, ignore_errors=True)
    given = options(place, "reward", {**data, "task.eval_problems": 4}, recipe)
    begun = time.monotonic()
    perform(place, "reward", ["launch.py", "reward-model", *given])
    took = time.monotonic() - begun
    judged = {**data, "task.eval_problems": 4, "reward_model.path": model, "reward_model.gpus": 0.2}
    return f"reward-model {took:.0f} s; train: {train(place, name, judged, recipe)}"


def tuned(place: Place, name: str) -> str:
    """Supervised fine-tuning on the solutions of sums."""
    shutil.rmtree(place.run(name), ignore_errors=True)
    fields = {"task.problems": 64, "sft.arguments": json.dumps({"max_steps": 4})}
    begun = time.monotonic()
    perform(place, name, ["launch.py", "sft", *options(place, name, fields)])
    return f"{time.monotonic() - begun:.0f} s in all"


def attention(place: Place, name: str) -> str:
    """FlexAttention over prefix trees against the CPU's branches, in both types, with windows and without."""
    perform(place, name, ["-m", "bench.gpu.attention"])
    found = [line for line in place.log(name).read_text(encoding="utf-8").splitlines() if ", window " in line]
    return "relative errors: " + "; ".join(found)


def benchmark(*command: str) -> Callable[[Place, str], str]:
    """A benchmark with --quick, which writes its own table."""

    def _measure(place: Place, name: str) -> str:
        begun = time.monotonic()
        perform(place, name, ["-m", *command, "--quick", "--device", place.device])
        lines = place.log(name).read_text(encoding="utf-8").splitlines()
        found = [line.strip("| ") for line in lines if line.startswith("|") and ">= " in line]
        return f"{time.monotonic() - begun:.0f} s; " + "; ".join(" ".join(line.split("|")[:2]) for line in found)

    return _measure


def _checks() -> list[Check]:
    lora = trained(learner__lora_rank=16, learner__lora_alpha=32, learner__policy_lr=1e-4)
    zero3 = trained(learner__zero_stage=3, learner__gradient_checkpointing="true")
    offload = trained(learner__zero_stage=2, learner__offload="true", learner__micro_batch_tokens="auto")
    asynchronous = trained(rollout__max_staleness=1, cluster__colocate="true")
    awake = trained(rollout__sleep="false", learner__transport="object_store")
    measures: list[tuple[str, str, float, Callable[[Place, str], str]]] = [
        ("train", "sums in bf16: a pair on one GPU, the engine sleeps, weights by CUDA IPC", 170, trained()),
        ("kill_resume", "a run killed after its checkpoint and resumed, against `train`", 240, resumed),
        ("auto", "`cluster.device` auto, and the engine's share by the memory plan", 170,
         trained(cluster__device="auto", rollout__gpu_memory_share="auto", rollout__engine_options="{}")),
        ("awake", "an engine that does not sleep, weights through the object store", 150, awake),
        ("asynchronous", "`rollout.max_staleness` 1, engine and rank on one GPU", 150, asynchronous),
        ("lora", "LoRA of rank 16", 150, lora),
        ("zero3", "ZeRO 3 with gradient checkpointing, one rank", 150, zero3),
        ("offload", "`learner.offload`, `learner.micro_batch_tokens` auto", 150, offload),
        ("attention", "FlexAttention over prefix trees in bf16 and with windows", 90, attention),
        ("sft", "`launch.py sft`", 120, tuned),
        ("reward_model", "`launch.py reward-model`, and its service on the run's GPU", 240, reward_model),
        ("bench_learner", "`bench.learner --quick --device cuda`", 110, benchmark("bench.learner")),
        ("bench_rollout", "`bench.rollout --quick --device cuda`", 110, benchmark("bench.rollout")),
        ("bench_environments", "`bench.environments --quick --device cuda`", 110, benchmark("bench.environments")),
        ("bench_loop", "`bench.loop --quick --device cuda`", 110, benchmark("bench.loop")),
    ]  # fmt: skip
    return [Check(name, about, seconds, _named(measure, name)) for name, about, seconds, measure in measures]


def _named(measure: Callable[[Place, str], str], name: str) -> Callable[[Place], str]:
    return lambda place: measure(place, name)


CHECKS = {check.name: check for check in _checks()}
"""By name, in order of value."""
