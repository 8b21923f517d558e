"""The comparison that replay of canonical solutions needs: supervised training on the same solutions.

`python -m bench.real.supervised` trains on the training problems of `hard` in plain torch, with the rate of the recipe
and about as many optimizer steps as a run has. It writes the success on the held-out problems to the table. With
`--part after` it teaches the model with which the runs of that part begin, and leaves it in the folder of the runs.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.models import ROOT
from bench.real.plan import TAUGHT_FIELDS, TUNING_SEED, configuration, supervised_model
from bench.report import RESULTS
from bench.runs import Fields, Run, append_line
from core.records import Problem
from tasks.pass_at_k import pass_at_k
from tasks.synthetic.sums import verify_sums
from tasks.task import Task
from trainer.build import open_model_and_task
from trainer.local import single_process

STEPS = {"hard": 26, "after": 40}  # of the optimizer; a run of `canonical` in `hard` has 24 to 28
PROBLEMS: Mapping[str, Fields] = {"hard": {}, "after": TAUGHT_FIELDS}  # that are trained on
RATE = 2e-5  # of all runs of the part
ROWS = 8  # solutions of a step
SAMPLES = 4
BATCH = 50  # held-out prompts that are answered together


def rows(problems: Sequence[Problem], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [P, T] of prompts with their solutions, and labels [P, T]: -100 outside of the solutions."""
    texts = [(problem.prompt_ids, problem.solution_ids) for problem in problems if problem.solution_ids is not None]
    longest = max(len(prompt) + len(solution) for prompt, solution in texts)
    ids, labels = (torch.full((len(texts), longest), value) for value in (pad, -100))
    for row, (prompt, solution) in enumerate(texts):
        end = len(prompt) + len(solution)
        ids[row, :end] = torch.tensor([*prompt.tolist(), *solution.tolist()])
        labels[row, len(prompt) : end] = torch.tensor(solution.tolist())
    return ids, labels


@torch.no_grad()
def evaluate(model: Any, task: Task, budget: int) -> dict[str, float]:
    """Success on the held-out problems, sampled at temperature 1."""
    pad, problems, passed = task.tokenizer.pad_token_id or 0, task.evaluation, list[int]()
    for first in range(0, len(problems), BATCH):
        some = problems[first : first + BATCH]
        longest = max(len(problem.prompt_ids) for problem in some)
        ids = torch.full((len(some), longest), pad)
        mask = torch.zeros_like(ids)
        for row, problem in enumerate(some):
            ids[row, longest - len(problem.prompt_ids) :] = torch.tensor(problem.prompt_ids.tolist())
            mask[row, longest - len(problem.prompt_ids) :] = 1
        drawn = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": SAMPLES}
        written = model.generate(ids, attention_mask=mask, max_new_tokens=budget, pad_token_id=pad, **drawn)
        texts = task.tokenizer.batch_decode(written[:, longest:], skip_special_tokens=True)
        right = [verify_sums(some[at // SAMPLES].reference, text).correct for at, text in enumerate(texts)]
        passed += [sum(right[at : at + SAMPLES]) for at in range(0, len(right), SAMPLES)]
    return {f"pass@{k}": sum(pass_at_k(SAMPLES, one, k) for one in passed) / len(passed) for k in (1, SAMPLES)}


def train(model: Any, task: Task, steps: int) -> None:
    """`steps` times `ROWS` solutions, in epochs of random order."""
    ids, labels = rows(task.train, task.tokenizer.pad_token_id or 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    order = torch.zeros(0, dtype=torch.long)
    for _ in range(steps):
        order = order if len(order) >= ROWS else torch.randperm(len(ids))
        chosen, order = order[:ROWS], order[ROWS:]
        loss = model(ids[chosen], labels=labels[chosen]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """The runs of the seed indices that are given."""
    parser = argparse.ArgumentParser(prog="python -m bench.real.supervised", description=__doc__)
    parser.add_argument("--part", choices=STEPS, default="hard")
    parser.add_argument("--seeds", nargs="+", type=int, default=[TUNING_SEED])
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "real", help="folder of the runs")
    given = parser.parse_args()
    for seed in given.seeds:
        config = single_process(configuration(Run("hard", "ppo", seed), given.work, PROBLEMS[given.part]))
        with open_model_and_task(config) as ready:
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_pretrained(ready.model, dtype=torch.float32)
            begun = time.monotonic()
            train(model, ready.task, STEPS[given.part])
            if given.part == "after":
                model.save_pretrained(supervised_model(given.work, seed))
                ready.task.tokenizer.save_pretrained(str(supervised_model(given.work, seed)))
            found = evaluate(model, ready.task, config.rollout.max_response_tokens)  # type: ignore[arg-type]
            row = {
                "part": given.part,
                "seed": seed,
                "steps": STEPS[given.part],
                **found,
                "seconds": time.monotonic() - begun,
            }
            print(row, flush=True)
            append_line(Path(RESULTS / "real" / "supervised.jsonl"), row)


if __name__ == "__main__":
    main()
