r"""One notation for answers: what LaTeX, Unicode and habit write differently becomes the same text. Invariant: nothing
here depends on a value, and every step takes linear time."""

import re
from collections.abc import Callable

from tasks.mathematics.characters import plain_characters

_DELIMITERS = re.compile(r"\\\\|\\[()\[\]$]|(?<![a-zA-Z])US\s*\\?\$(?=\s*[.0-9])|\$|\*\*")
_JOINED = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|\\ )\s*(?=[0-9]{3}(?![0-9]))")
_SPACES = re.compile(r"\\\\|\\[!,;:> \n]|\\q?quad(?![a-zA-Z])|[~\s]+")
_SPACED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|sc|up|md|normal)?|[mh]box|mathrm|operatorname\*?|rm|emph)\s*(?=\{)")
_RATE = re.compile(
    r"(?<=[0-9])\s*\\frac\s*\{\s*\\text\s*\{([a-zA-Z ]+)\}\s*\}\s*\{\s*"
    r"\\text\s*\{([a-zA-Z ]+)\}\s*((?:\^\{?[0-9]\}?)?)\s*\}"
)
_LETTER = re.compile(r"\\text\s*\{\s*([a-zA-Z])\s*\}")
_NUMBER_END = re.compile(r"(?:[0-9a-zA-Z)!}]|\}\s*(?:/|\\cdot))\s*$")
_UNIT_LETTERS = frozenset("mgshltLJNWVAKCFMPTHkBGdy")
r"""Upright letters that are units behind a number: `3\,\mathrm{m}`. Others, such as `\mathrm{i}`, are symbols."""
_CONTENT = re.compile(
    r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}|\\(?:color|[hv]space|[hv]?phantom|tag|label)\*?\s*\{[^{}]*\}"
)
_DROPPED = re.compile(
    r"\\(?:math(?:bf|it|sf|rm|cal|tt|frak|scr|normal|ord|bin)|boldsymbol|bm|bf|rm|it|tt|sf|sc|em|boxed|fbox|displaystyle|"
    r"textstyle|scriptstyle|left|right|[bB]igg?[lrm]?|Huge|huge|LARGE|Large|large|normalsize|small|footnotesize|"
    r"scriptsize|tiny|underline|uline|mathstrut|strut|limits|nolimits|ensuremath|hfill|noindent|bfseries|rmfamily|"
    r"boldmath|smash|protect)(?![a-zA-Z])\s*"
)
_BRACED_SIGN = re.compile(r"(?<![\^_a-zA-Z}\]])\{\s*([-+=:<>/])\s*\}|(?<=[0-9a-zA-Z)])\{\s*([=:<>/])\s*\}")
_DEGREES = re.compile(
    r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\\text\{\s*degrees?\s*\}|(?<=[0-9]) degrees?$"
)
_CELSIUS = re.compile(
    r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z]))\s*"
    r"(?:\\text\s*\{\s*([CF])\s*\}|([CF])(?![a-zA-Z]))|\^\s*\{\s*\\circ\s*(?:\\text\s*\{\s*)?([CF])\s*\}+|"
    r"\\text\s*\{\s*\^\s*\\circ\s*([CF])\s*\}"
)
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*percent\s*\}|(?<![a-zA-Z\\])percent(?![a-zA-Z]))")
_SYNONYMS = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac"},
    **{"dbinom": "binom", "tbinom": "binom"},
    **{"varnothing": "emptyset", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne"},
    **{"lbrace": "{", "rbrace": "}", "bigcup": "cup", "backslash": "setminus", "smallsetminus": "setminus"},
    **{"simeq": "approx", "thickapprox": "approx", "doteq": "approx", "lt": "<", "gt": ">", "ast": "*"},
}  # fmt: skip
_COMMAND = re.compile(r"\\(" + "|".join(sorted(_SYNONYMS, key=len, reverse=True)) + r")(?![a-zA-Z])")
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z\\])(?:sqrt|root)\s*([0-9]+(?:\.[0-9]+)?|(?=\())")
_ROOT = re.compile(r"\\sqrt\s*(\[[^\]]*\])?\s*(?:(\()|([0-9a-zA-Z]|\\(?!d?frac|binom|text|sqrt|[lr]v?)[a-zA-Z]+))")
_NEGATIVE_ROOT = re.compile(
    r"\\sqrt\s*\[\s*([0-9]*[13579])\s*\]\s*\{\s*-\s*([0-9a-zA-Z./]+|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})\s*\}"
)
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp"
_FUNCTION = re.compile(
    rf"(?<!_)(?<!_\{{)\\text\s*\{{\s*({_FUNCTIONS})\s*\}}|(?<![a-zA-Z\\{{])({_FUNCTIONS})(?=\s*\(|\s*[0-9]|\^|_|\s+[a-z](?![a-zA-Z]))"
)
_ROUNDED = re.compile(r"(?:\\text\s*\{\s*(floor|ceil|abs)\s*\}|(?<![a-zA-Z\\])(floor|ceil|abs))\s*(?=\()")
_ROUND = {"floor": (r"\lfloor ", r"\rfloor "), "ceil": (r"\lceil ", r"\rceil "), "abs": ("|", "|")}
_TEXT_NUMBER = re.compile(r"\\text\s*\{\s*([-+]?[0-9][0-9.,]*(?:/[0-9]+)?|\\pi)\s*\}")
_TEXT_SIGN = re.compile(r"\\text\s*\{\s*([^a-zA-Z0-9{}\\]*)\s*\}")
_NEGATIVE = re.compile(
    r"(?:\\text\s*\{\s*(?:negative|minus)\s*\}|(?<![a-zA-Z\\{])(?:negative|minus)(?![a-zA-Z])|"
    r"(\\text\s*\{\s*)(?:negative|minus)(?![a-zA-Z]))\s*(?=[({\[\s]*(?:\\frac|\\sqrt|\\pi|\.?[0-9]))",
    re.IGNORECASE,
)
_SIGNS = {"<=": r"\le ", ">=": r"\ge ", "==": "=", "!=": r"\ne ", r"\colon": ":"}
_ASCII = re.compile(r"<=|>=|==|(?<=[a-zA-Z ])!=|\\colon(?![a-zA-Z])")
_PHRASE = re.compile(
    r"(?:(?:so|thus|hence|therefore|final|the|my|answer|solution|result|value|option|choice|is|are|equals|of|[a-zA-Z])\b[\s,:]*)*\b(?:is|are|equals|answer)\b\s*:?|answer\s*:|(?:option|choice|answer)\s+(?=\(?[A-Z]\W*$)",
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
    text = _JOINED.sub("", plain_characters(answer))
    text = _DELIMITERS.sub(lambda sign: sign[0] if sign[0] == r"\\" else "", text)
    text = _SPACES.sub(lambda space: space[0] if space[0] == r"\\" else " ", text.replace(r"\!", ""))
    text = _SPACED.sub(lambda digits: digits[0].replace(" ", ""), text.strip()).rstrip("\\ ")
    text = _LETTER.sub(_letter, _RATE.sub(r"\\text{ \1/\2\3}", _TEXT.sub(r"\\text", _CONTENT.sub("", text))))
    text = _BRACED_SIGN.sub(r"\1\2", _DROPPED.sub("", text)).strip()
    text = _CELSIUS.sub(_temperature, text)
    text = _PERCENT.sub("%", _DEGREES.sub("", text.rstrip(".")))
    text = _COMMAND.sub(lambda command: f"\\{_SYNONYMS[command[1]]}".replace("\\<", "<").replace("\\>", ">"), text)
    text = _ASCII.sub(lambda sign: _SIGNS[sign[0]], text)
    return _without_phrase(_functions(text).strip().rstrip(".;:,").strip())


def _letter(found: re.Match[str]) -> str:
    """An upright letter as a symbol; behind a number, the letter of a unit stays text."""
    behind = found.string[max(0, found.start() - 10) : found.start()]
    return found[0] if found[1] in _UNIT_LETTERS and _NUMBER_END.search(behind) else f" {found[1]} "


def _temperature(found: re.Match[str]) -> str:
    return r"\text{ celsius}" if "C" in found.groups() else r"\text{ fahrenheit}"


def _functions(text: str) -> str:
    """Roots, functions and signs that are written as words, as commands."""
    text = _NEGATIVE.sub(lambda word: "- " + (word[1] or ""), text)
    text = _TEXT_SIGN.sub(r"\1", _TEXT_NUMBER.sub(r"{\1}", text))
    text = _PLAIN_ROOT.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else r"\sqrt", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{root[1] or ''}" + (root[2] or f"{{{root[3]}}}"), text)
    text = _bracketed(text, re.compile(r"\\sqrt(?:\[[^\]]*\])?(?=\()"), lambda root: (root[0] + "{", "}"))
    text = _NEGATIVE_ROOT.sub(r"(-\\sqrt[\1]{\2})", text)  # sympy's odd root of a negative number is complex
    text = _bracketed(text, _ROUNDED, lambda name: _ROUND[name[1] or name[2]])
    return _FUNCTION.sub(lambda name: f"\\{name[1] or name[2]} ", text)


def _bracketed(text: str, before: re.Pattern[str], signs: Callable[[re.Match[str]], tuple[str, str]]) -> str:
    """The text with other signs for the round brackets behind each match, which becomes part of the first sign."""
    for found in reversed(list(before.finditer(text))):
        depth = 0
        for place in range(found.end(), len(text)):
            depth += (text[place] == "(") - (text[place] == ")")
            if depth == 0:
                first, last = signs(found)
                text = f"{text[: found.start()]}{first}{text[found.end() + 1 : place]}{last}{text[place + 1 :]}"
                break
    return text


def _without_phrase(text: str) -> str:
    r"""The text after `=`, `:` or words such as `\text{The answer is }`; the text itself if nothing follows them."""
    text = re.sub(r"^(?:[=:\s]|\\approx(?![a-zA-Z]))+", "", text) or text
    if text.startswith(r"\text"):
        start = text.find("{")
        end = closing(text, start)
        said, rest = text[start + 1 : end], text[end + 1 :].strip()
        if end > 0 and rest and _PHRASE.fullmatch(said.strip()):
            return _without_phrase(rest)
    phrase = _PHRASE.match(text)
    rest = text[phrase.end() :].strip() if phrase else ""
    return _without_phrase(rest) if rest else text
