"""Processes of environments: what goes right, and everything that a user's environment may do instead."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil
import pytest

from core.config import RolloutConfig
from core.environments.protocol import Answer, digest, load_environment
from core.environments.workers import Workers
from core.errors import ConfigError
from core.records import World

PROBLEM = World("p", "apples", "gold")


@contextmanager
def workers(name: str, **fields: Any) -> Iterator[Workers]:
    settings: dict[str, Any] = {"environment_workers": 1, "environment": f"tests.environments:{name}"} | fields
    with closing(Workers(RolloutConfig(**settings))) as found:
        yield found


def answers(found: Workers, count: int, seconds: float = 60.0) -> dict[int, Answer]:
    """The next `count` answers by episode."""
    heard: dict[int, Answer] = {}
    end = time.monotonic() + seconds
    while len(heard) < count:
        assert time.monotonic() < end
        heard |= dict(found.poll(1.0))
    return heard


def wait_for_a_new_process(found: Workers) -> None:
    """Until an environment that hangs has been ended with its process; nobody answers meanwhile."""
    end = time.monotonic() + 60
    while not found.replaced:
        assert found.poll(0.2) == []
        assert time.monotonic() < end


def opened(found: Workers, count: int = 1) -> list[int]:
    numbers = [found.open(PROBLEM) for _ in range(count)]
    assert not any(answer.error for answer in answers(found, count).values())
    return numbers


def test_an_episode_with_async_methods_rewards_and_a_snapshot() -> None:
    with workers("Counter", environment_options={"turns": 2}) as found:
        number = found.open(PROBLEM)
        first = answers(found, 1)[number]
        assert [message["content"] for message in first.messages] == ["Count.", "apples"]
        found.step(number, "a")
        middle = answers(found, 1)[number]
        assert (middle.messages[0]["content"], middle.reward, middle.done, middle.correct) == (
            "apples 1",
            0.25,
            False,
            False,
        )
        again = found.open(PROBLEM, middle.snapshot)
        assert answers(found, 1)[again].messages == []
        for one in (number, again):
            found.step(one, "good")
            last = answers(found, 1)[one]
            assert (last.reward, last.done, last.correct, last.detail) == (0.5, True, True, "good")
            found.end(one)
        assert found.poll(0.1) == []
        assert len(found) == found.replaced == 0


def test_slow_steps_of_many_episodes_run_at_the_same_time() -> None:
    with workers("Echo", environment_options={"delay": 1.0}) as found:
        numbers = opened(found, 32)
        begun = time.monotonic()
        for number in numbers:
            found.step(number, f"{number}b")
        assert {one.messages[0]["content"] for one in answers(found, 32).values()} == {"<b>"}
        assert time.monotonic() - begun < 8  # one after the other they sleep about 16 s


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("raise", "step raised ValueError: not a move"),
        ("shape", "step raised TypeError: step returned str; return"),
        ("nan", "step raised ValueError: step returned the reward nan"),
        ("hang", "step took longer than 3 s"),
        ("spin", "step took longer than 3 s"),
        ("die", r"its process ended \(exit status 3\)"),
        ("leak", "its process used more than 0.25 GiB"),
    ],
)
def test_what_fails_is_lost_alone_and_the_others_go_on(
    action: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.environments.workers.MEMORY_GIB", 0.25)
    limit = 3.0 if action in ("hang", "spin") else 60.0
    monkeypatch.setattr("core.environments.workers.STEP_SECONDS", limit)
    with workers("Bad") as found:
        bad, good = opened(found, 2)
        found.step(good, "a")
        assert answers(found, 1)[good].messages[0]["content"] == "step 1"
        found.step(bad, action)
        assert reason.replace("\\", "") in answers(found, 1)[bad].error
        found.step(good, "b")
        assert answers(found, 1)[good].messages[0]["content"] == "step 2"  # in another process it was repeated
        assert found.replaced == (action in ("hang", "spin", "die", "leak"))
        assert len(found) == 1
        opened(found)


def test_of_several_that_wait_when_their_process_ends_all_are_lost_and_the_others_go_on() -> None:
    with workers("Bad") as found:
        bad, waiting, good = opened(found, 3)
        found.step(good, "a")
        answers(found, 1)
        found.step(waiting, "hang")
        found.step(bad, "die")
        assert {one: "exit status 3" in answer.error for one, answer in answers(found, 2).items()} == {
            bad: True,
            waiting: True,
        }
        found.step(good, "b")
        assert answers(found, 1)[good].messages[0]["content"] == "step 2"
        assert found.replaced == 1


def test_episodes_of_two_processes_are_late_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.environments.workers.STEP_SECONDS", 2.0)
    with workers("Bad", environment_workers=2) as found:
        numbers = opened(found, 4)
        for number in numbers:
            found.step(number, "hang")
        time.sleep(2.5)
        assert all("took longer" in answer.error for answer in answers(found, 4).values())
        assert found.replaced == 2


def test_what_a_process_has_said_before_its_end_is_not_answered_twice() -> None:
    """The answer and the end come at once, and nobody else waits."""
    with workers("Bad") as found:
        (number,) = opened(found)
        found.step(number, "a")
        time.sleep(1.0)
        found._processes[0].stop()
        time.sleep(0.5)
        heard = found.poll(5.0)
        assert [one for one, _ in heard] == [number]
        assert heard[0][1].error


def test_an_episode_that_has_raised_is_closed_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.environments.workers.MEMORY_GIB", 0.25)
    with workers("Bad") as found:
        for _ in range(6):  # of 60 MB each
            (number,) = opened(found)
            found.step(number, "fat")
            assert "not a move" in answers(found, 1)[number].error
            assert len(found) == 0
        assert found.replaced == 0


def test_what_an_environment_raises_is_said_before_a_close_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.environments.workers.STEP_SECONDS", 3.0)
    with workers("Bad") as found:
        bad, good = opened(found, 2)
        found.step(bad, "close")
        answers(found, 1)
        found.step(bad, "raise")
        assert "not a move" in answers(found, 1, seconds=2.0)[bad].error
        wait_for_a_new_process(found)
        found.step(good, "a")
        assert answers(found, 1)[good].messages[0]["content"] == "step 1"


def test_strings_have_the_same_hashes_in_all_processes() -> None:
    with workers("Hashes", environment_workers=2) as found:
        numbers = [found.open(PROBLEM) for _ in range(2)]
        heard = answers(found, 2)
        assert heard[numbers[0]].messages == heard[numbers[1]].messages


def test_what_it_prints_and_reads_reaches_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    with workers("Bad") as found:
        (number,) = opened(found)
        found.step(number, "print")
        assert "EOFError" in answers(found, 1)[number].error  # `input()` finds nothing
    out, err = capfd.readouterr()
    assert out == ""
    assert "x" * 1000 in err
    assert "forged" in err


def test_an_episode_that_cannot_be_repeated_is_lost_with_the_process() -> None:
    with workers("Bad") as found:
        odd, bad = opened(found, 2)
        found.step(odd, "random")
        answers(found, 1)
        found.step(bad, "die")
        heard = answers(found, 2)
        assert "answered differently" in heard[odd].error


def test_a_close_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.environments.workers.STEP_SECONDS", 3.0)
    with workers("Bad") as found:
        first, second = opened(found, 2)
        found.step(first, "close")
        answers(found, 1)
        found.end(first)
        wait_for_a_new_process(found)
        found.step(second, "a")
        assert answers(found, 1)[second].messages[0]["content"] == "step 1"


def test_an_episode_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.environments.workers.EPISODE_SECONDS", 1.0)
    with workers("Bad") as found:
        (number,) = opened(found)
        time.sleep(1.1)
        found.step(number, "hang")  # an answer that is there at once would count
        assert "its episode longer than 1 s" in answers(found, 1)[number].error


def test_the_processes_end_with_it() -> None:
    with workers("Echo", environment_workers=2):
        children = [one for one in psutil.Process().children() if "core.environments.worker" in one.cmdline()]
        assert len(children) == 2
    assert not any(one.is_running() for one in children)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("tests.environments:Nothing", "AttributeError"),
        ("nowhere:Game", "ModuleNotFoundError"),
        ("tests.environments:LETTERS", "it has no methods reset and step"),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(path: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=rf"rollout\.environment '{path}'.*{wrong}"):
        load_environment(path)
    with pytest.raises(ConfigError, match=rf"rollout\.environment '{path}'.*{wrong}"):
        Workers(RolloutConfig(environment=path))


def test_a_problem_has_a_seed_of_its_own() -> None:
    assert PROBLEM.seed == World("p", "other words", "").seed != World("q", "apples", "gold").seed
    assert digest([{"role": "user", "content": "a"}]) != digest([{"role": "system", "content": "a"}])
