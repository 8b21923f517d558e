"""How continuations are drawn, in training rollouts and in evaluation."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of one batch of rollouts.

    max_response_tokens counts the whole response: a start with a prefix of K tokens may generate max_response_tokens - K more.
    """

    temperature: float  # 0: greedy
    top_p: float
    max_response_tokens: int
    # A continuation is cut when its end repeats a pattern of at most repetition_tokens tokens, repetition_times times in a row.
    repetition_tokens: int = 0  # 0: never
    repetition_times: int = 2
