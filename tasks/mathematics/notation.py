r"""One notation for answers: what LaTeX, Unicode and habit write differently becomes the same text. Invariant: nothing
here depends on a value, and every step takes linear time."""

import re
import unicodedata

_UNICODE = str.maketrans(
    {
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),  # without width
        **dict.fromkeys("−–‐‑‒﹣", "-"),
        **{chr(wide): chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5F)},  # the forms of full width
        **{
            sign: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", sign).split("\u2044"))
            for sign in "¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
        },
        **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "±": r"\pm ", "≈": r"\approx "},
        **{"π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset "},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "²": "^2", "³": "^3", "°": r"^\circ "},
        **{"ℝ": r"\mathbb{R}", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "€": "", "£": "", "¥": "", "\u3000": " "},
    }
)  # fmt: skip
_DELIMITERS = re.compile(r"\\\\|\\[()\[\]$]|\$|\*\*")
_JOINED = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|\\ )\s*(?=[0-9]{3}(?![0-9]))")
_SPACES = re.compile(r"\\\\|\\[!,;: \n]|\\q?quad(?![a-zA-Z])|[~\s]+")
_SPACED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_LAYOUT = re.compile(
    r"\\(?:text)?color\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}|"
    r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|underline)(?![a-zA-Z])\s*"
)
_LINE_END = re.compile(r"(?:\\\\|\\[ ,;:!]|\\$|\s)+$")
_SIGN = re.compile(r"(?<!\\)\{\s*([-+])\s*\}")
_DOLLARS = re.compile(r"\s*-?\s*\\\$\s*-?\s*[0-9.,]+\s*")
_OPTION = re.compile(r"\s*([a-zA-Z])\s*[).:]+\s*")
_APPROXIMATE = re.compile(r"\s*\\(?:approx|thickapprox|simeq)(?![a-zA-Z])\s*")
_MINUS = re.compile(
    r"(?<![a-zA-Z\\])(?:\\text\{\s*)?(?:negative|minus)\b\s*(?:\}\s*)?(?=[(\\$\s{]*[0-9.])", re.IGNORECASE
)
_UPRIGHT = re.compile(r"\\(?:text|mathrm|operatorname|rm)\s*\{\s*([ei])\s*\}")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
_NAMED = re.compile(
    rf"\\(?:text|mathrm|operatorname)\s*\{{\s*({_FUNCTIONS})\s*\}}|(?<![a-zA-Z\\])({_FUNCTIONS})(?=\s*[(0-9\\{{^_]|\s+[a-z](?![a-zA-Z]))"
)
_TEMPERATURE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{\s*)?([CF])\b\s*\}?")
_TEMPERATURES = {"C": r"\text{ celsius}", "F": r"\text{ fahrenheit}"}
_REPEATED = re.compile(r"(?<=[0-9.])\\(?:bar|dot)(?![a-zA-Z])(?=\s*\{?[0-9])")
_DIGIT_FRACTION = re.compile(r"\\frac\s*([0-9])\s+([0-9])(?![0-9])")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|texttt|textrm|textsf|textnormal|mathrm|operatorname|rm)\s*(?=\{)")
_DROPPED = re.compile(
    r"\\(?:math(?:bf|it|sf|rm|tt|cal)|boldsymbol|bm|bf|rm|it|boxed|fbox|displaystyle|textstyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*"
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
_ROOT = re.compile(
    r"(√|∛|(?<![a-zA-Z\\])sqrt|\\sqrt)\s*(?:\(((?:[^()]|\([^()]*\))*)\)|([0-9]+(?:\.[0-9]+)?|[a-z](?![a-zA-Z])))"
)
"""A root whose radicand has no braces. In TeX `\\sqrt13` is the root of 1, and `√13` is that of 13."""
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
    text = _ROOT.sub(_root, answer.translate(_UNICODE))
    text = _LINE_END.sub("", _LAYOUT.sub("", _REPEATED.sub(r"\\overline", text)))
    text = f"{text}\\text{{ dollars}}" if _DOLLARS.fullmatch(text) else text
    option = _OPTION.fullmatch(text)
    text = _JOINED.sub("", option[1] if option else text)
    text = _DELIMITERS.sub(lambda sign: sign[0] if sign[0] == r"\\" else "", text)
    text = _SPACES.sub(lambda space: space[0] if space[0] == r"\\" else " ", text.replace(r"\!", ""))
    text = _SPACED.sub(lambda digits: digits[0].replace(" ", ""), text)
    text = _NAMED.sub(lambda name: f"\\{name[1] or name[2]} ", _UPRIGHT.sub(r"{\1}", text))
    text = _DROPPED.sub("", _TEXT.sub(r"\\text", text))
    text = _MINUS.sub("-", _SIGN.sub(r"\1", text))
    text = _TEMPERATURE.sub(lambda sign: _TEMPERATURES[sign[1]], text)
    text = _PERCENT.sub("%", _DEGREES.sub("", text.strip().rstrip(".")))
    text = _COMMAND.sub(lambda command: f"\\{_SYNONYMS[command[1]]}", text)
    text = _DIGIT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _ASCII.sub(lambda sign: _SIGNS[sign[0]], text)
    text = _without_phrase(text.strip().rstrip(".;:,").strip())
    return text[about.end() :] if (about := _APPROXIMATE.match(text)) else text


def _root(match: re.Match[str]) -> str:
    sign, inner, short = match.groups()
    if sign == r"\sqrt" and short is not None:
        short, rest = short[:1], short[1:]
        return f"\\sqrt{{{short}}}{rest}"
    return f"\\sqrt{'[3]' * (sign == '∛')}{{{short if inner is None else inner}}}"


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
