"""What is kept of another library's error."""

import pytest

from core.config import ReplayConfig
from core.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such file."), "no such file"),
        (ValueError("\n  no such file\nand more"), "no such file"),
        (TimeoutError(), "TimeoutError"),
        (ValueError(" \n\n"), "ValueError"),
    ],
)
def test_the_first_line_with_text_or_the_type(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_pydantic_says_what_is_wrong_after_its_first_line() -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        ReplayConfig(ratio=2.0)
    assert first_line(caught.value).startswith("ratio Input should be less than 1")
