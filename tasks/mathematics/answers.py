r"""Mathematics: final answers of GSM8K (`#### n`) and MATH (`\boxed{}`), compared by form and value (`equality.py`).
Invariant: a response without an answer in the required form is wrong, with that reason."""

import re

from core.config import Columns
from core.errors import DataError
from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.mathematics.equality import same_answer
from tasks.mathematics.equations import states_false_equation
from tasks.mathematics.notation import closing, plain_notation
from tasks.mathematics.values import number, rational
from tasks.problems import Item, level_of, solution_of, text_of
from tasks.sources import Row

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_HASHES = re.compile(r"####(.*)")
_WORDS = re.compile(r"[a-zA-Z]{2,}(?:\s+[a-zA-Z]{2,})+")
_NUMBERS = re.compile(
    r"(?<![a-zA-Z0-9.,^_])(?<!\^\{)(?<!\^\{-)(?<!\^-)(?:(?:[0-9]{1,3}(?:_[0-9]{3})+|[0-9][0-9,]*)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:e[-+]?[0-9]+)?(?:/[0-9]+)?(?!_?[0-9])"
)
_DRESS = re.compile(r"(?:[\s({\[$|*_`'\"“]|\\text|\b(?:usd|us|rs|eur|gbp)\b\.?)+$", re.IGNORECASE)
"""What may stand between a sign and its number."""
_BEFORE_SIGN = re.compile(r"(?:^|[=:;≈]|\\approx|\b(?:is|are|was|equals?|be|by|of|at|to|about))$", re.IGNORECASE)
_BELOW = re.compile(r"[^0-9]*\bbelow zero\b", re.IGNORECASE)
_OF_SIGN = re.compile(r"(?<!non-)(?<!non )\b(?:minus|negative)\b", re.IGNORECASE)
_NO_VALUE = re.compile(r"not\b|\bless\b|\bmore\b|\bleast\b|\bmost\b|\\n[eo]|[<>≠]|\\[lg]e")
_FORMULA = re.compile(r"\\(?!text)[a-zA-Z]|!")
_SCALED = re.compile(
    r"\s*(?:\\text\s*\{\s*)?(?:\^|(?:k|bn|mln|(?:ten|hundred|thousand|million|billion|trillion)(?:th)?s?|dozens?|lakhs?|"
    r"crores?|gross|squared|cubed)\b)"
)
_LONG_LINE = 500  # most characters after `####` in which a number is looked for
_FLOAT_DIGITS = 15  # a decimal gold answer with so many digits is a rounded float, as in GSM-Hard


def gsm8k_solution(answer: str) -> str:
    """The canonical solution as a model should write it: without the calculator's marks `<<48/2=24>>`."""
    lines = _CALCULATOR.sub("", answer).strip().split("\n")
    return "\n".join(line.rstrip() for line in lines)


def hash_answer(text: str) -> str | None:
    """The text after the last `####` on its line; None if there is none."""
    answers = _HASHES.findall(text)
    return (answers[-1].strip() or None) if answers else None


def boxed_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`, `\boxed 7`); None if it is missing or not closed."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix("\\boxed").removeprefix("\\fbox").lstrip()
    if not rest.startswith("{"):
        word = re.match(r"[^\s$\\.,]+", rest)
        return word[0] if word else None
    return rest[1 : max(1, closing(rest, 0))].strip() or None


def gsm8k_value(text: str) -> str | None:
    r"""The one number in what follows `####`, among words, units and emphasis; None if there is not exactly one.

    >>> [gsm8k_value(text) for text in ("18 dollars", "**18**", "€18.50 in total", "x = - 18 m^2", "1 or 2", "not 18")]
    ['18', '18', '18.50', '-18', None, None]
    """
    if len(text) > _LONG_LINE:
        return None
    plain = plain_notation(text)
    numbers = list(_NUMBERS.finditer(plain))
    if len(numbers) != 1:
        return None
    before, after = plain[: numbers[0].start()], plain[numbers[0].end() :]
    sign = _sign(before, after)
    if sign is None or _NO_VALUE.search(before.lower()) or _FORMULA.search(plain) or _SCALED.match(after.lower()):
        return None  # 18 million is not 18
    value = sign + numbers[0][0].removesuffix(",")
    return value if rational(value) is not None else None


def _sign(before: str, after: str) -> str | None:
    """The sign of a number between two texts: '-' or ''; None where a dash may also join words, as in `Total - 18`.

    >>> [_sign(text, "") for text in ("-", "x = - ", "-$(", "Total: ", "Total -", "Total - ", "x-")]
    ['-', '-', '-', '', '-', None, None]
    """
    dressed = _DRESS.sub("", before)
    if _BELOW.match(after):
        return None if dressed.endswith("-") else "-"
    if not dressed.endswith("-"):
        return None if _OF_SIGN.search(f"{before} {after}") else ""
    words = dressed[:-1]
    close = before.endswith("-") and words[-1:].isspace()  # Total -18
    if close or _BEFORE_SIGN.search(_DRESS.sub("", words)):
        return "-"
    return None


def gsm8k_answer(response: str) -> str | None:
    """The answer that `verify_gsm8k` judges; a plain number is normalised to its value."""
    return _by_value(_gsm8k_text(response))


def _gsm8k_text(response: str) -> str | None:
    hashed, boxed = hash_answer(response), boxed_answer(response)
    later = max(response.rfind(r"\boxed"), response.rfind(r"\fbox")) > response.rfind("####")
    heading = later and boxed is not None and (rational(boxed) is not None or gsm8k_value(boxed) is not None)
    text = boxed if heading else hashed or boxed
    return text if text is None else gsm8k_value(text) or text


def math_answer(response: str) -> str | None:
    r"""The answer that `verify_math` judges; a plain number or fraction is normalised to its value."""
    return _by_value(boxed_answer(response))


def _by_value(answer: str | None) -> str | None:
    value = rational(answer or "")
    return answer if value is None else str(value)


def prepare_judge() -> None:
    """Load the parser before a judging process judges its first answer."""
    same_answer("x+x", "2x")


def _judge(gold: str, answer: str | None, form: str) -> Verdict:
    if answer is None:
        return Verdict(0.0, False, f"no answer found: expected {form}")
    right = same_answer(gold, answer)
    return Verdict(float(right), right, "" if right else f"answered {answer[:60]!r}, expected {gold[:60]!r}")


def verify_gsm8k(reference: str, response: str) -> Verdict:
    r"""Judge the text after the last `####`, or the last `\boxed{}` (chat models prefer it) if it has a value and comes
    later. Words, units and currency around its one number do not count."""
    answer = _gsm8k_text(response)
    gold, value = rational(reference), None if answer is None else rational(answer)
    digits = sum(character.isdigit() for character in reference)
    if gold and value is not None and "." in reference and digits >= _FLOAT_DIGITS and abs(value / gold - 1) < 1e-9:
        return Verdict(1.0, True)
    return _judge(reference, answer, r"'#### n' or '\boxed{n}'")


def verify_math(reference: str, response: str) -> Verdict:
    r"""Judge the last `\boxed{...}` of a response."""
    return _judge(reference, boxed_answer(response), r"'\boxed{...}'")


def read_gsm8k(row: Row, columns: Columns, where: str) -> Item:
    """A row whose `answer` is steps and `#### n`, or the bare number. Raises DataError."""
    answer = text_of(row, columns.answer, "answer", where)
    reference = hash_answer(answer) if "####" in answer else answer
    if reference is None or number(reference) is None:
        raise DataError(f"{where}: column {columns.answer!r} has no number after '####'; fix or delete the row")
    solution = solution_of(row, columns, where)
    prompt = text_of(row, columns.prompt, "prompt", where)
    return Item(prompt, reference, level_of(row, columns), solution and gsm8k_solution(solution))


def read_math(row: Row, columns: Columns, where: str) -> Item:
    r"""A row whose `answer` is a whole solution with `\boxed{}`, or the bare gold answer. Raises DataError."""
    answer = text_of(row, columns.answer, "answer", where)
    reference = boxed_answer(answer) if "\\boxed" in answer or "\\fbox" in answer else answer
    if reference is None:
        raise DataError(f"{where}: column {columns.answer!r} has a \\boxed{{ that is not closed; fix or delete the row")
    if not _is_written(reference):
        raise DataError(
            f"{where}: column {columns.answer!r} has the gold answer {reference[:60]!r}, which no parser reads: braces "
            "that do not match, no letter or digit, or words outside of \\text{}; fix or delete the row"
        )
    prompt = text_of(row, columns.prompt, "prompt", where)
    return Item(prompt, reference, level_of(row, columns), solution_of(row, columns, where))


def _is_written(answer: str) -> bool:
    r"""Whether an answer can be mathematics. Words outside of \text{} cannot: they would be read as products."""
    balanced = closing(f"{{{answer} }}", 0) == len(answer) + 2
    return balanced and any(sign.isalnum() for sign in answer) and not _WORDS.fullmatch(answer.strip())


GSM8K, MATH = (
    TaskKind(
        f"tasks.mathematics.answers:{judge}",
        read=read,
        answer=answer,
        marks=marks,
        prefix_is_wrong=states_false_equation,
    )
    for judge, read, answer, marks in (
        ("verify_gsm8k", read_gsm8k, gsm8k_answer, ("####", r"\boxed")),
        ("verify_math", read_math, math_answer, (r"\boxed",)),
    )
)
