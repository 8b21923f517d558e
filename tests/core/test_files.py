"""Files that a user names."""

import os
from pathlib import Path

import pytest

from core.files import read_whole


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(b"12345")
    assert read_whole(file, 5) == b"12345"
    for place, most in ((pipe, 5), (Path("/dev/zero"), 5), (file, 4)):
        with pytest.raises(OSError, match=str(place)):
            read_whole(place, most)
