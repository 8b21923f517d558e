"""`launch.py check`: prints what follows from a recipe, and what was not checked. No actor or model is made."""

import json
import math
import textwrap
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from operator import getitem
from typing import Any

from actors.options import describe_options
from commands.preflight import cluster_resources, preflight
from commands.reward_model import preferences
from commands.sft import dialogues
from core.config import Config, every_source
from core.errors import ModelError
from core.load import FIELDS, check_named, dump_config, load_config, override
from core.machine import this_machine
from core.plan import (
    BatchPlan,
    Bundle,
    Resources,
    batch_plan,
    check_context,
    check_resources,
    choose_device,
    demand,
    describe_imitation,
    generated_bound,
    placement,
    plan_warnings,
)
from core.seeds import derive
from tasks.judging import check_judge
from tasks.kinds import task_items
from tasks.limits import LONGEST_PROMPT, WITHOUT_SOLUTIONS, TokenLimits
from tasks.problems import Item
from tasks.sources import BadRowsError, list_bad_rows
from tasks.synthetic.starter import CONTEXT, check_task
from trainer.build import check_solutions, chosen
from trainer.model.automatic import Note, expected_device, resolved
from trainer.model.files import check_judging_model, inspect_model, load_task, located
from trainer.model.gguf import model_folder
from trainer.model.gpus import describe_gpus, planned_gpus
from trainer.model.needs import critic

LONGEST_VALUE = 100  # characters of a field's value that are shown


def check_recipe(options: Namespace) -> int:
    """Print what differs from the defaults, the algorithm and the plan. Then check model, data and devices, unless
    `offline`. `gpus`: of another machine that is planned for."""
    config = override(load_config(*options.config), options.fields)
    if options.gpus is not None and config.cluster.device == "auto":
        config = override(config, ["--cluster.device", "cuda" if options.gpus else "cpu"])
    planned = None if options.gpus is None else Resources(math.inf, float(options.gpus))  # with any number of CPUs
    try:
        preflight(config, offline=options.offline)
        check_named(config, rows=("sft.path", "reward_model.pairs"))
        print(dump_config(config) if options.all else differences(config), describe_algorithm(config), sep="\n")
        print(describe_plan(config, batch_plan(config)), *describe_options(config.rollout), sep="\n")
        here = choose_device(config.cluster, lambda: this_machine().gpus > 0)
        device = here if options.offline else expected_device(config.cluster)
        bundles = placement(config, device)
        print(describe_placement(bundles, device))
        if options.offline:
            check_resources(bundles, planned or demand(bundles))
            lines = [*offline_plan(config, device), *idle_gpus(bundles, planned or demand(bundles))]
            print(*lines, *plan_warnings(config), "offline: model, data and devices were not checked", sep="\n")
            return 0
        print("\n".join([check_model_and_data(config), *check_supervised(config)]))
    except BadRowsError as error:
        print(list_bad_rows(error.rows))
        raise
    there = planned or cluster_resources(config.cluster)
    check_resources(bundles, there)
    print("devices: enough", *idle_gpus(bundles, there), *plan_warnings(config), "check passed", sep="\n")
    return 0


def differences(config: Config) -> str:
    """The fields that have not their defaults, a paragraph per section. `--all` prints every field."""
    lines = ["fields that differ from their defaults (--all prints every field)"]
    for section, fields in config.model_dump(mode="json").items():
        names = [name.removeprefix(f"{section}.") for name in FIELDS if name.startswith(f"{section}.")]
        default = Config().model_dump(mode="json")[section]
        found = {name: (_value(fields, name), _value(default, name)) for name in names}
        text = ", ".join(f"{name}={_short(value)}" for name, (value, usual) in found.items() if value != usual)
        wrapped = textwrap.wrap(text, 118, initial_indent=f"  {section:<13}", subsequent_indent=" " * 15)
        lines += wrapped if text else []
    return "\n".join(lines)


def _value(fields: Mapping[str, Any], name: str) -> Any:
    return reduce(getitem, name.split("."), fields)


def _short(value: object) -> str:
    text = value if isinstance(value, str) and "\n" not in value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def describe_algorithm(config: Config) -> str:
    """The algorithm in words."""
    own, replay = config.algorithm, config.replay
    critics = {"separate": "a critic of its own weights", "shared": "a critic on the policy's layers", "none": "none"}
    kl = f"{own.kl_coefficient:g} x KL to the first policy ({own.chosen_kl}, in the {own.kl_placement})"
    states = f"up to {100 * replay.ratio:g} % of the starts are replayed states (ranking {replay.ranking})"
    return "\n".join(
        [
            "algorithm",
            f"  advantages {own.estimator}; critic: {critics[critic(config)]}; loss {own.policy_loss}, clipped to "
            f"{1 - own.clip_low:g} .. {1 + own.clip_high:g}, {own.aggregation}; "
            f"{kl if own.kl_coefficient else 'no KL'}",
            f"  {states if replay.ratio else 'no replay'}; {describe_imitation(replay)}",
        ]
    )


def describe_plan(config: Config, plan: BatchPlan) -> str:
    """The derived batch arithmetic as text."""
    rollout, learner, ratio = config.rollout, config.learner, config.replay.ratio
    rest = "the rest fresh" + ("" if config.replay.fill else " or left out")
    kinds = f"up to {plan.replayed_starts} replayed (replay.ratio {ratio:g}), {rest}" if ratio else "all from prompts"
    rows = {
        "starts per iteration": f"{plan.starts}: {kinds}",
        "trajectories": f"{plan.starts} starts x {rollout.samples} samples = {plan.trajectories}",
        "minibatch": f"{plan.trajectories} / {learner.minibatches} = {plan.minibatch} trajectories per optimizer step",
        "optimizer steps": f"{learner.epochs} epochs x {learner.minibatches} minibatches = "
        f"{plan.steps_per_iteration} per iteration, {plan.total_steps} in {config.run.iterations} iterations",
    }
    if rollout.max_prompt_tokens and rollout.max_response_tokens:  # else they follow from the data
        both = f"{rollout.max_prompt_tokens} prompt + {rollout.max_response_tokens} response"
        rows["context"] = f"{both} = {rollout.max_prompt_tokens + rollout.max_response_tokens} tokens"
        rows["generated tokens"] = f"at most {generated_bound(config):,} per iteration"
    return "\n".join(["batch arithmetic", *(f"  {name:<25} {text}" for name, text in rows.items())])


def describe_placement(bundles: tuple[Bundle, ...], device: str) -> str:
    """The processes and the resources that they reserve, as text."""
    total = demand(bundles)
    rows = [f"  {b.count} x {b.name:<16} {b.cpus:g} CPUs, {b.gpus:g} GPUs each" for b in bundles]
    return "\n".join((f"placement on {device}: {total.cpus:g} CPUs, {total.gpus:g} GPUs in total", *rows))


def idle_gpus(bundles: tuple[Bundle, ...], there: Resources) -> list[str]:
    """A line for GPUs that the run leaves idle."""
    asked = demand(bundles).gpus
    if not asked or (idle := int(there.gpus - asked)) < 1:
        return []
    return [f"warning: {idle} of {there.gpus:g} GPUs stay idle; raise rollout.actors and learner.ranks"]


def offline_plan(config: Config, device: str) -> list[str]:
    """The memory plan of the GPUs, from a config.json on this machine. Raises ConfigError when the run does not fit."""
    memory = config.cluster.gpu_memory or this_machine().gpu_memory
    if device != "cuda" or config.model.path == "starter":
        return []
    if not memory:
        return ["memory plan: not made, because a GPU's memory is not known here; name it with --cluster.gpu_memory"]
    try:
        info = inspect_model(model_folder(config.model.path, "model.path"), alone=True)
    except ModelError as error:
        return [f"memory plan: not made, because config.json cannot be read here: {error}"]
    limits = TokenLimits(
        config.rollout.max_prompt_tokens or LONGEST_PROMPT, config.rollout.max_response_tokens or WITHOUT_SOLUTIONS
    )
    found, _ = resolved(config, info, limits, 0, this_machine(), device)
    found = planned_gpus(config, found, info, critic(found), memory)
    return [describe_gpus(found, info, critic(found), memory)]


def check_model_and_data(config: Config) -> str:
    """Read model and data as training does. A starter is not built, so its data are read without a tokenizer."""
    if config.model.path == "starter":
        check_context(config, CONTEXT)
        check_judging_model(config)
        model, task = "starter, built at the first training run", None
        notes: list[Note] = []
    else:
        path = model_folder(config.model.path, "model.path")
        task, info = load_task(config, path)
        task.close()
        from learner.models.pretrained import check_trainable  # imported here, because it takes seconds

        value_path = model_folder(config.learner.value_path, "learner.value_path")
        check_trainable(path, bool(config.learner.lora_rank), value_path)
        config, notes = chosen(config, task, info)
        model = (
            f"{info.architecture}, context {info.context} tokens, vocabulary {info.vocabulary}, "
            f"{info.parameters / 1e6:,.1f} M parameters"
        )
    items = task_items(config.task, derive(config.run.seed, "task"))
    if task is None:
        check_solutions(config.replay, (item.solution for item in items.train))
    left_out = task.left_out if task else items.left_out
    counts = f"{len(items.train)} training problems, {len(items.evaluation)} evaluation problems"
    lines = [f"model: {model}", *([note.text for note in notes] or [f"data: {counts} (before the length filter)"])]
    lines += [list_bad_rows(left_out.bad_rows)] if left_out.bad_rows else []
    for label, _, source in every_source(config.task):
        of_source = [item for item in (*items.train, *items.evaluation, *items.sets) if item.source == label]
        lines += [f"{label}: {len(of_source)} problems"] if label else []
        lines.append(_first_prompt(task.first_prompt(label) if task else None, of_source[0]))
        lines.append(check_judge(source, of_source, located(config)))
    if task is None:
        check_task(config.task)
    return "\n".join(lines)


def _first_prompt(read: str | None, item: Item) -> str:
    """The first prompt as the model reads it; without a tokenizer the text of its item."""
    if read is not None:
        return f"first prompt, as the model reads it: {read!r}"
    if item.messages:
        return f"first prompt: {[asdict(message) for message in item.form.messages(item.messages)]}"
    return f"first prompt: {item.form.text(item.prompt)!r}"


def check_supervised(config: Config) -> list[str]:
    """A line for the rows of each of `launch.py sft` and `reward-model`, if configured. Raises DataError."""
    lines = []
    if config.sft.path:
        lines.append(f"sft: {len(dialogues(config.sft))} dialogues in {config.sft.path}")
    if config.reward_model.pairs:
        pairs, wrong = preferences(config.reward_model)
        lines += [f"reward model: {len(pairs)} pairs in {config.reward_model.pairs}", *wrong]
    return lines
