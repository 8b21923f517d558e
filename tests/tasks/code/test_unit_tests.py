"""Assertions taken apart: what the program answers, what is asked of the answers, and what is refused."""

import pytest

from tasks.code.unit_tests import TestError, read_setup, split_test


@pytest.mark.parametrize(
    ("test", "holes", "question", "literal"),
    [
        ("assert f(1) == 2", ("f(1)",), "h0 == 2", (2,)),
        ("assert f([1, (2,)], k='x')[0].y == {1: {2}}", ("f([1, (2,)], k='x')[0].y",), "h0 == {1: {2}}", ({1: {2}},)),
        ("assert 2 == f(1)", ("f(1)",), "2 == h0", None),
        ("assert f(1, root.left) == -1.5, 'why'", ("f(1, root.left)",), "h0 == -1.5", (-1.5,)),
        ("assert not f(1)", ("f(1)",), "not h0", None),
        ("assert f(1) is None", ("f(1)",), "h0 is None", None),
        ("assert sorted(f(1)) == [1, 2]", ("sorted(f(1))",), "h0 == [1, 2]", ([1, 2],)),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.01)", ("f(1)",), "math.isclose(h0, 2.5, rel_tol=0.01)", None),
        ("assert abs(f(1) - 2) < 1e-6", ("f(1)",), "abs(h0 - 2) < 1e-06", None),
        ("assert f(1) == 2 and g(2) == 3", ("f(1)", "g(2)"), "h0 == 2 and h1 == 3", None),
        ("assert (s.pop(), s.pop()) == (2, 1)", ("s.pop()", "s.pop()"), "(h0, h1) == (2, 1)", None),
        ("assert len(f(1)) == 2", ("len(f(1))",), "h0 == 2", (2,)),
        ("assert sorted(f(1), key=lambda t: t[0]) == [1]", ("f(1)",), "sorted(h0, key=lambda t: t[0]) == [1]", None),
        ("assert f(1)[0].startswith('ab')", ("f(1)[0]",), "h0.startswith('ab')", None),
        ("assert f(1).upper() == 'A'", ("f(1).upper()",), "h0 == 'A'", ("A",)),
        ("assert Bag([1, 1]).count(1) == 2", ("Bag([1, 1]).count(1)",), "h0 == 2", (2,)),
        ("assert trace([[1]]) == 1", ("trace([[1]])",), "h0 == 1", (1,)),  # no module is called
        ("assert set(divmod(7, 2)) == set([3, 1])", ("set(divmod(7, 2))",), "h0 == set([3, 1])", None),
        ("assert f((1, 2)) == sys.getsizeof((1, 2))", ("f((1, 2))",), "h0 == sys.getsizeof((1, 2))", None),
        ("assert sum(1, 2) == 3", ("sum(1, 2)",), "h0 == 3", (3,)),  # no hole else: the program must define it
        ("assert all(x > 0 for x in f(3)) or f(1)", None, "", None),
    ],
)
def test_assertions_are_taken_apart(
    test: str, holes: tuple[str, ...] | None, question: str, literal: tuple[object] | None
) -> None:
    if holes is None:
        with pytest.raises(TestError, match="comprehension"):
            split_test(test)
        return
    split = split_test(test)
    assert (split.holes, split.question, split.literal) == (holes, question, literal)


@pytest.mark.parametrize("text", ["f(1) == 2", "assert 1 == 1", "assert f(", "assert f(1); assert f(2)", "", "x = 1"])
def test_what_is_no_test_is_refused(text: str) -> None:
    with pytest.raises(TestError):
        split_test(text)


@pytest.mark.parametrize(
    ("test", "setup", "why"),
    [
        ("assert f(1) == expected[1]", "expected = [1, 77]", "it uses expected from the setup"),
        ("assert close(f(1), 3)", "def close(a, b): return abs(a - b) < 1", "it uses close from the setup"),
        ("assert close(f(1), 3)", "import math\nclose = math.isclose", "it uses close"),
        ("assert same", "same = f(1) == 3", "it uses same"),
        ("assert x.y == 1", "x = A()\nx = [1]", "it uses x"),
        ("assert f(1) == P(1, 2)", "", r"several results of the program \(f\(1\) and P\(1, 2\)\)"),
        ("assert abs(f(1) - g(2)) < 1e-6", "", "several results of the program"),
        ("assert (f(1), 2) == P(1, 2)", "", "several results of the program"),
        ("assert (f(1), f(1) == P(1)) == (1, True)", "", "several results of the program"),
        ("assert f(Node(g(1))) == 1", "", "it calls g inside an argument"),
        ("assert list(f(k=[g(1)])) == [1]", "", "it calls g inside an argument"),
        ("assert isinstance(f(1), N)", "", "several results of the program"),
        ("assert isinstance(f(1), Counter)", "from collections import Counter", "an instance of Counter"),
        ("assert callable(f)", "", r"callable\(\) checks an object"),
        ("assert hasattr(f(1), 'x')", "", r"hasattr\(\) checks an object"),
        ("assert f([1]) is not [1]", "", "whether two objects are identical"),
        ("assert abs(min(3, 1) - 1) < 1e-6", "", "it is not clear which of its functions"),
        ("assert gcd(4, 6) == 2", "from math import gcd", "does not call the program"),
        ("assert f(1) == 2", "from math import *", "imports *"),
        ("assert f(1) == 2", "from math import", "the setup is not Python"),
    ],
)  # fmt: skip
def test_what_would_show_an_expected_value_or_cannot_be_judged_is_refused(test: str, setup: str, why: str) -> None:
    with pytest.raises(TestError, match=why):
        split_test(test, read_setup(setup))


@pytest.mark.parametrize(
    ("test", "setup", "hole"),
    [
        ("assert isclose(f(1), 0.333)", "from math import isclose", "f(1)"),
        ("assert m.isclose(f(1), 0.333)", "import math as m", "f(1)"),
        ("assert Counter(f(1)) == Counter([1])", "from collections import Counter", "f(1)"),
        ("assert stack.count(3) == 1", "stack = Stack()", "stack.count(3)"),  # a method of the program's
        ("assert text.startswith('a')", "text = f(1)", "text"),  # of a value
        ("assert f(x) == 1", "x = [1, 2]", "f(x)"),
        ("assert b == 1", "a, b = f(1)", "b"),
    ],
)  # fmt: skip
def test_what_a_setup_binds(test: str, setup: str, hole: str) -> None:
    assert split_test(test, read_setup(setup)).holes == (hole,)
