r"""Near misses of gold answers: texts that look like the answer and mean something else. See `variants.py`."""

import re
from collections.abc import Iterator
from fractions import Fraction

from tests.tasks.mathematics.variants import (
    DECIMAL,
    EQUATION,
    FRACTION,
    INTEGER,
    INTERVAL,
    MATRIX,
    ROOT,
    TEXT,
    THOUSANDS,
    TUPLE,
    UNIT,
    Variant,
    _list_parts,
    top_level_terms,
)

ROW_END = r" \\ "


def misses(gold: str) -> Iterator[Variant]:
    """Texts that mean something else than the gold answer."""
    for make in (_dressed, _numbers, _digits, _fractions, _signs, _groups, _words, _terms):
        for kind, text in make(gold):
            if text != gold:
                yield kind, text


def _dressed(gold: str) -> Iterator[Variant]:
    if TEXT.search(gold) or "=" in gold:
        return
    yield "not equal", rf"\neq {gold}"
    yield "not equal, named", rf"x \ne {gold}"
    yield "not", rf"\text{{not }}{gold}"
    if not any(sign in gold for sign in (",", r"\cup", "[", r"\infty", "^\\circ", "%")):
        yield "one more", f"{gold} + 1"
        yield "less than", f"x < {gold}"
        yield "times x", f"({gold})x" if gold != "0" else "x"
        yield "two answers", f"{gold}, 77"
        yield "two answers with or", rf"{gold} \text{{ or }} 77"
        yield "wrong chain", f"x = {gold} = 77"


def _numbers(gold: str) -> Iterator[Variant]:
    if INTEGER.fullmatch(gold):
        value = int(gold)
        yield "off by one", str(value + 1)
        yield "false equation", f"{value + 1}={value}"
        yield "false equation, turned", f"{value}={value + 1}"
        yield "equation with a factor", f"2x = {value}"
        yield "ten times", f"{value}0" if value else "10"
        yield "percent of it with a decimal", f"{value}.5"
        yield "in a pair", f"({value}, {value})"
        yield "squared", f"({value})^2" if value not in (0, 1) else "2"
        yield "reciprocal", rf"\frac{{1}}{{{value}}}" if value not in (1, -1, 0) else "2"
        if value:
            yield "another unknown's", f"{value}y"
            yield "letter t", f"{value}t"
            yield "letter m", f"{value}m"
            yield "other sign", str(-value)
        if value not in (0, 1, 2):
            yield "factorial", f"{value}!" if value > 0 else f"|{value}|"
        if len(gold.lstrip("-")) > 3:
            yield "thousands misplaced", f"{gold[:-2]},{gold[-2:]}"
            yield "digits swapped", gold[:-2] + gold[-1] + gold[-2] if gold[-1] != gold[-2] else f"{gold}1"
    if DECIMAL.fullmatch(gold):
        yield "other sign", gold[1:] if gold[0] == "-" else f"-{gold}"
        yield "point moved", str(Fraction(gold) * 10)
        yield "decimal cut", gold[:-1] if gold[-1] not in "0." and gold[:-1].strip("-0.") else f"{gold}1"
        yield "decimal comma", gold.replace(".", ",") if not gold.startswith((".", "-.")) else "77"
    if THOUSANDS.fullmatch(gold):
        plain = re.sub(r"[^0-9]", "", gold)
        yield "off by one", str(int(plain) + 1)
        yield "without its end", plain[:-3]
        yield "a list of its groups", ", ".join(re.findall("[0-9]+", gold))


def _digits(gold: str) -> Iterator[Variant]:
    """Each number of the answer changed by one."""
    for place, found in enumerate(re.finditer(r"(?<![0-9.])[0-9]+(?![0-9.])", gold)):
        if place < 3 and not (len(found[0]) == 3 and THOUSANDS.search(gold)):
            yield f"number {place + 1} changed", f"{gold[: found.start()]}{int(found[0]) + 1}{gold[found.end() :]}"


def _fractions(gold: str) -> Iterator[Variant]:
    one = FRACTION.fullmatch(gold)
    if not one:
        return
    sign, top, bottom = one[1], int(one[2]), int(one[3])
    yield "other sign", gold[1:] if sign else f"-{gold}"
    if top != bottom:
        yield "upside down", rf"{sign}\frac{{{bottom}}}{{{top}}}"
        yield "without denominator", f"{sign}{top}"
        yield "one minus it", rf"1 - \frac{{{top}}}{{{bottom}}}" if 2 * top != bottom or sign else "1/3"
    if 10**6 % bottom:
        yield "rounded", f"{sign}{top / bottom:.2f}"
    yield (
        "percent of a part",
        rf"{sign}{top}.{bottom}" if Fraction(f"{top}.{bottom}") != Fraction(top, bottom) else "77",
    )
    yield "as a pair", f"({sign}{top}, {bottom})"
    yield "as a ratio turned", f"{bottom}:{top}" if top != bottom else "1:2"


def _signs(gold: str) -> Iterator[Variant]:
    root = ROOT.fullmatch(gold)
    if root:
        factor, inner = int(root[1]), int(root[2] or root[3])
        yield "without root", str(factor * inner)
        yield "without factor", rf"\sqrt{{{inner}}}"
        yield "factor under the root", rf"\sqrt{{{factor * inner}}}"
        yield "cube root", rf"{factor}\sqrt[3]{{{inner}}}"
        yield "root rounded", f"{factor * inner**0.5:.2f}"
    unit = UNIT.fullmatch(gold)
    if unit and "square" not in unit[2]:
        value = int(unit[1]) if unit[1].isdigit() else 76
        yield "value of a unit changed", rf"{value + 1} \text{{ {unit[2]}}}"
        if unit[2] in ("feet", "inches", "meters", "cm", "minutes", "hours", "dollars", "cents", "miles"):
            yield "other unit", rf"{unit[1]} \text{{ {'yards' if unit[2] != 'dollars' else 'cents'}}}"
            yield "unit squared", rf"{unit[1]} \text{{ {unit[2]}}}^2"
    if r"\pi" in gold and "," not in gold:
        yield "without pi", gold.replace(r"\pi", "") if re.search("[0-9]", gold) else "1"
        yield "pi rounded", gold.replace(r"\pi", r"\cdot 3.14") if gold[0].isdigit() else "3.14"
    for function, other in (("sin", "cos"), ("cos", "sin"), ("tan", "cot"), ("sec", "csc")):
        if rf"\{function}" in gold:
            yield "other function", gold.replace(rf"\{function}", rf"\{other}")
    if re.search(r"[0-9 ]i\b", gold) and "," not in gold and re.search(r"[-+][^,]*i", gold[1:]):
        yield "conjugate", re.sub(r"([-+])([^-+]*i)", lambda part: ("-" if part[1] == "+" else "+") + part[2], gold)


def _groups(gold: str) -> Iterator[Variant]:
    parts = _list_parts(gold)
    if parts and len(set(parts)) == len(parts):
        yield "a tuple for a list", f"({', '.join(parts)})"
        yield "one less", ", ".join(parts[:-1])
        yield "one more in the list", f"{gold}, 77"
        yield "one twice", ", ".join([*parts, parts[0]])
        yield "the first for the last", ", ".join([*parts[:-1], parts[0]])
    inner = TUPLE.fullmatch(gold)
    infinite = r"\infty" in gold
    if inner and not infinite and r"\cup" not in gold:
        cells = [cell.strip() for cell in inner[1].removesuffix(r"\right").split(",")]
        yield "a set for a tuple", rf"\{{{', '.join(cells)}\}}"
        yield "shorter tuple", f"({', '.join(cells[:-1])})"
        yield "longer tuple", f"({', '.join([*cells, '77'])})"
        yield "square brackets", f"[{', '.join(cells)}]"
        if len(set(cells)) == len(cells):
            yield "tuple backwards", f"({', '.join([*cells[1:], cells[0]])})"
    pieces = [INTERVAL.fullmatch(piece.strip()) for piece in gold.split(r"\cup")]
    if all(pieces) and (len(pieces) > 1 or "[" in gold or "]" in gold or infinite):
        first = pieces[0]
        assert first
        rest = "".join(rf"\cup {piece[0]}" for piece in pieces[1:] if piece)
        low, high = ("[" if first[1] == "(" else "("), ("]" if first[4] == ")" else ")")
        if r"\infty" not in first[2]:
            yield "interval opened or closed below", f"{low}{first[2]},{first[3]}{first[4]}{rest}"
        if r"\infty" not in first[3]:
            yield "interval opened or closed above", f"{first[1]}{first[2]},{first[3]}{high}{rest}"
        yield "interval as a set", rf"\{{{first[2]}, {first[3]}\}}"
        yield (
            "other infinity",
            gold.replace(r"-\infty", r"\infty", 1) if r"-\infty" in gold else f"(-77, {first[3]}){rest}",
        )
        if rest:
            yield "union without its end", first[0]
            yield "union of more", rf"{gold} \cup (1077, 1078)"
    matrix = MATRIX.fullmatch(gold)
    if matrix:
        rows = [row.strip() for row in matrix[1].split(r"\\")]
        if len(set(rows)) == len(rows) > 1:
            yield "rows turned", rf"\begin{{pmatrix}} {ROW_END.join([*rows[1:], rows[0]])} \end{{pmatrix}}"
        yield "row less", rf"\begin{{pmatrix}} {ROW_END.join(rows[:-1])} \end{{pmatrix}}"
        yield "row more", rf"\begin{{pmatrix}} {ROW_END.join([*rows, rows[0]])} \end{{pmatrix}}"
        if "&" not in matrix[1]:
            yield "row for a column", rf"\begin{{pmatrix}} {' & '.join(rows)} \end{{pmatrix}}"
    equation = EQUATION.fullmatch(gold)
    if equation:
        yield "other unknown", f"{'w' if equation[1] != 'w' else 'v'} = {equation[2]}"
        yield "equation with one more", f"{gold} + 1"
        yield "inequality for an equation", gold.replace("=", "<")
        yield "equation with a sign", f"{equation[1]} = -({equation[2]})" if equation[2].strip() != "0" else "77"


def _words(gold: str) -> Iterator[Variant]:
    text = TEXT.fullmatch(gold)
    if text and re.fullmatch(r"[A-Za-z]{2,}|\(?[A-Z]\)?", text[1]):
        word = text[1].strip("()")
        last = "B" if word[-1] != "B" else "C"
        yield "other letter", rf"\text{{{word[:-1]}{last if word[-1].isupper() else 'q'}}}"
        yield "a word more", rf"\text{{{word} Z}}"
        yield "not the word", rf"\text{{not {word}}}"
        yield "a letter as a product", f"2{word}"
    if re.fullmatch(r"[a-z]", gold):
        yield "capital", gold.upper()


def _terms(gold: str) -> Iterator[Variant]:
    terms = top_level_terms(gold)
    if terms and len(terms) == len(set(terms)):
        flipped = ("-" if terms[-1][0] == "+" else "+") + terms[-1][1:]
        yield "term missing", " ".join(terms[:-1]).removeprefix("+")
        yield "term with the other sign", " ".join([*terms[:-1], flipped]).removeprefix("+")
        yield "first term missing", " ".join(terms[1:]).removeprefix("+")
        yield "all signs", f"-({gold})"
        yield "twice", f"2({gold})"
    if re.search(r"[a-z]\^[0-9]", gold):
        yield "exponent dropped", re.sub(r"\^[0-9]", "", gold, count=1)
