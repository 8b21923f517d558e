"""Whether a program, of which only the beginning is known, can no longer become one that Python parses.

Invariant: it is called broken only if no further lines can mend it. So a text that is broken stays broken.
"""

import ast
import re
import textwrap
import warnings

from tasks.code.programs import DEFINES, FENCED

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
    blocks = [textwrap.dedent(block) if indent else block for indent, block in FENCED.findall(response)]
    programs = [block for block in blocks if DEFINES.search(block)]
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
