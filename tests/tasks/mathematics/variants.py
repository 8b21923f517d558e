r"""Variants of gold answers: texts that a reader calls the same answer, and near misses.

`python -m tests.tasks.mathematics.variants FILE` judges all variants of a file in MATH's format and prints how many
equal ones are refused and how many near misses are accepted, by kind. Each variant is right or wrong by its
construction, which is plain text and knows nothing of the judge.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

Variant = tuple[str, str]
"""(kind, text)"""

INTEGER = re.compile(r"-?[0-9]+")
DECIMAL = re.compile(r"-?[0-9]*\.[0-9]+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
MIXED = re.compile(r"([0-9]+) ?\\frac\{([0-9]+)\}\{([0-9]+)\}")
THOUSANDS = re.compile(r"[0-9]{1,3}(?:(?:,\\!|\{,\}|,)[0-9]{3})+")
TUPLE = re.compile(r"(?:\\left ?)?\(([^()\[\]]*,[^()\[\]]*)(?:\\right ?)?\)")
INTERVAL = re.compile(r"(?:\\left ?)?([(\[])([^()\[\],]*),([^()\[\],]*?)(?:\\right ?)?([)\]])")
MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)
ROOT = re.compile(r"([0-9]+) ?\\sqrt ?(?:\{([0-9]+)\}|([0-9]))")
TEXT = re.compile(r"\\(?:text|mbox)\{\s*([^{}]*?)\s*\}")
UNIT = re.compile(r"(-?[0-9.,]+) ?\\?,? ?\\(?:text|mbox)\{ ?([a-z ]+)\}")
EQUATION = re.compile(r"([a-z](?:\([a-z]\))?) ?= ?([^=]+)")
SIMPLE = re.compile(r"[-+0-9a-z ^]+")


def equals(gold: str) -> Iterator[Variant]:
    """Texts that mean the same as the gold answer."""
    yield from _dressed(gold)
    for make in (_numbers, _money_and_bases, _fractions, _signs, _lists, _groups, _words, _terms):
        yield from make(gold)


def _dressed(gold: str) -> Iterator[Variant]:
    if "=" not in gold:
        yield "= before", f"={gold}"
        yield "= before, spaced", f"= {gold}"
    yield "dot", f"{gold}."
    yield "phrase in text", rf"\text{{The answer is }}{gold}"
    yield "phrase", f"The answer is ${gold}$"
    yield "phrase: final answer", rf"\text{{Final answer: }} {gold}"
    yield "dollars", f"${gold}$"
    yield "parentheses of TeX", rf"\({gold}\)"
    yield "displaystyle", rf"\displaystyle {gold}"
    yield "braces", f"{{{gold}}}"
    yield "bold", rf"\mathbf{{{gold}}}" if not TEXT.search(gold) else rf"\boldsymbol{{{gold}}}"
    yield "nested box", rf"\boxed{{{gold}}}"
    yield "thin spaces", rf"\,{gold}\,"
    if r"\frac" in gold and r"\dfrac" not in gold:
        yield "dfrac", gold.replace(r"\frac", r"\dfrac")
        yield "tfrac", gold.replace(r"\frac", r"\tfrac")
    if r"\dfrac" in gold:
        yield "frac", gold.replace(r"\dfrac", r"\frac")
    if "(" in gold and r"\left" not in gold and r"\text" not in gold:
        yield "left and right", re.sub(r"[)\]]", r"\\right\g<0>", re.sub(r"[(\[]", r"\\left\g<0>", gold))
    if r"\left" in gold:
        yield "no left and right", gold.replace(r"\left", "").replace(r"\right", "")
    if re.search(r"[-+,=]", gold) and r"\text" not in gold and r"\!" not in gold and not THOUSANDS.fullmatch(gold):
        yield (
            "spaced signs",
            re.sub(r"(?<=[^{(\[,\\]) ?([-+=]) ?", r" \1 ", gold) if gold[0] not in "-(" else gold + " ",
        )
    if r"\pi" in gold:
        yield "pi in Unicode", gold.replace(r"\pi", "π")
    if "-" in gold:
        yield "minus in Unicode", gold.replace("-", "−")


def _numbers(gold: str) -> Iterator[Variant]:
    plain = gold.replace(r",\!", ",").replace("{,}", ",")
    if INTEGER.fullmatch(gold):
        sign, digits = gold[: -len(gold.lstrip("-"))] if gold[0] == "-" else "", gold.lstrip("-")
        yield "decimal zeros", f"{gold}.00"
        yield "leading zeros", f"{sign}00{digits}"
        yield "named", f"x = {gold}"
        yield "sum is", f"a+b = {gold}"
        yield "chain", f"{int(gold) - 1} + 1 = {gold}"
        yield "product", rf"{gold} \cdot 1"
        yield "fraction over 1", rf"\frac{{{gold}}}{{1}}"
        yield "quotient", rf"\frac{{{3 * int(gold)}}}{{3}}"
        yield "bold number", f"**{gold}**"
        if len(digits) > 3:
            grouped = f"{int(digits):,}"
            for kind, mark in (
                ("comma", ","),
                ("space", " "),
                ("thin space", r"\,"),
                ("braced comma", "{,}"),
                ("TeX comma", r",\!"),
            ):
                yield f"thousands: {kind}", sign + grouped.replace(",", mark)
    if THOUSANDS.fullmatch(gold):
        for kind, mark in (
            ("none", ""),
            ("space", " "),
            ("thin space", r"\,"),
            ("braced comma", "{,}"),
            ("comma", ","),
            ("TeX space", r"\ "),
        ):
            yield f"thousands: {kind}", plain.replace(",", mark)
    if DECIMAL.fullmatch(gold):
        value = Fraction(gold)
        yield "decimal with a zero more", f"{gold}0"
        yield "decimal as a fraction", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        yield "decimal with slash", f"{value.numerator}/{value.denominator}"
        yield "decimal without leading zero", re.sub(r"^(-?)0?\.", r"\1.", gold)
        yield "decimal named", f"x={gold}"


def _money_and_bases(gold: str) -> Iterator[Variant]:
    if re.fullmatch(r"-?\\\$ ?[0-9.,\\!]+", gold):
        amount = gold.replace(r"\$", "").replace(" ", "")
        yield "without currency", amount
        yield "dollar sign", gold.replace(r"\$", "$")
        yield "dollars in words", f"{amount} dollars"
        yield "dollars in text", rf"{amount}\text{{ dollars}}"
        yield "euro sign", f"€{amount}" if amount[0] != "-" else f"-€{amount[1:]}"
    if re.fullmatch(r"[0-9.]+ ?\\%", gold):
        amount = gold.replace(r"\%", "").strip()
        value = Fraction(amount) / 100
        for kind, text in (
            ("sign", f"{amount}%"),
            ("spaced", rf"{amount} \%"),
            ("word", f"{amount} percent"),
            ("in text", rf"{amount}\text{{ percent}}"),
            ("none", amount),
        ):
            yield f"percent: {kind}", text
        yield "percent: fraction", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        yield "percent: doubled fraction", rf"\frac{{{2 * Fraction(amount)}}}{{2}}\%"
    if re.fullmatch(r"[0-9]+_\{?[0-9]\}?", gold):
        number, base = gold.replace("{", "").replace("}", "").split("_")
        yield "base in braces", f"{number}_{{{base}}}"
        yield "base without braces", f"{number}_{base}"


def _fractions(gold: str) -> Iterator[Variant]:
    one = FRACTION.fullmatch(gold)
    if one:
        sign, top, bottom = one[1], int(one[2]), int(one[3])
        yield "slash", f"{sign}{top}/{bottom}"
        yield "not reduced", rf"{sign}\frac{{{3 * top}}}{{{3 * bottom}}}"
        yield "bold before", rf"\mathbf {gold}"
        yield "named fraction", f"p = {gold}"
        yield "spaces in braces", rf"{sign}\frac{{ {top} }}{{ {bottom} }}"
        yield "brackets around the parts", f"{sign}({top})/({bottom})"
        yield "sum", rf"{gold} + 0"
        if top < 10 and bottom < 10:
            yield "frac without braces", rf"{sign}\frac{top}{bottom}"
            yield "frac with a space", rf"{sign}\frac {top} {bottom}"
        if sign:
            yield "minus inside", rf"\frac{{-{top}}}{{{bottom}}}"
            yield "minus below", rf"\frac{{{top}}}{{-{bottom}}}"
        if not 10**6 % bottom:
            yield "exact decimal", f"{sign}{float(Fraction(top, bottom)):.6f}".rstrip("0").rstrip(".")
        if top > bottom and top % bottom:
            yield "mixed", rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"
            yield "mixed, spaced", f"{sign}{top // bottom} {top % bottom}/{bottom}"
    mixed = MIXED.fullmatch(gold)
    if mixed:
        whole, top, bottom = map(int, mixed.groups())
        yield "improper", rf"\frac{{{whole * bottom + top}}}{{{bottom}}}"
        yield "improper with slash", f"{whole * bottom + top}/{bottom}"
        yield "sum of both", rf"{whole} + \frac{{{top}}}{{{bottom}}}"


def _signs(gold: str) -> Iterator[Variant]:
    if re.fullmatch(r"-?[0-9.]+\^(?:\\circ|\{\\circ\})", gold):
        amount = gold.split("^")[0]
        for kind, text in (
            ("none", amount),
            ("braces", rf"{amount}^{{\circ}}"),
            ("sign", f"{amount}°"),
            ("text", rf"{amount}\text{{ degrees}}"),
            ("word", f"{amount} degrees"),
            ("command", rf"{amount}\degree"),
            ("named", rf"\angle ABC = {gold}"),
        ):
            yield f"degree: {kind}", text
    unit = UNIT.fullmatch(gold)
    if unit and "square" not in unit[2]:
        yield "unit dropped", unit[1]
        yield "unit in mathrm", rf"{unit[1]}\,\mathrm{{{unit[2]}}}"
        yield "unit in mbox", rf"{unit[1]} \mbox{{ {unit[2]}}}"
        yield "unit with a dot", rf"{unit[1]} \text{{ {unit[2]}.}}"
    if r"\text" not in gold and "=" not in gold and INTEGER.fullmatch(gold):
        yield "unit added in text", rf"{gold}\text{{ units}}"
        yield "unit added", f"{gold} cm"
        yield "square unit added", rf"{gold} \text{{ cm}}^2"
    root = ROOT.fullmatch(gold)
    if root:
        factor, inner = int(root[1]), int(root[2] or root[3])
        yield "root: inside", rf"\sqrt{{{factor**2 * inner}}}"
        yield "root: dot", rf"{factor} \cdot \sqrt{{{inner}}}"
        yield "root: after", rf"\sqrt{{{inner}}} \cdot {factor}"
        yield "root: plain", f"{factor}*sqrt({inner})"
        yield "root: Unicode", f"{factor}√{{{inner}}}"
        yield "root: power", rf"{factor} \cdot {inner}^{{1/2}}"


def _lists(gold: str) -> Iterator[Variant]:
    parts = _list_parts(gold)
    if parts:
        backwards = parts[::-1]
        yield "list backwards", ", ".join(backwards)
        yield (
            "list without spaces" if not all(map(str.isdigit, parts)) else "list",
            (", " if all(map(str.isdigit, parts)) else ",").join(parts),
        )
        yield "list as a set", rf"\{{{', '.join(backwards)}\}}"
        yield "list as a large set", rf"\left\{{ {', '.join(parts)} \right\}}"
        yield "list with and", rf"{', '.join(parts[:-1])} \text{{ and }} {parts[-1]}"
        yield "list with or", rf"{', '.join(parts[:-1])} \text{{ or }} {parts[-1]}"
        yield "list with plain and", f"{', '.join(parts[:-1])} and {parts[-1]}"
        yield "list with names", ", ".join(f"x = {part}" for part in backwards)


def _list_parts(gold: str) -> list[str]:
    if not re.fullmatch(
        r"[-0-9a-z ,+]+|(?:[-0-9, +]|\\(?:frac|sqrt|pi|\{[0-9]+\})|\{[0-9]+\})+", gold
    ) or THOUSANDS.fullmatch(gold):
        return []
    parts = [part.strip() for part in gold.split(",")]
    return parts if len(parts) > 1 and all(parts) and "and" not in gold else []


def _groups(gold: str) -> Iterator[Variant]:
    inner = TUPLE.fullmatch(gold)
    if inner and r"\infty" not in gold:
        parts = [part.strip() for part in inner[1].removesuffix(r"\right").split(",")]
        yield "tuple without spaces", f"({','.join(parts)})"
        yield "tuple with large brackets", rf"\bigl( {', '.join(parts)} \bigr)"
        yield "tuple named", f"(x,y) = ({', '.join(parts)})"
    pieces = [INTERVAL.fullmatch(piece.strip()) for piece in gold.split(r"\cup")]
    if all(pieces) and (len(pieces) > 1 or "[" in gold or "]" in gold or r"\infty" in gold):
        found = [piece for piece in pieces if piece]
        yield "interval with x in", rf"x \in {gold}"
        yield "union backwards", r" \cup ".join(piece[0].strip() for piece in found[::-1])
        yield "inequality", r" \text{ or } ".join(map(_inequality, found))
        yield "inequality, turned", " or ".join(_inequality(piece, turned=True) for piece in found)
        yield (
            "inequality with signs",
            r"\text{ or }".join(_inequality(piece).replace(r"\le", "≤").replace(r"\ge", "≥") for piece in found),
        )
    matrix = MATRIX.fullmatch(gold)
    if matrix:
        yield "bmatrix", gold.replace("pmatrix", "bmatrix")
        close = re.sub(r" *(&|\\\\) *", r"\1", matrix[1].strip())
        yield "matrix without spaces", rf"\begin{{pmatrix}}{close}\end{{pmatrix}}"
        yield "matrix in brackets", rf"\left(\begin{{matrix}}{matrix[1]}\end{{matrix}}\right)"
        yield "array", rf"\left[\begin{{array}}{{cc}}{matrix[1]}\end{{array}}\right]"
    equation = EQUATION.fullmatch(gold)
    if equation:
        name, value = equation[1], equation[2].strip()
        yield "equation turned", f"{value} = {name}"
        yield "value alone", value
        if SIMPLE.fullmatch(value):
            yield "equation to zero", f"{name} - ({value}) = 0"


def _inequality(piece: re.Match[str], turned: bool = False) -> str:
    low, start, end, high = piece[1], piece[2].strip(), piece[3].strip(), piece[4]
    below, above = ("<", "<") if not turned else (">", ">")
    below, above = (
        (r"\le" if not turned else r"\ge") if low == "[" else below,
        (r"\le" if not turned else r"\ge") if high == "]" else above,
    )
    if start == r"-\infty":
        return f"x {above} {end}" if not turned else f"{end} {above} x"
    if end == r"\infty":
        return f"{start} {below} x" if not turned else f"x {below} {start}"
    return f"{start} {below} x {above} {end}" if not turned else f"{end} {above} x {below} {start}"


def _words(gold: str) -> Iterator[Variant]:
    text = TEXT.fullmatch(gold)
    if text and re.fullmatch(r"[A-Za-z]{2,}|\(?[A-Z]\)?", text[1]):
        word = text[1]
        yield "words bare", word
        yield "words bold", rf"\textbf{{{word}}}"
        yield "words upright", rf"\mathrm{{{word}}}"
        yield "words in mbox", rf"\mbox{{{word}}}"
        yield "words with a dot", rf"\text{{{word}.}}"
        if len(word) > 3:
            yield "words in small letters", rf"\text{{{word.lower()}}}"
        else:
            yield "choice in brackets", rf"\text{{({word.strip('()')})}}"
            yield "choice alone", word.strip("()")
    if r"\emptyset" in gold:
        yield "empty set", gold.replace(r"\emptyset", r"\varnothing")


def _terms(gold: str) -> Iterator[Variant]:
    terms = top_level_terms(gold)
    if terms:
        yield (
            "terms backwards",
            "".join(term if i == 0 else f" {term}" for i, term in enumerate(terms[::-1]))
            .strip()
            .removeprefix("+")
            .strip(),
        )
        yield "terms twice halved", rf"\frac{{2({gold})}}{{2}}"
        yield "terms in brackets", f"({gold})"
        yield "terms plus zero", f"{gold} + 1 - 1"


def top_level_terms(gold: str) -> list[str]:
    """The signed terms of a sum such as `x^2 - 3x + 1` or `2 + \\sqrt{3}`; empty for anything else."""
    if not re.fullmatch(r"(?:[-+0-9a-z^ .]|\\(?:sqrt|pi|frac)|[{}])+", gold) or gold.count("{") != gold.count("}"):
        return []
    terms, depth, begun = [], 0, 0
    for place, character in enumerate(gold):
        depth += (character == "{") - (character == "}")
        if character in "+-" and depth == 0 and gold[:place].strip() and gold[place - 1] != "^":
            terms.append(gold[begun:place])
            begun = place
    parts = [part.replace(" ", "") if "\\" not in part else part.strip() for part in (*terms, gold[begun:])]
    return [part if part[0] in "+-" else f"+{part}" for part in parts] if len(parts) > 1 else []


def judge_all(
    golds: list[str], same: Callable[[str, str], bool], variants: Callable[[str], Iterator[Variant]]
) -> dict[str, list[tuple[str, str, bool]]]:
    """(gold, variant, verdict) of all variants, by kind."""
    found: dict[str, list[tuple[str, str, bool]]] = defaultdict(list)
    for gold in golds:
        for kind, text in dict.fromkeys(variants(gold)):
            found[kind].append((gold, text, same(gold, text)))
    return found


def main() -> None:
    """Command line."""
    from tasks.mathematics.answers import boxed_answer
    from tasks.mathematics.equality import same_answer
    from tests.tasks.mathematics.near_misses import misses

    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    golds = list(dict.fromkeys(boxed_answer(row["solution"]) or "" for row in rows))
    for title, make, good in (("equal forms refused", equals, True), ("near misses accepted", misses, False)):
        table = judge_all(golds, same_answer, make)
        bad = {kind: [one for one in cases if one[2] != good] for kind, cases in table.items()}
        total, wrong = sum(map(len, table.values())), sum(map(len, bad.values()))
        print(f"{title}: {wrong} of {total} ({100 * wrong / total:.2f} %)")
        for kind, cases in sorted(bad.items(), key=lambda item: -len(item[1])):
            if cases:
                print(
                    f"  {len(cases):5} of {len(table[kind]):5} {kind}: "
                    f"{'; '.join(f'{gold} | {text}' for gold, text, _ in cases[:3])}"
                )


if __name__ == "__main__":
    main()
