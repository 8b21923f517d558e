"""P2: the problems without a success in the assay, and the arm that learns their solutions with a supervised loss. It
sees as many trained tokens as the arm `prefix` of its seed index, and is measured also after few passes, because many
passes over a hundred solutions may be too many."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.real.plan import Result, Run, configuration
from bench.real.splits import fine_tuned
from bench.real.training import State, evaluate, opened
from core.config import ResolvedConfig
from core.errors import ConfigError
from core.records import Problem
from core.run_directory import read_jsonl
from core.seeds import derive
from trainer import build
from trainer.local import single_process
from trainer.records import Components
from trainer.starts import fresh_starts

FEW = 2  # passes
SAMPLES = 16  # of each training problem at the end
Row = dict[str, Any]


def result_of(table: Path, arm: str, seed: int) -> Result:
    """The result of an arm at a seed index. Raises ConfigError."""
    for row in read_jsonl(table):
        if (row["run"]["arm"], row["run"]["seed"]) == (arm, seed):
            return row
    raise ConfigError(
        f"{table}: no result of {arm} at seed index {seed}; first python -m bench.real {table.stem} --arms {arm} "
        f"--seeds {seed}"
    )


def successes(results: Path, seed: int) -> list[int]:
    """Successes of each problem of the assay, in the order of its rows."""
    return list(result_of(results / "assay.jsonl", "gsm8k", seed)["roots"]["success"])


def tokens_of(problems: Sequence[Problem]) -> int:
    """Tokens that one supervised pass over the solutions reads: prompts and solutions."""
    return sum(one.prompt_ids.size + one.solution_ids.size for one in problems if one.solution_ids is not None)


def passes_for(trained: float, each: int) -> int:
    """Passes of `each` tokens that come nearest to so many trained tokens.

    >>> passes_for(1000, 300), passes_for(10, 300)
    (3, 1)
    """
    return max(1, round(trained / each))


def solved(parts: Components, config: ResolvedConfig) -> list[int]:
    """Successes from the root on the training problems, and samples."""
    sampling = build.iteration_settings(config).sampling
    starts = fresh_starts(list(parts.by_id.values()), SAMPLES, derive(config.run.seed, "hints"), iteration=0)
    judged = parts.task.judge(parts.actors.generate(starts, sampling))
    return [sum(item.verdict.correct for item in judged), len(judged)]


def supervised(run: Run, work: Path, warm: str, order: Mapping[str, Any]) -> Row:
    """The measures of the arm `loss`: the model before, after `FEW` passes, and at equal trained tokens."""
    prefix = result_of(Path(order["table"]), "prefix", run.seed)
    trained, passes, each, seconds = sum(prefix["iterations"]["trained_tokens"]), FEW, 0, 0.0
    evaluations: list[Row] = [prefix["evaluations"][0]]  # of the same model on the same problems
    for last in (False, True):
        name = f"{run.name}-{passes}"
        fields = {"model.path": warm, "sft.epochs": passes, "cluster.device": order["device"]}
        model = fine_tuned(run, work, name, "hints", fields)
        config = single_process(configuration(run, work, model, order["changes"], order["device"]))
        with opened(run, config) as (parts, resolved, _):
            each = tokens_of(parts.task.train)
            row = evaluate(parts, build.evaluation_plan(resolved), State())
            evaluations.append(row | {"passes": passes, "trained": passes * each, "solved": solved(parts, resolved)})
        seconds = read_jsonl(work / name / "metrics.jsonl")[-1]["seconds"]
        shutil.rmtree(work / name)
        shutil.rmtree(work / run.name)
        passes = passes if last else passes_for(trained, each)
    return {
        "budget": trained,
        "generated": 0,
        "diverged": False,
        "evaluations": evaluations,
        "iterations": {"trained_tokens": [passes * each], "total_seconds": [seconds]},
        "solved": evaluations[-1]["solved"],
    }
