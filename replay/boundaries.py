r"""Finds the boundaries of a response: the token positions where a step ends and a state may be cut. It works on bytes,
so a token such as ".\n" is handled exactly. Invariants: 0 < length < len(token_ids), increasing; every boundary is
between two characters, so the prefix decodes to a prefix of the text; not only blanks follow it."""

import io
import json
import re
import tokenize
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from core.config import Boundary
from core.errors import ModelError
from core.records import Boundaries, IntArray

Ends = list[int]

_BLANKS = b" \t\r\n"
_LINE = re.compile(rb"\S[^\n]*(?:\n|$)")
_SENTENCE = re.compile(rb"""[.!?]+["')\]*]*(?=\s)|\n""")
_ABBREVIATION = re.compile(rb"(?:^|[\s(])(?:[A-Za-z]|e\.g|i\.e|etc|vs|cf|Mr|Mrs|Ms|Dr|St|No|Fig|Eq)\.$")
_FENCE = re.compile(rb"^```[^\n]*\n?", re.MULTILINE)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_HALF = re.compile("[\udc80-\udcff]")  # a byte that is no character, as `surrogateescape` decodes it


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of each token of a vocabulary; special tokens have none."""

    pieces: tuple[bytes, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "TokenTable":
        """From a Hugging Face tokenizer: byte-level BPE, SentencePiece with byte fallback, or plain characters."""
        size = len(tokenizer)
        names = tokenizer.convert_ids_to_tokens(list(range(size)))
        special = set(tokenizer.all_special_ids)
        added = set(tokenizer.get_added_vocab().values())
        decode = _decoder(tokenizer)
        pieces: list[bytes] = []
        for index, name in enumerate(names):
            if index in special or name is None:
                pieces.append(b"")
            else:
                pieces.append(name.encode() if index in added else decode(name))
        return cls(tuple(pieces))


def boundaries(token_ids: IntArray, table: TokenTable, rule: Boundary, stride: int) -> IntArray:
    """Lengths [S] of the states of a response, increasing, each strictly inside it. `line`: after a line break;
    `sentence`: also after [.!?] before a blank; `code`: after Python statements; `stride`: every `stride` tokens, or
    where the character there ends. Blanks alone are not a step.

    >>> table = TokenTable((b"a", b".\\n", b"b", b"\\n"))
    >>> boundaries(np.array([0, 1, 3, 2, 3], np.int32), table, "line", 0).tolist()
    [2]
    """
    known, size = table.pieces, len(table.pieces)
    pieces = [known[token] if token < size else b"" for token in token_ids.tolist()]
    text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    lengths = _stride_lengths(text, ends, stride) if rule == "stride" else _cut_lengths(text, ends, _RULES[rule](text))
    content = len(text.rstrip())
    return np.array([k for k in lengths if k < len(ends) and 0 < ends[k - 1] < content], np.int32)


def no_boundaries(_: IntArray) -> IntArray:
    """For episodes: their states begin after what an environment answers, and nowhere else."""
    return np.zeros(0, np.int32)


def remembered(find: Boundaries) -> Boundaries:
    """`find` with a memory of an iteration's responses: the store and the critic's calibration ask for the same."""

    @lru_cache(maxsize=2048)
    def _of(tokens: bytes) -> IntArray:
        found = find(np.frombuffer(tokens, np.int32))
        found.setflags(write=False)
        return found

    return lambda response: _of(response.astype(np.int32).tobytes())


def _cut_lengths(text: bytes, ends: Ends, cuts: Ends) -> list[int]:
    """Number of tokens up to each byte offset in `cuts`. After the cut the last token may have blanks only."""
    places = [(cut, bisect_left(ends, cut)) for cut in cuts]
    return list(dict.fromkeys(k + 1 for cut, k in places if k < len(ends) and not text[cut : ends[k]].strip(_BLANKS)))


def _stride_lengths(text: bytes, ends: Ends, stride: int) -> list[int]:
    """Every `stride` tokens, or the next length at which no character is cut."""
    whole = [k for k, end in enumerate(ends, 1) if end == len(text) or text[end] & 0xC0 != 0x80]
    places = [bisect_left(whole, length) for length in range(stride, len(ends), stride)]
    return list(dict.fromkeys(whole[at] for at in places if at < len(whole)))


def line_ends(text: bytes) -> Ends:
    """Byte offsets after the lines that are not blank."""
    return [match.end() for match in _LINE.finditer(text)]


def sentence_ends(text: bytes) -> Ends:
    """Byte offsets after sentence marks (with closing quotes) and line breaks; not after "e.g." or "B."."""
    ends, start = [], 0
    for match in _SENTENCE.finditer(text):
        step = text[start : match.end()]
        mark = match.group() == b"."
        if not step.strip() or (mark and _ABBREVIATION.search(step[-8:])):
            continue
        ends.append(match.end())
        start = match.end()
    return ends


def statement_ends(text: bytes) -> Ends:
    """Byte offsets after Python statements: after the logical line (with all its physical lines) or a `;`.

    The head of a compound statement is a step, and so is a decorator. If the text has fenced blocks (```), only their
    insides are code. The line rule applies outside, and from the first token that cannot be read. Python's tokenizer is
    used instead of `ast`, which refuses the whole text for one error: a model's code is often broken.
    """
    ends: Ends = []
    for start, stop, code in _fences(text):
        part = text[start:stop]
        ends += [start + end for end in (_statements(part) if code else line_ends(part))]
    return ends


def _fences(text: bytes) -> list[tuple[int, int, bool]]:
    """Spans of prose and code, in order."""
    marks = [(m.start(), m.end()) for m in _FENCE.finditer(text)]
    if not marks:
        return [(0, len(text), True)]
    spans, at, code = [], 0, False
    for start, stop in marks:
        spans.append((at, stop if not code else start, code))
        at, code = (stop if not code else start), not code
    return [*spans, (at, len(text), code)]


def _statements(text: bytes) -> Ends:
    lines = [line + b"\n" for line in text.split(b"\n")]
    offsets = [0, *np.cumsum([len(line) for line in lines]).tolist()]
    whole = _HALF.sub("x", text.decode(errors="surrogateescape"))  # tokenize of Python 3.12 refuses half a character
    source = io.StringIO(whole, newline="\n")
    ends, read = [], 0
    try:
        for token in tokenize.generate_tokens(source.readline):
            row, column = token.end
            if token.type == tokenize.NEWLINE and token.string:
                read = offsets[row]
                ends.append(read)
            elif token.type == tokenize.OP and token.string == ";":
                line = lines[row - 1].decode(errors="surrogateescape")
                read = offsets[row - 1] + len(line[:column].encode(errors="surrogateescape"))
                ends.append(read)
    except (tokenize.TokenError, SyntaxError, UnicodeError, SystemError):  # the last two: CPython 3.12, odd bytes
        ends += [read + end for end in line_ends(text[read:])]  # a model may write broken code
    return ends


_RULES: dict[str, Callable[[bytes], Ends]] = {"line": line_ends, "sentence": sentence_ends, "code": statement_ends}


def _decoder(tokenizer: Any) -> Callable[[str], bytes]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"tokenizer {type(tokenizer).__name__}: no fast tokenizer; convert it with `tokenizers` first")
    found = json.loads(backend.to_str()).get("decoder") or {}
    kinds = {found.get("type")} | {part.get("type") for part in found.get("decoders", [])}
    if "ByteLevel" in kinds:
        table = _byte_level()
        return lambda name: bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
    return _sentencepiece


def _sentencepiece(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte.group(1), 16)]) if byte else name.replace("▁", " ").encode()


def _byte_level() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 is itself, other bytes are the characters from 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}
