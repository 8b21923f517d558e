r"""False equations in a solution: `400/15 = 300` is wrong, whatever follows it.

Only `a op b = c` is read: numbers joined by + - * /, and one number as the result, in exact fractions. Invariants: an
equation is called false only if no usual reading of it is true, and only on a line that has ended. What may have
another meaning (variables, amounts in words, other units, rounded numbers) is not judged.
"""

import re
from fractions import Fraction
from itertools import pairwise

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_NUMBERS, _OPERATORS = re.compile(_NUMBER), re.compile(r"[-+*/]")
_SUM = re.compile(rf"(?<![\d.,])(?<!\d, )({_NUMBER}(?: *[-+*/] *{_NUMBER})++) *$")
_RESULT = re.compile(rf" *((?>-? *{_NUMBER}))(?! *[-+*/(^!%:\d\\{{])(?![\w,.]*\d|, \d|[A-Za-z_])")
_CALCULATOR = re.compile(r"<<([^<>\n]*)>>")
_TIMES = re.compile(r"×|·|\\times|\\cdot|(?<=\d) ?x ?(?=\d)")
_NOT_READ = re.compile(r"\\?\$|€|£|\\[()\[\]!,]")
_GOES_ON = re.compile(r"[-+*/=] *\n *")
_AMBIGUOUS = re.compile(rf"/ *{_NUMBER} *[*/]|\b0\d")  # 6/2*3, 0900 - 0130
_BREAK = re.compile(r"[,;:](?!\d)|\.(?!\d)")
_WORDS = re.compile(r"[A-Za-z' ]*(?<![A-Za-z'])")
_LONGEST, _LONGEST_LINE = 50_000, 1_000
"""What follows so many characters of a text is not judged, nor is a longer line."""
_OTHER_ARITHMETIC = frozenset(("mod", "modulo", "pmod", "base", "binary", "remainder", "clock", "am", "pm", "frac"))
"""Words of a line that is not judged."""
_AMOUNTS = (
    "twice double doubled half halves triple third thirds quarter quarters dozen dozens hundred hundreds thousand "
    "thousands million millions billion percent squared cubed root times plus minus of and by over divided multiplied "
    "from between page pages day days week weeks month months year years age ages chapter chapters number numbers "
    "question grade"
)
"""Words that change a number beside them, or make it a name or a range."""
_UNITS = frozenset(map(Fraction, (3, 4, 7, 10, 12, 16, 24, 60, 100, 365, 1000, 3600)))
"""Sides that differ by such a factor may be in two units: minutes and hours, dollars and cents, parts and percent."""
_NEAR = Fraction(1, 50)  # by which part a result may miss where a number of the equation may be rounded


def states_false_equation(text: str) -> bool | None:
    """Whether a text, which may end anywhere, states a false equation; None if it states none that can be evaluated.

    >>> [states_false_equation(text) for text in ("400/15 = 300 marbles.\\n", "48/2 = 24\\n", "x = 3\\n", "48/2 = 25")]
    [True, False, None, None]
    """
    judged = None
    lines = _GOES_ON.sub("=?", text[:_LONGEST]).split("\n")
    for line in lines[:-1]:
        if "=" not in line or len(line) > _LONGEST_LINE:
            continue
        for part in (*_CALCULATOR.findall(line), _CALCULATOR.sub("", line)):
            for true in _of_line(part):
                if not true:
                    return True
                judged = False
    return judged


def _of_line(line: str) -> list[bool]:
    """Whether each equation of a line is true, as far as that can be told."""
    line = _TIMES.sub("*", _NOT_READ.sub("", line)).replace("÷", "/").replace("−", "-")
    if not _OTHER_ARITHMETIC.isdisjoint(re.findall(r"[a-z]+", line.lower())):
        return []
    found = []
    for left, right in pairwise(re.split(r"(?<![<>!=:])=(?![=>?])", line)):
        asked, given = _SUM.search(left), _RESULT.match(right)
        if asked is None or given is None:
            continue
        before = _BREAK.split(left[: asked.start()])[-1]
        after = _BREAK.split(right[given.end() :])[0]
        true = _is_true(asked[1], given[1]) if _is_plain(before, after) else None
        if true is not None:
            found.append(true)
    return found


def _is_plain(before: str, after: str) -> bool:
    """Whether what is around an equation leaves its numbers as they are."""
    words = [*before.lower().split()[-2:], *after.lower().split()[:2]]
    return (
        _WORDS.fullmatch(before) is not None
        and (before == "" or before.endswith(" "))
        and not any(sign.isdigit() for sign in after)
        and not set(words) & set(_AMOUNTS.split())
        and all(len(word) > 1 or word in ("a", "i") for word in before.lower().split())  # no variable
    )


def _is_true(asked: str, given: str) -> bool | None:
    """Whether `asked` has the value `given`; None if another reading may be meant."""
    exact, shown = _value(asked), Fraction(given.replace(",", "").replace(" ", ""))
    if exact is None:
        return None
    if exact == shown:
        return True
    away, decimals = abs(exact - shown), len(given.partition(".")[2])
    if decimals and away * 10**decimals < 1:
        return True  # rounded, or cut off
    rounded = "." in asked + given or "/" in asked
    if (rounded and (away < 1 or away < _NEAR * abs(exact))) or _AMBIGUOUS.search(asked):
        return None
    converted = shown != 0 and {abs(exact / shown), abs(shown / exact) if exact else 0} & _UNITS
    return None if converted else False


def _value(text: str) -> Fraction | None:
    """The value of numbers joined by + - * /; None for a division by 0."""
    first, *others = (Fraction(number.replace(",", "")) for number in _NUMBERS.findall(text))
    terms = [first]
    for sign, number in zip(_OPERATORS.findall(text), others, strict=True):
        if sign == "/" and not number:
            return None
        if sign in "*/":
            terms[-1] = terms[-1] * number if sign == "*" else terms[-1] / number
        else:
            terms.append(number if sign == "+" else -number)
    return sum(terms, Fraction(0))
