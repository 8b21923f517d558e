"""Student's t."""

from monitor.student import t_quantile


def test_quantiles_of_t_are_those_of_tables() -> None:
    tables = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 30: 2.042}
    assert {n: round(t_quantile(n), 3) for n in tables} == tables
