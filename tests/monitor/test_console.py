"""What a person sees: the table on a terminal of 100 columns, one line per iteration elsewhere."""

import io
import math
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from monitor.console import (
    COLUMNS,
    ROOMY,
    WIDTH,
    RunConsole,
    byte_count,
    duration,
    metrics_table,
    phases_line,
    plain_line,
)
from tests.trainer.examples import iteration, lasting
from trainer.metrics import SourceMetrics


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sized(monkeypatch: pytest.MonkeyPatch, width: int) -> Terminal:
    """A terminal of 40 lines."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "40")
    return Terminal()


def test_a_file_gets_one_line_per_iteration() -> None:
    stream = io.StringIO()
    with closing(RunConsole("mine", 10, hints=["dashboard http://127.0.0.1:8265"], stream=stream)) as console:
        assert console.live is None
        console.phase("generate")
        console.write(iteration(1))
        console.write(iteration(2))
        console.note("checkpoint\nwritten")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "run mine: 10 iterations"
    assert lines[1] == "dashboard http://127.0.0.1:8265"
    assert lines[3].startswith(
        "iteration 2/10: root 27.0 %, replayed 50.0 %, held out 29.0 % (reward 0.340), reward 0.270"
    )
    assert lines[3].endswith(" | 6.5 s, 0:52 left")  # 8 iterations x 6.5 s
    assert lines[4] == "checkpoint written"
    assert "\x1b" not in stream.getvalue()


def test_absent_numbers_are_left_out_of_the_line() -> None:
    line = plain_line(iteration(1), 10, "")
    assert "replayed " not in line
    assert "held out" not in line
    assert "nan" not in line


def test_a_line_fits_a_terminal_whatever_it_says() -> None:
    long = replace(iteration(1200), root_success=1.0, replay_success=1.0, evaluation_success=1.0, policy_steps=0)
    for metrics in (iteration(1), iteration(2), long, replace(long, skipped_steps=3, reward=-1000.0)):
        line = plain_line(metrics, 1500, "1:02:52")
        assert 80 < len(line) <= WIDTH
        assert line.endswith("1:02:52 left")


def test_a_held_out_reward_that_is_the_success_is_said_once() -> None:
    assert "(reward" not in plain_line(replace(iteration(2), evaluation_reward=0.29), 10, "")


def test_an_update_that_does_not_happen_is_told() -> None:
    idle = replace(iteration(3), policy_steps=0)
    assert ", policy not updated | " in plain_line(idle, 10, "")  # in the critic's warm-up
    for equal in (replace(idle, equal_groups=1.0), replace(idle, equal_groups=math.nan, reward_deviation=0.0)):
        assert "policy not updated: equal rewards" in plain_line(equal, 10, "")
        assert "policy not updated: equal rewards" in phases_line(equal).plain
    assert "not updated" not in plain_line(replace(idle, skipped_steps=4), 10, "")


def test_the_data_sets_of_a_mixture_are_named_in_both() -> None:
    source = SourceMetrics(starts=3.0, root_success=0.125, replay_success=0.5, reward=0.5, evaluation_success=1.0)
    mixed = replace(iteration(3), sources={"words": source, "math": replace(source, root_success=math.nan)})
    assert ", words 12.5 % | " in plain_line(replace(mixed, replay_success=math.nan, truncated_share=math.nan), 10, "")
    assert phases_line(mixed).plain.endswith(", words 12.5 %")


def test_trouble_is_told_in_both() -> None:
    bad = replace(iteration(3), restarts=1, skipped_steps=2)
    assert ", 1 restarts of rollout actors, 2 skipped steps | " in plain_line(bad, 10, "")
    assert phases_line(bad).plain.endswith(", 1 restarts of rollout actors, 2 skipped steps")
    assert phases_line(iteration(3)).plain == (
        "seconds: generate 3.0, reward 0.2, score 0.8, replay 0.1, update 2.0, broadcast 0.2, other 0.1"
    )


def test_the_table_fits_100_columns_and_24_lines() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, height=24)
    console.print(metrics_table([iteration(number) for number in range(1, COLUMNS + 2)], roomy=False))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 24 - 4  # header, hint, progress bar, phases
    assert max(len(line.rstrip()) for line in lines) <= 100
    assert "…" not in stream.getvalue()  # rich's mark for a cell that was cut
    assert lines[0].split() == ["iteration", *map(str, range(1, COLUMNS + 2))]
    (replayed,) = [line for line in lines if line.startswith("success, replayed")]
    assert replayed.split()[2] == "-"  # nothing was replayed in the first iteration
    assert "50.0 %" in replayed


def test_a_tall_terminal_shows_more_and_it_fits() -> None:
    stream = io.StringIO()
    first = replace(iteration(1), covered_from_root=0.25, visited=1.0, visits=3.5)
    Console(file=stream, width=100, height=ROOMY).print(metrics_table([first], roomy=True))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= ROOMY - 4
    assert [line.split()[-1] for line in lines[-3:]] == ["%", "%", "3.5"]


def test_a_terminal_gets_a_table_with_the_first_and_the_newest_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = sized(monkeypatch, 100)
    with closing(RunConsole("mine", 40, hints=["tensorboard --logdir x"], stream=stream)) as console:
        for number in range(1, 13):
            console.write(iteration(number))
        console.note("checkpoint 12")
        console.phase("update")
        shown = io.StringIO()
        Console(file=shown, width=100).print(console.render())
    text = shown.getvalue()
    assert "Retrospect · mine" in text
    assert "tensorboard --logdir x" in text
    assert "iteration 12/40" in text
    assert "update" in text
    (head,) = [line for line in text.splitlines() if line.startswith("iteration  ")]
    assert head.split() == ["iteration", "1", "7", "8", "9", "10", "11", "12"]
    assert "checkpoint 12" in stream.getvalue()


@pytest.mark.parametrize(("width", "iterations"), [(60, 3), (80, 5), (100, 7), (160, 7)])
def test_a_narrow_terminal_shows_fewer_iterations(width: int, iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = sized(monkeypatch, width)
    with closing(RunConsole("mine", 40, earlier=[iteration(n) for n in range(1, 21)], stream=stream)) as console:
        shown = io.StringIO()
        Console(file=shown, width=width).print(console.render())
    (head,) = [line for line in shown.getvalue().splitlines() if line.startswith("iteration  ")]
    assert head.split() == ["iteration", "1", *(str(n) for n in range(22 - iterations, 21))]
    assert "…" not in shown.getvalue()


def test_a_terminal_is_recognised() -> None:
    with closing(RunConsole("mine", 2, stream=Terminal())) as console:
        assert console.live is not None
        console.write(iteration(1))


def test_a_resumed_run_goes_on_with_its_numbers() -> None:
    stream = io.StringIO()
    with closing(RunConsole("mine", 10, earlier=[lasting(1, 2.0), lasting(2, 4.0)], stream=stream)) as console:
        console.write(lasting(3, 6.0))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "run mine: 10 iterations, resumed after iteration 2"
    assert lines[1].startswith("iteration 3/10")
    assert lines[1].endswith("0:28 left")  # 7 x (2 + 4 + 6) / 3


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_log_keeps_what_was_shown(stream: type[io.StringIO], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "retrospect.console")
    with closing(RunConsole("mine", 10, stream=stream())) as console:
        console.write(iteration(2))
        console.note("checkpoint written")
    assert caplog.messages[-2].startswith("iteration 2/10: root 27.0 %")
    assert caplog.messages[-1] == "checkpoint written"


def test_byte_counts() -> None:
    assert [byte_count(value) for value in (0, 1023, 2560, 3 * 2**20, 5 * 2**29)] == [
        "0 B",
        "1023 B",
        "2.5 KiB",
        "3.0 MiB",
        "2.5 GiB",
    ]


def test_durations() -> None:
    assert [duration(value) for value in (0.4, 59.6, 125, 3725)] == ["0:00", "1:00", "2:05", "1:02:05"]
