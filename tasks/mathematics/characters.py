r"""ASCII and LaTeX for the characters of Unicode that answers are written with. Invariant: a text in ASCII stays."""

import re
import unicodedata

_SIGNS = {
    **dict.fromkeys("−–—‐‑‒―﹣－", "-"),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff\ufe0f", ""),
    **dict.fromkeys("€£¥￥₹₽₩", ""),
    **{"×": r"\times ", "✕": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "•": r"\cdot ", "∗": "*"},
    **{"÷": "/", "⁄": "/", "∕": "/", "±": r"\pm ", "∓": r"\mp ", "∶": ":", "′": "'", "’": "'"},
    **{"π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∠": r"\angle "},
    **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus "},
    **{"≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≃": r"\approx "},
    **{"°": r"^\circ ", "º": r"^\circ ", "℃": r"^\circ C", "℉": r"^\circ F", "¢": r"\text{ cents}"},
    **{"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"},
}
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿⁱ]+")
_LOWERED = re.compile("[₀-₉]+")
_ROOT = re.compile(r"([√∛∜])\s*([0-9]+(?:\.[0-9]+)?)")
_OTHER = re.compile(r"[^\x00-\x7f]")


def plain_characters(text: str) -> str:
    r"""Full-width, raised and lowered characters, fractions in one sign, roots and operators in ASCII and LaTeX.

    >>> print(plain_characters("２¾"), plain_characters("√13⁻¹"), plain_characters("−5\u200b ≤ x₁"))
    2\frac{3}{4} \sqrt{13}^{-1} -5 \le  x_{1}
    """
    if text.isascii():
        return text
    text = _RAISED.sub(lambda run: f"^{{{_compatible(run[0])}}}", text)
    text = _LOWERED.sub(lambda run: f"_{{{_compatible(run[0])}}}", text)
    text = _ROOT.sub(r"\1{\2}", text)  # a root in Unicode covers the whole number
    return _OTHER.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    sign = _SIGNS.get(found[0])
    if sign is not None:
        return sign
    if found[0].isspace():
        return found[0] if found[0] in "\u0085\u2028\u2029" else " "
    if unicodedata.decomposition(found[0]).startswith("<fraction>"):
        top, _, bottom = unicodedata.normalize("NFKC", found[0]).partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}" if bottom else found[0]
    plain = _compatible(found[0])
    if "㍱" <= found[0] <= "㏟":  # a unit in one sign, such as ㎢
        return rf"\text{{ {plain.rstrip('23')}}}" + (f"^{plain[-1]}" if plain[-1] in "23" else "")
    return plain


def _compatible(text: str) -> str:
    """The same in ordinary characters (`５` as 5), where Unicode knows any."""
    plain = unicodedata.normalize("NFKC", text).replace("−", "-")
    return plain if plain.isascii() else text
