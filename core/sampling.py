"""How continuations are drawn; shared by training rollouts and evaluation."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of one batch of rollouts.

    A start with a prefix of K tokens may generate max_response_tokens - K tokens: the budget is the whole response's.
    """

    temperature: float  # 0: greedy
    top_p: float
    max_response_tokens: int
    repetition_tokens: int = (
        0  # a continuation is cut when its end repeats a pattern of at most so many tokens; 0: never
    )
    repetition_times: int = 2  # ... so many times in a row
