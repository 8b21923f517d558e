"""Boundaries on bytes: hand-made token tables, and properties over random texts and cuts."""

import ast
import itertools
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import Boundary
from core.records import IntArray
from replay.boundaries import TokenTable, boundaries, remembered

RULES: list[Boundary] = ["line", "sentence", "code", "stride"]


def cut(pieces: list[bytes], rule: Boundary, stride: int = 3) -> list[int]:
    table = TokenTable(tuple(pieces))
    return [int(n) for n in boundaries(np.arange(len(pieces), dtype=np.int32), table, rule, stride)]


def test_lines() -> None:
    assert cut([b"a", b"\n", b"b", b"\n", b"c"], "line") == [2, 4]
    assert cut([b"a.\n", b"\n", b"b"], "line") == [1]  # the empty line is no step
    assert cut([b"a\n    ", b"b"], "line") == [1]  # a token may take the indentation along
    assert cut([b"a", b"\nb", b"\n", b"c"], "line") == [3]  # a token that holds "\nb" ends no line
    assert cut([b"a", b"\n"], "line") == []  # nothing but blanks would follow
    assert cut([b"a", b"\n", b""], "line") == []  # nor an end-of-sequence token
    assert cut([b"\n", b"a", b"\n", b"b"], "line") == [3]


def test_sentences() -> None:
    assert cut([b"It", b" is", b".", b" So", b" b"], "sentence") == [3]
    assert cut([b"Pi is 3", b".", b"14", b"!", b" Yes"], "sentence") == [4]
    assert cut([b"see e.g", b".", b" this", b'?"', b" No"], "sentence") == [4]
    assert cut([b"so.\n\n", b"Next"], "sentence") == [1]


def test_stride_moves_to_the_end_of_a_character() -> None:
    euro = "€".encode()  # three bytes
    assert cut([b"a", b"b", euro[:1], euro[1:2], euro[2:], b"c", b"d"], "stride") == [5, 6]


def test_real_byte_level_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<eos>"])
    text = "Ärger: 3 €.\n\nSo 5 + 4 = 9.\nThen 9 * 2 = 18.\n#### 18"
    model.train_from_iterator([text] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>")
    table = TokenTable.from_tokenizer(tokenizer)
    ids = np.array([*tokenizer(text)["input_ids"], tokenizer.eos_token_id], np.int32)
    assert b"".join(table.pieces[i] for i in ids).decode() == text
    for rule in RULES:
        for length in boundaries(ids, table, rule, 2):
            assert text.startswith(tokenizer.decode(ids[:length], skip_special_tokens=True))
    lines = [tokenizer.decode(ids[:n]) for n in boundaries(ids, table, "line", 0)]
    assert [line.rstrip("\n").split("\n")[-1] for line in lines] == ["Ärger: 3 €.", "So 5 + 4 = 9.", "Then 9 * 2 = 18."]


TEXTS = st.text(st.sampled_from(list("ab .!?\n\t\"'(1€ä😀")), max_size=60)
CODE = st.lists(
    st.sampled_from(
        ["if x:", "\n", "    ", "y = (1,", ")", "; ", '"""', "é = 'ü'", "#", "\\\n", "```", "return", "\r\n"]
    ),
    max_size=20,
).map("".join)


@given(TEXTS | CODE, st.data(), st.sampled_from(RULES), st.integers(1, 5))
def test_every_boundary_is_inside_and_its_prefix_decodes_to_a_prefix(
    text: str, data: st.DataObject, rule: Boundary, stride: int
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=30)) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(cuts)] + [b""]
    found = cut(pieces, rule, stride)
    assert found == sorted(set(found))
    for length in found:
        assert 0 < length < len(pieces)
        prefix = b"".join(pieces[:length]).decode()  # raises when a character is cut
        assert text.startswith(prefix)
        assert prefix.strip() or rule == "stride"
        assert text[len(prefix) :].strip()


def code(text: str) -> list[str]:
    raw = text.encode()
    pieces = [raw[i : i + 1] for i in range(len(raw))]
    return [raw[:n].decode().splitlines()[-1] for n in cut(pieces, "code")]


def test_code_statements_span_their_lines() -> None:
    text = "def f(x):\n    y = (x +\n         1)\n\n    # why\n    s = '''a\nb'''\n    return y\nprint(f(1))\n"
    assert code(text) == ["def f(x):", "         1)", "b'''", "    return y"]


def test_code_in_fences_and_broken_code() -> None:
    assert code("Sure:\n```python\nx = [1,\n2]\ny = 2\n```\nDone.\n") == ["Sure:", "```python", "2]", "y = 2", "```"]
    assert code("x = 1\ny = (2\nz = 3\nw = 4\n") == ["x = 1", "y = (2", "z = 3"]


def test_statements_on_one_line_and_half_a_character() -> None:
    assert code("ä = 'é;'; y = [1,\n2]; z = 3\nw = 4\n") == ["ä = 'é;';", "2];", "2]; z = 3"]
    pieces = [b"x = 1\n", b"y = (2,\n", b"3)\n", b"z = '\xe2\x82", b"\xac'"]  # a character in two tokens
    assert cut(pieces, "code") == [1, 3]
    assert cut(pieces[:4], "code") == [1, 3]


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"", 0, 1, "odd"), SystemError("odd")])
def test_a_tokenizer_of_python_that_fails_costs_its_boundaries_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """That of CPython 3.12 refuses half a character, and for some odd bytes fails by itself."""
    pieces, real = [b"x = 1\n", b"y = '\xf0\x9f'\n", b"z = 3"], tokenize.generate_tokens

    def strict(readline: Callable[[], str]) -> Iterator[tokenize.TokenInfo]:
        yield from real(lambda: readline().encode().decode())

    monkeypatch.setattr(tokenize, "generate_tokens", strict)
    assert cut(pieces, "code") == [1, 2]

    def failing(readline: Callable[[], str]) -> Iterator[tokenize.TokenInfo]:
        yield from itertools.islice(real(readline), 4)  # one statement
        raise error

    monkeypatch.setattr(tokenize, "generate_tokens", failing)
    assert cut([b"x = 1\n", b"y = 2\n", b"z = 3"], "code") == [1, 2]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("replay/*.py")), ids=lambda path: path.name)
def test_code_boundaries_are_where_ast_ends_statements(path: Path) -> None:
    """Real code, one token per byte. Further boundaries are the ends of heads and of decorators."""
    raw = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in raw.splitlines(keepends=True))]
    found = set(cut([raw[i : i + 1] for i in range(len(raw))], "code"))
    ends = {starts[node.end_lineno or 0] for node in ast.walk(ast.parse(raw)) if isinstance(node, ast.stmt)}
    assert ends - found == {len(raw)}
    for end in found - ends:
        line = raw[:end].splitlines()[-1].split(b"  #")[0].strip()
        assert line.endswith(b":") or line.startswith(b"@"), line


def test_a_response_is_cut_once() -> None:
    asked: list[list[int]] = []

    def _find(response: IntArray) -> IntArray:
        asked.append(response.tolist())
        return response[:1].copy()

    found = remembered(_find)
    for response in ([3, 4], [5], [3, 4]):
        assert found(np.array(response, np.int32)).tolist() == response[:1]
    assert asked == [[3, 4], [5]]
