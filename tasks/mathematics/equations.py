r"""False equations in a solution: `400/15 = 300` is wrong, whatever follows it.

The equations that a text states about numbers are found and evaluated exactly. Invariants: an equation is called false
only if no usual reading of it is true, and only if nothing that may follow the text can change it. What cannot be
evaluated (variables, numbers in words, unit conversions) is not judged.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from tasks.mathematics.expressions import NoValueError, Token, plain, tokens, value

_CALCULATOR = re.compile(r"<<([^<>\n]*)>>")
_LINES = re.compile(r"\n|\\\\")
_CONTINUED = re.compile(r"(?<=[\w)}$])( ?(?:[-+*/=]|\\times|\\cdot) ?)\n")
_LONGEST, _LONGEST_LINE = 50_000, 5_000
"""What follows so many characters of a text is not judged, nor is a longer line."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATIONS = {"times": "*", "plus": "+", "minus": "-", "of": "*"}
_BEFORE_BY = {"multiplied": "*", "divided": "/"}
_FILLERS = _words("a an the his her their its another all these those about only $ € £")
_RATES = _words("at each per of for by more less fewer than every with from between to and")
"""Words after which an expression may belong to the number before them: `3 boxes at $2 + 1`."""
_AMOUNTS = _words(
    "twice double doubled half halves triple tripled thrice quarter quarters third thirds dozen dozens hundred "
    "hundreds thousand thousands million millions billion billions trillion squared cubed root mod modulo pmod "
    "couple score k"
)
"""Words that stand for numbers or operations: next to an expression, they change its value."""
_NAMED = _words(
    "page pages day days year years week weeks month months age ages chapter chapters from between question "
    "questions grade grades number numbers step steps line lines row rows"
)
"""Words after which a number is a name or a range: `day 1 * 2`, `pages 10-20`."""
_BREAKS = _words("so then because since is are was were if when as that")
_CONJUNCTIONS = _BREAKS | {"of", "and", "or"}
_ABOUT = _words(
    "round rounded rounding rounds about approximately approx approximate nearest full whole complete completely "
    "left over remainder remaining least most up down only roughly almost nearly"
)
"""Words of a line in which a whole number may stand for a quotient."""
_FAMILIES = tuple(
    _words(family)
    for family in (
        "second sec minute min hour hr day week month year decade century",
        "inch foot feet ft yard yd mile mi cm mm m km meter kilometer centimeter millimeter metre kilometre",
        "ounce oz pound lb ton g kg gram kilogram mg",
        "cup pint quart gallon ml l liter litre teaspoon tablespoon",
        "$ € £ dollar cent ¢ penny pennie nickel dime quarter buck",
        "degree radian",
    )
)
"""Units that convert into each other."""
_MEASURES = frozenset[str]().union(*_FAMILIES)
_MONEY = _words("$ dollars dollar cents cent")
_SHORT_UNITS = _words("a $ € £ ¢ I")
_HUNDREDTH, _UNIT = Fraction(1, 100), Fraction(1)
_EXACT = Fraction(1, 10**70)
_ROUNDED = re.compile(r"\.[0-9]+(?!00|25|50|75)[0-9]{2}$|\.(?!00|[0-9]0|25|75|[0-9]5)[0-9]{2}$")
"""A number that may be rounded: two or more decimals that are no quarters or twentieths."""
_GLUED_UNITS = _MEASURES | _words("hrs mins lbs h am pm mph kph s")


@dataclass(frozen=True, slots=True)
class Equation:
    """A stated equation; `true` is None where it cannot be judged."""

    text: str
    true: bool | None


@dataclass(slots=True)
class _Run:
    """An expression in a line, with the words around and inside it."""

    parts: list[Token] = field(default_factory=list)
    lead: list[str] = field(default_factory=list)  # the words before it
    units: list[list[str]] = field(default_factory=list)  # words after its operands
    tail: list[str] = field(default_factory=list)  # the words after it
    follows: bool = False  # only words are between it and another number
    bad: bool = False  # something unknown is in it or next to it
    doubtful: bool = False  # it has other readings

    @property
    def single(self) -> bool:
        """Whether it is one number."""
        return sum(part.kind == "number" for part in self.parts) == 1

    @property
    def operators(self) -> list[str]:
        """Its operators between two operands."""
        return [part.text for one, part in pairwise(self.parts) if one.operand and part.kind == "operator"]

    @property
    def computed(self) -> bool:
        """Whether it has an operator."""
        return bool(self.operators)


def states_false_equation(text: str) -> bool | None:
    """Whether a text, which may end anywhere, states a false equation; None if it states none that can be evaluated.

    >>> [states_false_equation(text) for text in ("400/15 = 300 marbles.\\n", "48/2 = 24\\n", "x = 3\\n", "48/2 = 2")]
    [True, False, None, None]
    """
    judged = None
    for equation in equations(text[:_LONGEST]):
        if equation.true is False:
            return True
        judged = False if equation.true else judged
    return judged


def equations(text: str) -> Iterator[Equation]:
    """The equations of a text, line by line. What follows the last line break may go on and is judged only where that
    cannot matter."""
    *ended, last = _LINES.split(_CONTINUED.sub(r"\1", text))
    for line, end in (*((line, "\n") for line in ended), (last, "")):
        if "=" not in line or len(line) > _LONGEST_LINE:
            continue
        for inside in _CALCULATOR.findall(line):
            yield from _of_line(inside + "\n")
        yield from _of_line(_CALCULATOR.sub("", line).partition("<<")[0] + end)


def _of_line(line: str) -> Iterator[Equation]:
    """The equations of one line, which has ended if a line break is its last character."""
    line = plain(line)
    sides: list[list[Token]] = [[]]
    for token in tokens(line):
        if token.kind == "equals":
            sides.append([])
        else:
            sides[-1].append(token)
    words = {token.text.lower() for side in sides for token in side if token.kind == "word"}
    words |= set() if line.endswith("\n") else _ABOUT  # the line may go on with "rounded down"
    for number, (left, right) in enumerate(pairwise(sides)):
        before, after = _last_run(left, first=number == 0), _first_run(right)
        closed = number + 2 < len(sides) or any(token.kind == "break" for token in right)
        if not before.parts or not after.parts:
            continue
        at = before.parts[0].at
        end = after.parts[-1].at + len(after.parts[-1].text)
        yield Equation(line[at:end], _judged(before, after, words) if closed else None)


def _last_run(side: Sequence[Token], first: bool) -> _Run:
    """The expression that ends a side. `first`: the side begins its line, perhaps with a bullet."""
    start = next((at + 1 for at in range(len(side) - 1, -1, -1) if side[at].kind == "break"), 0)
    if first and not start and len(side) > 1 and side[0].text in ("-", "*") and side[1].spaced:
        start = 1
    depth = 0
    for place in range(len(side) - 1, start - 1, -1):
        depth += (side[place].kind == "close") - (side[place].kind == "open")
        if depth < 0:
            start = place + 1
            break
    runs = _runs(side[start:])
    if start > 1 and len(runs) == 1 and _FILLERS.issuperset(runs[0].lead):
        mark, outside = side[start - 1], side[start - 2]
        runs[0].doubtful |= outside.kind == "operator" or (mark.text == "," and outside.kind == "number")
    return runs[-1]


def _first_run(side: Sequence[Token]) -> _Run:
    """The expression that begins a side."""
    depth = 0
    for place, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth < 0 or token.kind == "break":
            side = side[:place]
            break
    runs = _runs(side)
    unit = runs[0].tail[:1]
    runs[0].doubtful |= (
        len(runs) > 1 and len(runs[0].tail) < 3 and _singular("".join(unit)) in _MEASURES
    )  # 1 hour 20 minutes
    return runs[0]


def _runs(piece: Sequence[Token]) -> list[_Run]:
    """The expressions of a piece of a line, with the words around them."""
    runs, words = [_Run()], list[str]()
    for place, token in enumerate(piece):
        run = runs[-1]
        last = run.parts[-1] if run.parts else None
        if token.kind == "word":
            word = token.text.lower() if len(token.text) > 1 else token.text
            glued = last is not None and last.operand and not (token.spaced or words)
            run.bad |= glued and _singular(word) not in _GLUED_UNITS
            words.append(word)
            continue
        _take_words(runs, words, token)
        run, last = runs[-1], runs[-1].parts[-1] if runs[-1].parts else None
        if token.kind == "other":
            run.bad |= not words
            runs.append(_Run(bad=True))
        elif token.kind == "number" and last is not None and last.operand:
            run.bad = True
        elif token.kind == "open" and last is not None and last.operand and token.spaced:
            inside = piece[place + 1] if place + 1 < len(piece) else token
            run.doubtful |= inside.kind in ("number", "operator", "open") or inside.text in _AMOUNTS  # (mod 7)
            runs.append(_Run([token], doubtful=True))
        else:
            if token.kind == "open" and last is not None and last.operand:
                run.parts.append(Token("operator", "*", False, token.at))  # 3(4 + 5)
            run.parts.append(token)
        words = []
    _take_words(runs, words, None)
    runs[-1].bad |= not (runs[-1].parts and runs[-1].parts[-1].operand)
    return runs


def _take_words(runs: list[_Run], words: list[str], following: Token | None) -> None:
    """Decide what the words between the last run and a token are: units, fillers, an operator, or text between two
    expressions."""
    if not words:
        return
    run, begins = runs[-1], following is not None and following.kind in ("number", "open")
    last = run.parts[-1] if run.parts else None
    function = (
        following is not None and following.kind == "open" and not following.spaced and words[-1].isalpha()
    )  # f(3)
    if last is None:
        run.lead = words
        named = not _FILLERS.issuperset(words)
        run.bad = (named and not begins) or (run.bad and not named) or function
    elif last.operand and begins:
        operator, unit = _operation(words)
        if operator:
            run.doubtful |= "of" in words and last.kind != "percent" and "/" not in run.operators[-1:]
            run.units.append(unit)
            run.parts.append(Token("operator", operator, True, last.at + len(last.text)))
        else:
            run.tail = words
            runs.append(_Run(lead=words, follows=True, bad=function))
    elif last.operand:
        _name(run, words, following)
    elif last.text == "/" and not begins and len(words[0]) > 1:  # $5/hour
        run.parts.pop()
        _name(run, words, following)
    else:
        run.bad |= function or not (begins and _FILLERS.issuperset(words))


def _name(run: _Run, words: list[str], following: Token | None) -> None:
    """Let words name what the last number counts."""
    if following is None or following.kind == "other":
        run.tail += words
    else:
        run.units.append(words)


def _operation(words: list[str]) -> tuple[str, list[str]]:
    """The operator that ends the words between two operands, or an empty text; and the words before it.

    >>> _operation(["apples", "times"]), _operation(["of", "the"]), _operation(["divided", "by"]), _operation(["and"])
    (('*', ['apples']), ('*', []), ('/', []), ('', ['and']))
    """
    kept = len(words)
    while kept and words[kept - 1] in _FILLERS:
        kept -= 1
    if kept and words[kept - 1] in _OPERATIONS and (kept == 1 or words[kept - 1] != "of"):
        return _OPERATIONS[words[kept - 1]], words[: kept - 1]
    if kept > 1 and words[kept - 1] == "by" and words[kept - 2] in _BEFORE_BY:
        return _BEFORE_BY[words[kept - 2]], words[: kept - 2]
    return "", words


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 2 and word.endswith("s") else word


def _judged(before: _Run, after: _Run, words: set[str]) -> bool | None:
    """Whether two expressions are equal; None if that cannot be told. `words`: of the line."""
    if before.bad or after.bad or not (before.computed or after.computed):
        return None
    if not before.computed and (before.lead or before.follows):
        return None  # the 2 of `Week 2 = 5 + 3` is a name
    try:
        if _equal(before, after):
            return True
        return None if _doubtful(before, after) or _nearly(before, after, words) else False
    except NoValueError:
        return None


def _equal(before: _Run, after: _Run) -> bool:
    """Whether two expressions are equal in one of the readings of a percent sign: a hundredth, or a unit."""
    left, right = (any(part.kind == "percent" for part in run.parts) for run in (before, after))
    readings = [(_HUNDREDTH, _HUNDREDTH)]
    if right:
        readings += [(_HUNDREDTH, _UNIT), (_UNIT, _UNIT)]
    elif left and ("100" in [part.text for part in before.parts] or not {"*", "/"} & set(before.operators)):
        readings += [(_UNIT, _UNIT)]
    return any(
        abs(value(before.parts, first) - value(after.parts, second)) < _precision(after, second)
        for first, second in readings
    )


def _precision(run: _Run, percent: Fraction) -> Fraction:
    """How far the exact value may be from the number that is shown: less than 1 in its last decimal."""
    if not run.single:
        return _EXACT
    decimals = max(part.decimals for part in run.parts)
    scale = percent if any(part.kind == "percent" for part in run.parts) else _UNIT
    return scale / 10**decimals if decimals else _EXACT


def _doubtful(before: _Run, after: _Run) -> bool:
    """Whether an equation whose sides differ may have another meaning: unit conversions, a range, words that are
    numbers."""
    inside = [word for unit in (*before.units, *after.units) for word in unit]
    near = {*inside, *before.lead[-2:], *before.tail[:2], *after.lead, *after.tail[:1]}
    singular = {_singular(word) for word in near}
    units = {_singular(unit[-1]) for unit in (*before.units, before.tail) if unit}
    signs, parts = before.operators, (*before.parts, *after.parts)
    sums = not {"+", "-"}.isdisjoint(signs + after.operators)
    percents = sum(part.kind == "percent" for part in parts)
    return (
        before.doubtful
        or after.doubtful
        or bool(after.units)
        or (bool(before.tail) and (not signs or _is_fraction(before)))  # `8 batches = 5 * 8`, `1/2 a cup = 4`
        or not (_AMOUNTS.isdisjoint(near) and _CONJUNCTIONS.isdisjoint([*inside, *before.tail]))
        or (len(signs) == 1 and signs[0] in "*/" and after.computed)  # 2 * 6 = 2^6 + 6^2, of a problem's own operation
        or before.lead[-1:] == ["times"]
        or ("/", "/") in pairwise(signs + after.operators)  # 25 / 1/3
        or any(len(singular & family) > 1 for family in _FAMILIES)
        or (
            before.follows
            and len(before.lead) < 4
            and not _RATES.isdisjoint(before.lead)
            and _BREAKS.isdisjoint(before.lead)
        )
        or not _NAMED.isdisjoint(before.lead[-1:])
        or (sums and len(units) > 1 and (not after.tail or "$" in after.lead or not _MONEY.isdisjoint(after.tail[:1])))
        or (sums and 0 < percents < sum(part.kind == "number" for part in parts))
        or any(len(word) == 1 and word not in _SHORT_UNITS for word in (*inside, *before.tail, *after.tail[:1]))
        or before.tail[-1:] in (["a"], ["I"])
    )


def _is_fraction(run: _Run) -> bool:
    """Whether it is a proper fraction such as 1/2."""
    return len(run.parts) == 3 and not run.parts[1].spaced and run.operators == ["/"] and 0 < value(run.parts) < 1


def _nearly(before: _Run, after: _Run, words: set[str]) -> bool:
    """Whether the sides differ only by rounding, by a factor of 100 (per cent, cents), or because a sum goes on
    (`3 + 4 = 7 * 2`)."""
    left, right = value(before.parts), value(after.parts)
    if after.computed:
        cut = next(
            at for at, part in enumerate(after.parts) if at and part.kind == "operator" and after.parts[at - 1].operand
        )
        try:
            if value(after.parts[:cut]) == left:
                return True
        except NoValueError:
            return True  # inside brackets
    numbers = [(run, at) for run in (before, after) for at, part in enumerate(run.parts) if _ROUNDED.search(part.text)]
    slack = sum((abs(value(run.parts, shifted=at) - value(run.parts)) for run, at in numbers), Fraction(0))
    recurring = bool(10**60 % left.denominator)
    whole = abs(left - right) < 1 and right.denominator == 1 and (recurring or not _ABOUT.isdisjoint(words))
    return whole or abs(left - right) <= slack or left * 100 == right or left == right * 100
