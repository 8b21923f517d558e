"""`launch.py evaluate`: evaluates one model, or one against another, on the held-out problems of a recipe. Invariant:
both models answer the same problems under the same judge; every response is written with its verdict."""

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.options import configuration
from commands.preflight import check_configuration
from core.config import (
    Config,
    Device,
    ResolvedConfig,
    RewardModelConfig,
    TaskConfig,
    evaluation_sets,
    task_sources,
    task_title,
)
from core.errors import ActorError, ConfigError
from core.load import load_config
from core.plan import evaluation_placement
from core.records import Rollout
from core.run_directory import write_atomically
from core.sections.base import LARGEST
from core.seeds import generator
from tasks.dialogue.language_judge import Endpoint, check_endpoint, compare_pairs
from tasks.kinds import find_kind
from tasks.pass_at_k import Estimate, bootstrap, share
from trainer import build
from trainer.evaluation.files import check_responses_path, evaluation_record, response_rows, write_responses
from trainer.evaluation.scores import Evaluation, describe_evaluation, evaluate_policy, percent
from trainer.evaluation.table import evaluation_table
from trainer.local import single_process
from trainer.model.files import check_place, inspect_model, load_tokenizer, model_of, run_of

if TYPE_CHECKING:
    from tasks.task import Task


@dataclass(frozen=True, slots=True)
class Comparison:
    """The greedy responses of one model against another's, on the problems that both answered."""

    win_rate: Estimate  # share of problems on which the first has the higher reward; equal rewards count half
    ties: float  # share of problems with equal rewards
    success: Estimate  # first minus second


@dataclass(frozen=True, slots=True)
class JudgedComparison:
    """The greedy responses of one model against another's, compared by a language model."""

    win_rate: Estimate  # mean credit of the first: 1, 1/2 or 0 in each of two orders
    consistent: float  # share of pairs for which both orders gave the same
    unjudged: int  # pairs for which the judge named no better one


def answered_by_both(first: Evaluation, second: Evaluation) -> list[tuple[Rollout, Rollout]]:
    """The greedy responses of two models to the same problems. Raises ActorError when there is no such problem."""
    theirs = {item.start.problem_id: item for item in second.greedy}
    pairs = [(item, theirs[name]) for item in first.greedy if (name := item.start.problem_id) in theirs]
    if not pairs:
        raise ActorError("no held-out problem was answered by both models; see above why engines left them out")
    return pairs


def compare(first: Evaluation, second: Evaluation, seed: int) -> Comparison:
    """The first against the second. Raises ActorError when there is no problem that both answered."""
    pairs = answered_by_both(first, second)
    rewards = [(mine.reward, theirs.reward) for mine, theirs in pairs]
    wins = [float(mine > theirs) + 0.5 * float(mine == theirs) for mine, theirs in rewards]
    gains = [float(mine.verdict.correct) - float(theirs.verdict.correct) for mine, theirs in pairs]
    ties = sum(mine == theirs for mine, theirs in rewards) / len(rewards)
    return Comparison(share(wins), ties, bootstrap(gains, rng=generator(seed, "comparison")))


def compare_by_judge(
    config: RewardModelConfig, task: "Task", first: Evaluation, second: Evaluation
) -> JudgedComparison:
    """The greedy responses of two models, compared by a language model in both orders. Raises ActorError."""
    judge = config.judge
    pairs = [(mine, theirs) for mine, theirs in answered_by_both(first, second)]
    cases = [
        (task.decode(mine.start.prompt_ids), task.decode(mine.response_ids), task.decode(theirs.response_ids))
        for mine, theirs in pairs
    ]
    with closing(Endpoint(judge)) as endpoint:
        preferences = compare_pairs(endpoint, judge.criterion, cases)
    judged = [preference for preference in preferences if preference is not None]
    if not judged:
        raise ActorError(
            f"reward_model.judge: model {judge.model!r} named no better reply in {len(cases)} pairs; use another model"
        )
    consistent = sum(preference.consistent for preference in judged) / len(judged)
    return JudgedComparison(share([preference.credit for preference in judged]), consistent, len(cases) - len(judged))


def evaluate_target(options: Namespace) -> int:
    """`launch.py evaluate`: take the configuration of --config, or of the target's run or export."""
    for path, field in ((options.target, "evaluate"), (options.against, "--against")):
        if path:
            check_place(path, field)
    recipe = recipe_of(options.target) if options.target and not options.config else None
    config = configuration(options, *([recipe] if recipe else []), model=options.target)
    config = all_rows(config, load_config(*options.config or filter(None, [recipe])), options.fields)
    evaluate_models(config, options.target, options.against, options.responses, options.local)
    return 0


def recipe_of(target: str) -> Path | None:
    """The recipe of a run, or of one of its checkpoints, or of its export; None for other models."""
    run, beside = run_of(Path(target)), Path(target).expanduser() / "config.yaml"
    if run is not None:
        return run.config
    if not beside.is_file():
        return None
    try:
        load_config(beside)
    except ConfigError:  # of another program
        return None
    return beside


def all_rows(config: Config, recipe: Config, fields: Sequence[str]) -> Config:
    """The configuration that evaluates all rows of `task.path`, if the options `fields` name rows that are not those of
    the recipe. Other options about evaluation rows count."""
    task, given = config.task, {field.partition("=")[0] for field in fields}
    kind = find_kind(task.name)
    named = "--task.path" in given and "--task.eval_path" not in given and task.path != recipe.task.path
    if not named or task.sources or kind.read is None or kind.rows is not None:
        return config
    rows: dict[str, object] = {"path": "", "eval_path": task.path}
    rows |= {"eval_split": task.split} if "--task.split" in given else {}
    rows |= {} if "--task.eval_problems" in given else {"eval_problems": LARGEST}
    return config.model_copy(update={"task": task.model_copy(update=rows)})


def evaluate_models(
    config: Config, target: str, against: str = "", responses: Path | None = None, local: bool = False
) -> Evaluation:
    """Evaluate `target` (run, checkpoint, model; empty: model.path), maybe `against` another; returns the first's."""
    for path in filter(None, (target, against)):
        check_unseen(config.task, path)
    if target:
        changed: dict[str, Any] = {"path": model_of(Path(target))}
        if config.model.template_date is None and (recipe := recipe_of(target)) is not None:
            changed["template_date"] = load_config(recipe).model.template_date  # prompts as in the training
        config = config.model_copy(update={"model": config.model.model_copy(update=changed)})
    rival = model_of(Path(against)) if against else ""
    if rival and config.reward_model.judge.url:
        check_endpoint(config.reward_model.judge)
    check_configuration(config)
    name = f"{Path(target or config.model.path).name}-{datetime.now():%Y%m%d-%H%M%S}"
    where = responses or config.run.root / "evaluations" / f"{name}.jsonl"
    check_responses_path(where)
    alone = config.cluster.model_copy(update={"colocate": False})  # there is no learner
    config = config.model_copy(update={"cluster": alone})
    config = single_process(config) if local else config
    with build.open_model_and_task(config, training=False) as ready:
        chosen = ready.config
        if rival:
            check_rival(ready.model, rival)
        with build.connected(chosen, f"evaluate-{os.getpid()}", local, evaluation_placement) as device:
            result = evaluate_model(chosen, ready.task, ready.model, device, local)
            rows = list(response_rows(result, ready.task, ready.model))
            write_responses(where, rows)  # written before the other model starts, which may fail
            other = evaluate_model(chosen, ready.task, rival, device, local) if rival else None
        print_evaluation(ready.model, result)
        record: dict[str, object] = {"model": ready.model, "task": task_title(config.task), **evaluation_record(result)}
        if other is not None:
            print_evaluation(rival, other)
            write_responses(where, [*rows, *response_rows(other, ready.task, rival)])
            comparison = compare(result, other, config.run.seed)
            print_comparison(comparison)
            record |= {"against": {"model": rival, **evaluation_record(other)}, "comparison": asdict(comparison)}
            if config.reward_model.judge.url:
                judged = compare_by_judge(config.reward_model, ready.task, result, other)
                print_judged(config.reward_model.judge.model, judged)
                record["judged"] = {"model": config.reward_model.judge.model, **asdict(judged)}
    write_atomically(where.with_suffix(".json"), json.dumps(record, indent=1) + "\n")
    print(f"responses: {where}\nnumbers:   {where.with_suffix('.json')}")
    return result


def evaluate_model(config: ResolvedConfig, task: "Task", model: str, device: Device, local: bool) -> Evaluation:
    """Evaluate a model in new engines."""
    with closing(build.engine_pool(config, model, device, local)) as actors:
        return evaluate_policy(actors, task, build.evaluation_plan(config))


def check_unseen(task: TaskConfig, target: str) -> None:
    """Raises ConfigError when the evaluation would contain problems that the run of `target` was trained on. A run
    holds out `task.eval_problems` of its data, or all of `task.eval_path`, and its evaluation sets. For generated
    problems the hash decides."""
    recipe = recipe_of(target)
    if recipe is None:
        return
    of_run = load_config(recipe).task
    trained = [source.config for source in task_sources(of_run)]
    learnt = {_place(old.path, old.split) for old in trained if old.path}
    for held_out in evaluation_sets(task):
        place = _place(held_out.config.eval_path, held_out.config.eval_split)
        if place in learnt and held_out not in evaluation_sets(of_run):
            raise ConfigError(f"task.eval_sets: {target} was trained on the rows of {held_out.label}; name other data")
    for new in (source.config for source in task_sources(task)):
        place = _place(new.eval_path, new.eval_split)
        if place in learnt and place not in [_place(old.eval_path, old.eval_split) for old in trained]:
            raise ConfigError(f"task.path: {target} was trained on the rows of {new.eval_path}; name other data")
        for old in trained:
            if not new.path or new.eval_path or (new.path, new.split) != (old.path, old.split):
                continue
            if old.eval_path:
                raise ConfigError(
                    f"task.eval_path is empty, but {target} was trained on the rows of task.path; name other data"
                )
            if new.eval_problems > old.eval_problems:
                raise ConfigError(
                    f"task.eval_problems = {new.eval_problems}, but {target} held out {old.eval_problems} and was "
                    "trained on the others; lower it, or name other data in task.eval_path"
                )


def _place(path: str, split: str) -> tuple[str, str]:
    """What names the rows of a data set: a file has no splits."""
    return (str(Path(path).resolve()), "") if Path(path).is_file() else (path, split)


def check_rival(model: str, rival: str) -> None:
    """Raises ConfigError when the two models have different vocabularies: the problems are tokenized only once."""
    inspect_model(rival, "--against")
    if load_tokenizer(model).get_vocab() != load_tokenizer(rival).get_vocab():
        raise ConfigError(f"--against {rival}: it has another vocabulary than {model}; compare models of one tokenizer")


def print_evaluation(model: str, result: Evaluation) -> None:
    """Print the estimates over all problems, then by data set, level and evaluation set."""
    print(f"{model}: {describe_evaluation(result)}")
    print(f"  reward {result.overall.reward.mean:.3f}, truncated {100 * result.truncated:.1f} %")
    for k, estimate in result.overall.passes.items():
        print(f"  pass@{k:<15} {percent(estimate)}")
    if result.overall.majority is not None:
        print(f"  maj@{result.samples:<16} {percent(result.overall.majority)}")
    print(*(f"  {line}" for line in evaluation_table(evaluation_record(result))), sep="\n")


def print_comparison(comparison: Comparison) -> None:
    """Print the win rate."""
    wins, ties = comparison.win_rate, 100 * comparison.ties
    print(f"win rate of the first {percent(wins)} on {wins.problems} problems that both answered, ties {ties:.1f} %")
    print(f"  success, first minus second: {percent(comparison.success)}")


def print_judged(judge: str, comparison: JudgedComparison) -> None:
    """Print the win rate by a language model."""
    wins, missing = comparison.win_rate, comparison.unjudged
    print(f"win rate of the first by {judge}, in both orders: {percent(wins)} on {wins.problems} problems")
    print(f"  the same in both orders: {100 * comparison.consistent:.1f} %; pairs without a verdict: {missing}")
