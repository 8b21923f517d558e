"""The protocol of a judge: what it asks for, what it is given, what it returns. The judges are in `tasks`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from core.records import Episode, Verdict


class Asks(NamedTuple):
    """What a judge asks for besides reference and response."""

    needed: Sequence[str] = ()  # columns that it cannot do without
    optional: Sequence[str] = ()  # columns, if the row has them
    every_column: bool = False
    ids: bool = False  # `Case.ids`
    query: bool = False  # `Case.prompt` and `Case.query`
    episode: bool = False  # `Case.episode`; its verdict counts the reward of the last turn
    batch: bool = False  # whether it judges several responses in one call
    shape: str = ""  # how it is called, for a person

    @property
    def nothing(self) -> bool:
        """Whether reference and response are enough."""
        return not any(self._replace(shape=""))


@dataclass(frozen=True, slots=True)
class Case:
    """A response, and what a judge may ask about it. What it does not ask for may be empty."""

    reference: str  # what the verifier needs: the gold answer
    response: str
    where: str = ""  # names the row or the problem in errors
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the row; `prompt` is a text or a list of messages
    ids: Sequence[int] = ()  # [R] tokens of the response
    prompt: str = ""  # as the model reads it
    query: str = ""  # the same with the response
    episode: Episode | None = None  # what an environment said of the continuation
    tokens: int = 0  # C, of the continuation, in which the episode counts its turns


class Judge(Protocol):
    """Judges responses. Lifecycle: `judge` may be called any number of times, then `close` once."""

    @property
    def asks(self) -> Asks:
        """What it asks for besides reference and response."""

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """One verdict per case, in order. A bad response is a verdict, never an exception. Raises ActorError when
        the judge itself is lost, ConfigError when it cannot start."""

    def close(self) -> None:
        """End its processes."""
