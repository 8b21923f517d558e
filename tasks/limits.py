"""Most tokens of prompts and responses, as asked or by the lengths in the data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class TokenLimits(NamedTuple):
    """Most tokens of a prompt and of a whole response."""

    prompt: int
    response: int


AskedLimits = tuple[int | None, int | None]
"""The same as asked for: none where a limit follows from the data."""
LONGEST_PROMPT = 2048  # longest prompt that is kept where the limit follows from the data
WITHOUT_SOLUTIONS = 1024  # budget of a response where no canonical solution says how long one is


def chosen_limits(
    asked: AskedLimits, prompts: Sequence[int], solutions: Sequence[Sequence[int]], context: int
) -> TokenLimits:
    """The limits as `asked`, or by the lengths of prompts, of each data set's solutions, and of the model's context. A
    model that has not learnt to be brief writes more than a solution has: a quarter more than 99 % of them need, in
    steps of 32. Without solutions `WITHOUT_SOLUTIONS`.

    >>> chosen_limits((None, None), [90, 60, 9000], [[100] * 99 + [900]], 8192)
    TokenLimits(prompt=90, response=128)
    """
    asked_prompt, asked_response = asked
    bound = min(LONGEST_PROMPT, context // 2, context - (asked_response or 0) - 1)
    prompt = asked_prompt or max((length for length in prompts if length <= bound), default=bound)
    wanted = max((_budget(lengths) for lengths in solutions), default=WITHOUT_SOLUTIONS)
    return TokenLimits(prompt, asked_response or max(2, min(wanted, context - prompt - 1)))


def prompt_room(asked: AskedLimits, chosen: TokenLimits, context: int) -> str:
    """How long a prompt may be, by which setting, and what to do if that is too short."""
    if asked[0] is not None:
        return f"rollout.max_prompt_tokens = {chosen.prompt}; raise it"
    if asked[1] is not None and chosen.prompt == context - asked[1] - 1:
        return (
            f"the {max(0, chosen.prompt)} tokens that rollout.max_response_tokens = {asked[1]} leaves for them in a "
            f"context of {context}; lower it"
        )
    return (
        f"the {chosen.prompt} tokens that are kept by default in a context of {context}; set rollout.max_prompt_tokens"
    )


def _budget(solutions: Sequence[int]) -> int:
    if not solutions:
        return WITHOUT_SOLUTIONS
    return -(-int(1.25 * np.quantile(solutions, 0.99, method="inverted_cdf")) // 32) * 32
