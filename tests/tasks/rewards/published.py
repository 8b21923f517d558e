# ruff: noqa: ANN001, ANN003, ANN201, B905
# mypy: disable-error-code="no-untyped-def,arg-type"
"""Reward functions as the documentation of TRL and the examples of verl have them, and some in our shape."""

import asyncio
import os
import re
import time


def longer_completions(completion_ids, **kwargs):
    """TRL, example 1."""
    return [float(len(ids)) for ids in completion_ids]


def format_reward_func(completions, **kwargs):
    """TRL, example 2: conversational."""
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    completion_contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, content) for content in completion_contents]
    return [1.0 if match else 0.0 for match in matches]


def boxed(completions, ground_truth, **kwargs):
    """TRL, example 3: standard, with a column."""
    matches = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]


def math_reward_func(prompts, completions, task, **kwargs):
    """TRL, example 4: None where it does not apply."""
    rewards = []
    for prompt, completion, t in zip(prompts, completions, task):
        if t == "math":
            rewards.append(1.0 if str(eval(prompt.split("is ")[1].rstrip("?"))) in completion else -1.0)
        else:
            rewards.append(None)
    return rewards


async def async_reward_func(prompts, completions, **kwargs):
    """TRL, example 5."""
    await asyncio.sleep(0.01)
    return [1.0 if completion else 0.0 for completion in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl: its GSM8K score (strict), as a custom reward function."""
    if data_source != "openai/gsm8k" or extra_info["split"] != "train":
        raise NotImplementedError(f"Reward function is not implemented for {data_source=}")
    solution = re.search("#### (\\-?[0-9\\.\\,]+)", solution_str)
    if solution is None:
        return 0
    answer = solution.group(0).split("#### ")[1].replace(",", "").replace("$", "")
    return {"score": 1.0 if answer == ground_truth else 0.1, "acc": answer == ground_truth}


def size_of_the_batch(completions, **kwargs):
    return [float(len(completions))] * len(completions)


def columns_of_the_row(completions, **kwargs):
    assert all(len(values) == len(completions) for values in kwargs.values())
    return [float(len(kwargs["task"][0])) for _ in completions]


def stumbles(completions, **kwargs):
    """Raises on `bad`, sleeps on `slow`, ends its process on `die`, whatever else is in the batch."""
    if "bad" in completions:
        raise ValueError("bad")
    if "slow" in completions:
        time.sleep(600)
    if "die" in completions:
        os._exit(7)
    return [float(len(completion)) for completion in completions]


def too_few(completions, **kwargs):
    return [1.0]


def with_prompt(reference: str, response: str, prompt: str, level: int, bonus: float = 0.5) -> float:
    """Ours, with the prompt and a column; the row has no `bonus`."""
    return level * (response == reference) + bonus * (prompt in response)


async def waits(reference: str, response: str) -> float:
    """Ours, awaited: `slow` never answers."""
    await asyncio.sleep(600 if response == "slow" else 0.2)
    return float(response == reference)


def by_name(response: str, reference: str) -> bool:
    return response == f"{reference}!"


def other_names(completion: str, answer: str) -> bool:
    return completion == f"{answer}!"


def synonym_as_column(answer: str, response: str, reference: str) -> bool:
    return (reference, response, answer) == ("4", "5", "of the row")


def with_default(reference: str, response: str, factor: float = 0.5) -> float:
    return factor * (response == reference)


def unknown(text: str) -> float:
    return 1.0


def prompt_first(prompt: str, response: str) -> float:
    return 1.0


def two_references(answer: str, ground_truth: str) -> float:
    return 1.0


def by_place(*texts: str) -> float:
    return 1.0
