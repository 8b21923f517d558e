"""Machines for tests of clusters."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.machines import Machine


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """Makes a machine of the address that it is given. All share Ray's token."""
    token = secrets.token_hex(32)
    with ExitStack() as stack:

        def _make(address: str) -> Machine:
            machine = Machine(tmp_path / address, address, token)
            stack.callback(machine.kill)
            return machine

        yield _make
