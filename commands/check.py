"""`launch.py check`: everything that can be known of a recipe before training, printed.

Invariant: no actor is started and no model is built; what cannot be checked here is said.
"""

import os

from actors.options import check_options, check_training_options, describe_options
from core.config import ClusterConfig, Config
from core.load import dump_config
from core.plan import (
    BatchPlan,
    Bundle,
    Resources,
    batch_plan,
    check_context,
    check_resources,
    choose_device,
    demand,
    placement,
)
from core.seeds import derive
from trainer.model_files import check_judging_model, describe_data, load_task, located

NVIDIA = "/proc/driver/nvidia/gpus"  # one entry per GPU, there without any CUDA library


def print_check(config: Config, offline: bool) -> None:
    """Resolved values, batch arithmetic, placement; then model, data and devices unless `offline`."""
    plan = batch_plan(config)
    check_options(config.rollout, config.cluster.device)
    check_training_options(config)
    print(dump_config(config))
    print(describe_plan(config, plan))
    for line in describe_options(config.rollout):
        print(line)
    device = choose_device(config.cluster, lambda: local_resources().gpus > 0)
    bundles = placement(config, device)
    print(describe_placement(bundles, device))
    if offline:
        print("offline: model, data and devices were not checked")
        return
    print(check_model_and_data(config))
    for line in check_supervised(config):
        print(line)
    check_resources(bundles, cluster_resources(config.cluster))
    print("devices: enough")
    print("check passed")


def describe_plan(config: Config, plan: BatchPlan) -> str:
    """The derived batch arithmetic as text."""
    rollout, learner = config.rollout, config.learner
    return "\n".join(
        (
            "batch arithmetic",
            f"  starts per iteration      {plan.starts}: up to {plan.replayed_starts} replayed (replay.ratio {config.replay.ratio:g}), "
            f"the rest fresh",
            f"  trajectories              {plan.starts} starts x {rollout.samples} samples = {plan.trajectories}",
            f"  minibatch                 {plan.trajectories} / {learner.minibatches} = {plan.minibatch} trajectories per optimizer step",
            f"  optimizer steps           {learner.epochs} epochs x {learner.minibatches} minibatches = {plan.steps_per_iteration} per "
            f"iteration, {plan.total_steps} in {config.run.iterations} iterations",
            f"  context                   {rollout.max_prompt_tokens} prompt + {rollout.max_response_tokens} response = "
            f"{plan.context_tokens} tokens",
            f"  generated tokens          at most {plan.max_tokens:,} per iteration",
        )
    )


def describe_placement(bundles: tuple[Bundle, ...], device: str) -> str:
    """The processes and what they reserve as text."""
    total = demand(bundles)
    rows = [f"  {b.count} x {b.name:<16} {b.cpus:g} CPUs, {b.gpus:g} GPUs each" for b in bundles]
    return "\n".join((f"placement on {device}: {total.cpus:g} CPUs, {total.gpus:g} GPUs in total", *rows))


def check_model_and_data(config: Config) -> str:
    """Read model and data as training would. With a starter model only the data file is read: its tokenizer is not built yet."""
    from tasks.problems import check_template
    from tasks.starter import CONTEXT
    from tasks.task import check_judges, task_items

    if config.model.path == "starter":
        check_template(config.task.template)
        check_context(config, CONTEXT)
        check_judging_model(config)
        train, evaluation, _ = task_items(config.task, derive(config.run.seed, "task"))
        solutions = check_judges(config.task, [*train, *evaluation], located(config.reward_model))
        data = f"{len(train)} training problems, {len(evaluation)} evaluation problems (before the length filter)"
        return f"model: starter, built at the first training run\ndata: {data}\n{solutions}"
    task, info = load_task(config, config.model.path)
    task.close()
    train, evaluation, _ = task_items(config.task, derive(config.run.seed, "task"))
    solutions = check_judges(config.task, [*train, *evaluation], located(config.reward_model))
    size = f", {info.parameters / 1e6:,.1f} M parameters" if info.parameters else ""
    return (
        f"model: {info.architecture}, context {info.context} tokens, vocabulary {info.vocabulary}{size}\n"
        f"{describe_data(task)}\n{solutions}"
    )


def check_supervised(config: Config) -> list[str]:
    """Read the rows of `launch.py sft` and `launch.py reward-model` where they are named; a line for each. Raises DataError."""
    from commands.reward_model import preferences
    from commands.sft import dialogues

    told = []
    if config.sft.path:
        told.append(f"sft: {len(dialogues(config.sft))} dialogues in {config.sft.path}")
    if config.reward_model.pairs:
        told.append(f"reward model: {len(preferences(config.reward_model))} pairs in {config.reward_model.pairs}")
    return told


def local_resources() -> Resources:
    """CPUs of this machine and GPUs that its driver lists."""
    gpus = len(os.listdir(NVIDIA)) if os.path.isdir(NVIDIA) else 0
    return Resources(cpus=float(os.cpu_count() or 1), gpus=float(gpus))


def cluster_resources(cluster: ClusterConfig) -> Resources:
    """Of the running cluster when cluster.address or RAY_ADDRESS names one, else of this machine."""
    if cluster.address == "local" or (cluster.address == "auto" and not os.environ.get("RAY_ADDRESS")):
        return local_resources()
    from trainer.cluster import attached_resources

    return attached_resources(cluster)
