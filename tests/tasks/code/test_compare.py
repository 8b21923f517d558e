"""What equals what: plain values on their way out of a sandbox, and printed text."""

import json
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.code.compare import equal, is_plain, same_output, same_value
from tasks.code.sandbox_values import decode_value, encode_value, to_json


class Pair(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -7, 2**53, -(10**4000), 0.1, -0.0, float("inf"), 1 + 2j, "", "\ud800é\n", b"\x00\xff", [], (),
        [1, (2, [3])], {1, "a"}, frozenset({(1, 2)}), {1: "a", (2,): [None]}, {"k": {"k": {}}}, [[]], [()], {1.5: {2}},
        Decimal("0.5"), Decimal("-1E+10"), Decimal("Infinity"), Fraction(3), Fraction(-1, 3),
    ],
)  # fmt: skip
def test_plain_values_survive_the_way_out_and_equal_themselves_only(value: object) -> None:
    found = json.loads(to_json(encode_value(value)))
    assert decode_value(found) == value
    assert type(decode_value(found)) is type(value)
    assert isinstance(value, Decimal | Fraction) or equal(value, found)  # these are no literals
    assert is_plain(found)
    assert not equal([value], found)
    assert not equal((value,), found)
    assert not equal({"other": value}, found)
    assert not equal("other", found)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_the_json_of_a_value_is_that_of_the_library(value: object) -> None:
    assert to_json(value) == json.dumps(value, separators=(",", ":")).encode()


def test_equality_is_that_of_python() -> None:
    from collections import Counter, OrderedDict

    same = [(1, True), (1.0, 1), ({1: 2}, Counter({1: 2})), ({"a": 1}, OrderedDict(a=1)), ({1, 2}, frozenset({1, 2}))]
    same += [((1, 2), Pair(1, 2)), (2**60, float(2**60)), ({1}, {1: 2}.keys())]
    same += [(3, Fraction(3)), (0.5, Fraction(1, 2)), (0.5, Decimal("0.50")), (2, Decimal(2)), (True, Fraction(1))]
    assert [equal(expected, json.loads(json.dumps(encode_value(found)))) for expected, found in same] == [True] * len(
        same
    )
    different = [([1], (1,)), (1, "1"), (None, 0), ("", None), ({1}, [1]), ({}, []), (0.3, 0.1 + 0.2), ("a", b"a")]
    different += [([1], object()), ([1], [object()]), ({1: 2}, {1: 2, 3: 4}), ({1, 2}, {1, 3}), ([0], range(1))]
    different += [(0.1, Decimal("0.1")), (0.1, Fraction(1, 10)), (float("inf"), Fraction(1)), ("1", Fraction(1))]
    assert [equal(expected, json.loads(json.dumps(encode_value(found)))) for expected, found in different] == [
        False
    ] * len(different)


@pytest.mark.parametrize(
    "found",
    [
        ["l"],
        ["x", 1],
        [],
        ["s", 1, 1],
        ["q", "0x1", "0x0"],
        ["q", "0x1"],
        ["m", "sNaN"],
        ["m", "1" * 10**6],
        ["m", "1E+99999999999999999999"],
        ["d", [1]],
        ["d", 1],
        ["i", "zz"],
        {"a": 1},
        ["o"],
    ],
)
def test_malformed_encodings_equal_nothing(found: object) -> None:
    for expected in ([1], {1}, {1: 2}, 1, 10**400, "x", (), None):
        assert not equal(expected, found)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([*"ltsdicbo", "0xf"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)  # the machine may be busy
@given(JSON)
def test_whatever_a_sandbox_says_is_compared_without_raising(found: object) -> None:
    for expected in ([1], (), {1, (2,)}, {1: [2]}, 1, 1j, 0.5, "l", b"0", None):
        assert equal(expected, found) in (True, False)
    assert is_plain(found) in (True, False)


def test_nesting_that_no_driver_writes_is_not_plain() -> None:
    deep: list[object] = ["l"]
    for _ in range(5000):
        deep = ["l", deep]
    assert not is_plain(deep)


@pytest.mark.parametrize(
    ("expected", "found", "tolerance"),
    [
        ("1 2\n3\n", "1 2\n3", 0), ("1 2", "1  2 \n\n", 0), ("a\nb", "a\r\nb\r\n", 0), ("1.0", "1.00", 0), ("1e3", "1000", 0),
        ("0.333333", "0.3333334", 1e-6), ("1000000", "1000000.5", 1e-6), ("", "\n", 0), ("x 2.50", "x 2.5", 0),
    ],
)  # fmt: skip
def test_the_same_output(expected: str, found: str, tolerance: float) -> None:
    assert same_output(expected, found, tolerance)


@pytest.mark.parametrize(
    ("expected", "found", "tolerance"),
    [
        ("1 2\n3", "1 2 3", 0), ("1 2", "12", 0), ("Yes", "yes", 0), ("1", "1.0000001", 0), ("1", "1.00001", 1e-6), ("1", "", 0),
        ("nan", "NaN", 1e-6), ("inf", "1e400", 1e-6), ("1_0", "10", 0), ("1", "1\n1", 0), ("9" * 500, "9" * 499 + "8", 0),
        ("9" * 375, "8" * 375, 1e-6), ("1e999", "1e998", 1e-6),
    ],
)  # fmt: skip
def test_another_output(expected: str, found: str, tolerance: float) -> None:
    assert not same_output(expected, found, tolerance)


def test_values_from_json() -> None:
    """JSON has neither tuples nor numbers as keys."""
    same: list[tuple[object, object]] = [
        ([1, [2]], (1, (2,))),
        ({"1": [2]}, {1: (2,)}),
        ("a", "a"),
        (None, None),
        ([], ()),
    ]
    assert all(same_value(expected, encode_value(found)) for expected, found in same)
    other: list[tuple[object, object]] = [
        ([1], [1, 2]),
        ([1], {1}),
        ({"1": 2}, {"1": 3}),
        ("1", 1),
        ([1], 1),
        (0.3, 0.1 + 0.2),
    ]
    assert not any(same_value(expected, encode_value(found)) for expected, found in other)
    assert same_value([0.3], encode_value([0.1 + 0.2]), 1e-6)
    assert not same_value([True], encode_value([1.0000001]), 1e-6)


def test_integers_that_no_float_holds() -> None:
    assert not same_value(1, 10**400, 1e-6)
    assert not same_value(10**400, 1.5, 1e-6)
    assert same_value(10**400, encode_value(10**400), 1e-6)
    assert not equal(10**400, encode_value(Fraction(1, 3)))
    assert same_output("9" * 375, "9" * 374 + "8", 1e-6)
