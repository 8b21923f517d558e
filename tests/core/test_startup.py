"""What is imported stays out of garbage collection, and collection goes on as it was."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from urllib.request import proxy_bypass

import pytest

from core.startup import set_environment, without_gc


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Nothing is left frozen by a test."""
    yield
    gc.unfreeze()
    gc.enable()


class Node:
    """Refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def test_nothing_is_collected_inside_and_what_was_made_there_never_walked_again() -> None:
    before = gc.get_freeze_count()
    with without_gc():
        assert not gc.isenabled()
        kept = [Node() for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    walked = {id(item) for item in gc.get_objects()}
    assert not any(id(node) in walked for node in kept)


def test_later_garbage_is_collected() -> None:
    with without_gc():
        pass
    gc.collect()
    Node()
    assert gc.collect() >= 1


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with without_gc():
        pass
    assert not gc.isenabled()


def test_an_error_inside_leaves_the_collector_running() -> None:
    with pytest.raises(ImportError), without_gc():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize(
    ("given", "own"),
    [("", False), ("*", True), ("10.0.0.7", False), ("judge.example,localhost", True), (".example", True)],
)
def test_a_server_on_this_machine_is_asked_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, own: bool
) -> None:
    for each in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv(name, given)
    set_environment()
    set_environment()
    for host in ("localhost", "127.0.0.1:8000", "0.0.0.0:80"):
        assert proxy_bypass(host)
    assert bool(proxy_bypass("judge.example")) == own


def test_at_its_end_a_process_frees_what_was_left_out() -> None:
    """Libraries in C++ report as leaked what is not."""
    code = """
from core.startup import without_gc

class Node:
    def __init__(self):
        self.me = self
    def __del__(self):
        print("freed")

with without_gc():
    node = Node()
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "freed\n"
