"""What a reward is told of a response, and what it asks for. Judging processes import it: it must stay light."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

IDS = "completion_ids"
"""What a reward asks for to get `Case.ids`."""
QUERY = "query"
"""What a reward asks for to get `Case.text` and `Case.query`."""
_MARK = "\0case"


class Asks(NamedTuple):
    """What a reward asks for besides reference and response: columns, `prompt`, `IDS` or `QUERY`."""

    needed: Sequence[str] = ()  # columns that it cannot do without
    optional: Sequence[str] = ()
    every_column: bool = False
    batch: bool = False  # whether it judges several responses in one call
    shape: str = ""  # how it is called, for a person

    @property
    def nothing(self) -> bool:
        """Whether reference and response are enough."""
        return not (self.needed or self.optional or self.every_column or self.batch)


@dataclass(frozen=True, slots=True)
class Case:
    """A response, and what a reward may ask about it."""

    reference: str
    response: str
    where: str = ""  # names the row or the problem in errors
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the row; `prompt` is a text or a list of messages
    ids: Sequence[int] = ()  # tokens of the response
    text: str = ""  # the prompt as the model reads it
    query: str = ""  # the same with the response

    def ask(self) -> str:
        """All but the response as one text, for a judging process; `load_case` reads it."""
        return _MARK + json.dumps(asdict(self) | {"response": ""}, default=str)


def load_case(asked: str, response: str) -> Case:
    """What `Case.ask` wrote, with the response. Any other text is a reference of which nothing else is known."""
    if not asked.startswith(_MARK):
        return Case(asked, response)
    return Case(**json.loads(asked.removeprefix(_MARK)) | {"response": response})
