r"""One notation for answers: what LaTeX, Unicode and habit write differently becomes the same text. Invariant: nothing
here depends on a value, and every step takes linear time."""

import re

_UNICODE = str.maketrans(
    {
        **{"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "±": r"\pm ", "√": r"\sqrt "},
        **{"π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset "},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "°": r"^\circ "},
        **{"ℝ": r"\mathbb{R}", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "€": "", "£": "", "¥": "", "，": ","},
    }
)  # fmt: skip
_DELIMITERS = re.compile(r"\\\\|\\[()\[\]$]|\$|\*\*")
_JOINED = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|\\ )\s*(?=[0-9]{3}(?![0-9]))")
_SPACES = re.compile(r"\\\\|\\[!,;: \n]|\\q?quad(?![a-zA-Z])|[~\s]+")
_SPACED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|textsf|textnormal|mathrm|operatorname|rm)\s*(?=\{)")
_DROPPED = re.compile(
    r"\\(?:math(?:bf|it|sf|rm|cal)|boldsymbol|bm|bf|rm|it|boxed|fbox|displaystyle|textstyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*"
)
_DEGREES = re.compile(
    r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\\text\{\s*degrees?\s*\}|(?<=[0-9]) degrees?$"
)
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*percent\s*\}|(?<![a-zA-Z\\])percent(?![a-zA-Z]))")
_SYNONYMS = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom"},
    **{"varnothing": "emptyset", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne"},
    **{"lbrace": "{", "rbrace": "}", "bigcup": "cup"},
}  # fmt: skip
_COMMAND = re.compile(r"\\(" + "|".join(sorted(_SYNONYMS, key=len, reverse=True)) + r")(?![a-zA-Z])")
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)")
_SIGNS = {"<=": r"\le ", ">=": r"\ge ", "==": "=", "!=": r"\ne ", r"\colon": ":"}
_ASCII = re.compile(r"<=|>=|==|(?<=[a-zA-Z ])!=|\\colon(?![a-zA-Z])")
_PHRASE = re.compile(
    r"(?:(?:so|thus|hence|therefore|final|the|my|answer|solution|result|value|is|are|equals|of|[a-zA-Z])\b[\s,:]*)*\b(?:is|are|equals|answer)\b\s*:?|answer\s*:",
    re.IGNORECASE,
)


def closing(text: str, opening: int) -> int:
    r"""Position of the brace that closes the one at `opening`; -1 if none does. `\{` and `\}` do not count."""
    depth = 0
    for brace in re.compile(r"\\.|[{}]").finditer(text, opening):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.start()
    return -1


def plain_notation(answer: str) -> str:
    r"""The answer in one notation: without fonts, sizes, currency and degree signs, dollar signs or a last dot. Text
    becomes `\text`, synonyms one command, percent signs `%`; groups of three digits are joined.

    >>> print(plain_notation(r"$\left( \dfrac{1}{2},\, \mathbf{x} \right)$."), plain_notation("2 220"))
    ( \frac{1}{2},  {x} ) 2220
    """
    text = _JOINED.sub("", answer.translate(_UNICODE))
    text = _DELIMITERS.sub(lambda sign: sign[0] if sign[0] == r"\\" else "", text)
    text = _SPACES.sub(lambda space: space[0] if space[0] == r"\\" else " ", text.replace(r"\!", ""))
    text = _SPACED.sub(lambda digits: digits[0].replace(" ", ""), text)
    text = _DROPPED.sub("", _TEXT.sub(r"\\text", text))
    text = _PERCENT.sub("%", _DEGREES.sub("", text.strip().rstrip(".")))
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", text)
    text = _COMMAND.sub(lambda command: f"\\{_SYNONYMS[command[1]]}", text)
    text = _ASCII.sub(lambda sign: _SIGNS[sign[0]], text)
    return _without_phrase(text.strip().rstrip(".;:,").strip())


def _without_phrase(text: str) -> str:
    r"""The text after `=`, `:` or words such as `\text{The answer is }`; the text itself if nothing follows them."""
    text = text.lstrip("=: ").strip() or text
    if text.startswith(r"\text"):
        start = text.find("{")
        end = closing(text, start)
        said, rest = text[start + 1 : end], text[end + 1 :].strip()
        if end > 0 and rest and _PHRASE.fullmatch(said.strip()):
            return _without_phrase(rest)
    phrase = _PHRASE.match(text)
    rest = text[phrase.end() :].strip() if phrase else ""
    return _without_phrase(rest) if rest else text
