"""The program in a response: which of its fenced blocks answers the problem, and whether one, of which only the
beginning is known, can no longer become one that Python parses.

Invariants: no code of it runs here. It is called broken only if no further lines can mend it, so a text that is broken
stays broken.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

_FENCED = re.compile(
    r"^([ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*([^\n`]*)\n(.*?)(?:^\1(?P=fence)|^([^\n`]*[^\s`~])(?P=fence)[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_FENCE_LINE = re.compile(r"^.*(?:`{3,}|~{3,}).*$", re.MULTILINE)
_INDENTED = re.compile(r"(?:[ \t]*\n)*[ \t]+\S")
_DEFINES = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)\b", re.MULTILINE)
_PYTHON = re.compile(r"\{?\.?(?:py\w*|ipython\w*|python\b.*|)\}?", re.IGNORECASE)  # of a fence; none may be Python, too
_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*(?:0|['\"]/dev/stdin)|\bfileinput\b")
_PRINTS = re.compile(r"\bprint\s*\(|\bstdout\b")
_TESTS = re.compile(r"\b(?:unittest|pytest|doctest)\b|^[ \t]*def test_?\w*\(", re.MULTILINE)
_CALLED = re.compile(r"[A-Za-z_]\w*(?=\s*\()")
_MOST_FENCES = 40  # that are looked at, where no block answers
_LONGEST = 50_000
"""A longer program is not parsed."""
_CODE = re.compile(r"(?:[ \t]*\n)*(?:(?:async +def|def|class) +\w+ *[(:]|import +\w|from +[\w.]+ +import\b|@\w)")
_ALLOW_INCOMPLETE = 0x4000  # PyCF_ALLOW_INCOMPLETE_INPUT, as the standard library's codeop has it


def cannot_be_parsed(response: str) -> bool | None:
    r"""Whether a response, which may end anywhere, contains a program that Python cannot parse, whatever follows.

    Its programs are the fenced blocks that define something. A response without a fence is one if it begins with a
    definition or an import. None: there is no program yet.

    >>> [cannot_be_parsed(text) for text in ("def f(x:\n", "def f(x]:\n", "def f(x):\n", "Here it is:\n")]
    [False, True, False, None]
    """
    blocks = [block for block in blocks_of(response) if _DEFINES.search(block.code)]
    programs = [block.code for block in blocks if block.language or _CODE.match(block.code)]  # others may be prose
    if "```" not in response and _CODE.match(response):
        programs = [response]
    return any(map(_broken, programs)) if programs else None


def _broken(program: str) -> bool:
    """Whether no lines after the complete lines of a program make it one."""
    source = program[: program.rfind("\n") + 1]
    if len(source) > _LONGEST:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a strange escape in a string
        try:
            compile(source, "program", "exec", ast.PyCF_ONLY_AST | _ALLOW_INCOMPLETE)
        except SyntaxError as error:
            return error.msg != "incomplete input"
        except (ValueError, MemoryError, RecursionError):  # null bytes, nesting
            return False
    return False


class Block(NamedTuple):
    """A fenced block."""

    language: str  # as the fence names it
    code: str


def blocks_of(response: str) -> list[Block]:
    """The fenced blocks of a response, in order: with three or more backticks or tildes. Indented ones, as in a list,
    are moved to the left; a fence may close behind the last line of code; the last block may be not closed. Of a block
    of Markdown its own blocks count."""
    found = []
    for indent, _, language, lines, last in _FENCED.findall(response):
        code = lines + last
        block = Block(language.strip(), textwrap.dedent(code) if indent else code)
        found += blocks_of(block.code) if block.language.lower() in ("markdown", "md") else [block]
    return found


def program_of(response: str, record: Mapping[str, Any]) -> str:
    """The program in a response to a problem: of its blocks the last that compiles and, for tests that are read from
    standard input, reads it, or else defines a function that the tests call.

    Where none does, the text between two fences does (`_between`). Else the last Python block that defines something,
    that prints if this is asked, the last Python block, the last block, or the whole response. Blocks of unit tests
    come after all others. `record`: the reference of the problem (`tasks/code/formats.py`)."""
    blocks = blocks_of(response)
    python = [block.code for block in blocks if _PYTHON.fullmatch(block.language)]
    programs = [code for code in python if not _TESTS.search(code)] or python
    choices = (
        [code for code in programs if _answers(code, record)],
        [code for code in python if _answers(code, record)],  # what is asked may be called test_...
        [code for code in python if _continues(code, record)],
        _between(response, record),
        [code for code in programs if _DEFINES.search(code)],
        [code for code in programs if _PRINTS.search(code) and record["format"] == "script"],
        programs,
        [block.code for block in blocks],
    )
    return next((found[-1] for found in choices if found), response)


def _between(response: str, record: Mapping[str, Any]) -> list[str]:
    """The texts between fences, wherever these stand in their lines, that answer: a fence may be opened in the prompt,
    or behind words, or closed with another indentation. Or else the first one that continues the problem's program."""
    if not _FENCE_LINE.search(response):
        return []
    pieces = _FENCE_LINE.split(response, maxsplit=_MOST_FENCES)
    found = [piece for piece in pieces if _answers(piece, record)]
    found = found or [piece for piece in pieces if _continues(piece, record)][:1]
    return [piece for piece in found if not _TESTS.search(piece)] or found


def _continues(code: str, record: Mapping[str, Any]) -> bool:
    """Whether it goes on with the program that is the problem's prompt (HumanEval)."""
    before = record.get("prompt")
    return bool(before and _INDENTED.match(code)) and _tree(f"{before}\n{code}") is not None


def _answers(code: str, record: Mapping[str, Any]) -> bool:
    tree = _tree(code)
    if tree is None:
        return False
    if record["format"] == "script":
        return _READS.search(code) is not None
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    defined |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return not defined.isdisjoint(_asked(record))


def _asked(record: Mapping[str, Any]) -> set[str]:
    """The functions that the tests of a problem call."""
    if name := record.get("fn_name") or record.get("entry"):
        return {name}
    return set(_CALLED.findall("\n".join(record["tests"])))


def _tree(code: str) -> ast.Module | None:
    """The syntax tree of a block; None if it is no Python, or too long."""
    if len(code) > _LONGEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a strange escape in a string
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None
